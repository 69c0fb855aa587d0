//! Sizes, counts and times for people.

use std::time::Duration;

pub(crate) use kvfs_service::units::{human_bytes, human_duration, human_latency};

/// Reads a size such as `4096`, `4K`, `20G`, `1.5TiB`: powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| format!("\"{text}\" is not a size such as 4K or 20G"))?;
    let unit = unit.trim().to_ascii_uppercase();
    let unit = unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit);
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        _ => return Err(format!("\"{text}\" has no unit of K, M, G, T or P")),
    };
    let bytes = number * (1u64 << shift) as f64;
    if bytes >= u64::MAX as f64 {
        return Err(format!("\"{text}\" is too large"));
    }
    Ok(bytes as u64)
}

/// Reads the mode of a keyspace: octal, read and write bits only.
pub(crate) fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & !0o666 == 0);
    mode.ok_or_else(|| format!("\"{text}\" is not an octal mode of read and write bits, such as 640"))
}

/// Reads `UID`, `UID:GID` or `:GID`.
pub(crate) fn parse_owner(text: &str) -> Result<(Option<u32>, Option<u32>), String> {
    let number = |part: &str| match part {
        "" => Ok(None),
        part => {
            part.parse().map(Some).map_err(|_| format!("\"{part}\" is not the number of a user or group"))
        }
    };
    let (uid, gid) = text.split_once(':').unwrap_or((text, ""));
    match (number(uid)?, number(gid)?) {
        (None, None) => Err("give a user, a group, or both: UID, UID:GID or :GID".to_owned()),
        owner => Ok(owner),
    }
}

/// As [`parse_duration`]; `0` is for ever.
pub(crate) fn parse_duration_or_ever(text: &str) -> Result<Duration, String> {
    if text.trim() == "0" { Ok(Duration::MAX) } else { parse_duration(text) }
}

/// Reads a duration such as `30`, `30s`, `5m`, `2h`, `1d` or `250ms`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 =
        number.parse().map_err(|_| format!("\"{text}\" is not a time such as 30s, 5m or 2h"))?;
    let seconds = match unit.trim() {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(format!("\"{text}\" has no unit of ms, s, m, h or d")),
    };
    let seconds = number * seconds;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| format!("\"{text}\" is too short or too long"))
}

/// `2026-03-01 09:05:00`, of a time since 1970, in UTC.
pub(crate) fn date_time(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let (days, second) = (seconds / 86400, seconds % 86400);
    // Years that begin in March, so that the leap day is their last one; in cycles of 400 years.
    let days = days + 719_468;
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, after_december) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = 400 * cycle + year + after_december;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day_of_month:02} {hour:02}:{minute:02}:{second:02}")
}

/// `09:05:00.000456`, of a time since 1970, in UTC.
pub(crate) fn clock_time(since_1970: Duration) -> String {
    let second = since_1970.as_secs() % 86400;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{hour:02}:{minute:02}:{second:02}.{:06}", since_1970.subsec_micros())
}

/// A counter's value as its name asks: names that hold `bytes` are sizes.
pub(crate) fn human_value(name: &str, value: u64) -> String {
    if name.contains("bytes") { human_bytes(value) } else { group_digits(value) }
}

/// "1 name", "2 names": so many of what has that name.
pub(crate) fn counted(count: u64, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

/// What a restore or an undo has changed.
pub(crate) fn changed(names: u64, files: u64, keys: u64) -> String {
    [counted(names, "name"), counted(files, "file"), counted(keys, "key")].join(", ")
}

/// `1234567` as `1 234 567`.
pub(crate) fn group_digits(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        assert_eq!(changed(1, 0, 2), "1 name, 0 files, 2 keys");
    }

    #[test]
    fn times_are_written_as_dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_709_251_200, "2024-03-01 00:00:00"),
            (4_102_444_799, "2099-12-31 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(date_time(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("4K", 4096), ("4k", 4096), ("1.5KiB", 1536), ("20GB", 20 << 30)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "x", "4X", "-1", "99999999999T"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_have_units() {
        let ms = Duration::from_millis;
        for (text, time) in
            [("30", ms(30_000)), ("250ms", ms(250)), ("1.5m", ms(90_000)), ("2h", ms(7_200_000))]
        {
            assert_eq!(parse_duration(text), Ok(time), "{text}");
        }
        for text in ["", "x", "0", "-1s", "4w", "1e400s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert_eq!(human_duration(ms(125_000)), "2 min");
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(human_bytes(7), "7 B");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(200 << 30), "200 GiB");
        assert_eq!(human_value("ops", 1_234_567), "1 234 567");
    }
}
