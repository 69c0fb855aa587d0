//! Values for people.
//!
//! Thread safety: pure functions.

use crate::report::seconds_text;
use serde::{Deserialize, Serialize};

/// What a value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Bytes each second.
    BytesPerSecond,
    /// Things.
    Count,
    /// A part of 1.
    Share,
    /// Seconds.
    Seconds,
    /// So many times something else.
    Times,
}

impl Unit {
    /// With the unit.
    pub fn text(self, value: f64) -> String {
        match self {
            Self::Bytes => bytes_text(value),
            Self::BytesPerSecond => format!("{}/s", bytes_text(value)),
            Self::Count => grouped(value.round() as u64),
            Self::Share => format!("{:.1} %", value * 100.0),
            Self::Seconds => seconds_text(value),
            Self::Times => format!("{value:.2} x"),
        }
    }
}

fn bytes_text(bytes: f64) -> String {
    let (value, unit) = match bytes {
        _ if bytes >= f64::from(1 << 30) => (bytes / f64::from(1 << 30), "GiB"),
        _ if bytes >= f64::from(1 << 20) => (bytes / f64::from(1 << 20), "MiB"),
        _ => (bytes / f64::from(1 << 10), "KiB"),
    };
    if value < 100.0 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

/// Thousands with a separator.
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(["7", "1,000", "200,000"].map(str::to_owned), [7, 1000, 200_000].map(grouped));
    }

    #[test]
    fn values_have_the_units_of_people() {
        assert_eq!(Unit::Bytes.text(1.5 * f64::from(1 << 30)), "1.5 GiB");
        assert_eq!(Unit::BytesPerSecond.text(f64::from(120 << 20)), "120 MiB/s");
        assert_eq!(Unit::Count.text(11_264.0), "11,264");
        assert_eq!(Unit::Share.text(0.5566), "55.7 %");
        assert_eq!(Unit::Times.text(3.2), "3.20 x");
    }
}
