//! The deadline of a call, as gRPC writes it: `grpc-timeout: 1500m`.

use std::time::Duration;

use http::HeaderMap;

/// As the protocol says.
const DIGITS_MAX: usize = 8;

/// What the client allows; `None`: as much as it takes. A value that is none is ignored.
pub(super) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read_and_nonsense_is_ignored() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", http::HeaderValue::from_bytes(text.as_bytes()).unwrap());
            timeout(&headers)
        };
        assert_eq!(of("1500m"), Some(Duration::from_millis(1500)));
        assert_eq!(of("2H"), Some(Duration::from_hours(2)));
        assert_eq!(of("99999999u"), Some(Duration::from_micros(99_999_999)));
        for nonsense in ["", "m", "12", "-1S", "1.5S", "123456789S", "1é", "9x"] {
            assert_eq!(of(nonsense), None, "{nonsense}");
        }
        assert_eq!(timeout(&HeaderMap::new()), None);
    }
}
