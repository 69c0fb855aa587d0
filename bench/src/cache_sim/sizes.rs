//! Sizes of a cache, as bytes or as a share of a load.
//!
//! Thread safety: plain values.

use anyhow::{Context, Error, Result, ensure};
use std::str::FromStr;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Size {
    Bytes(u64),
    /// A part of 1.
    Share(f64),
}

impl Size {
    /// For a load whose blocks have so many bytes together.
    pub(crate) fn bytes(self, footprint_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(share) => (footprint_bytes as f64 * share) as u64,
        }
    }
}

impl FromStr for Size {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(percent) = text.strip_suffix('%') {
            let percent: f64 = percent.parse().context("a share is a number and %")?;
            ensure!(percent > 0.0 && percent <= 1000.0, "a share is more than 0 % and at most 1000 %");
            return Ok(Self::Share(percent / 100.0));
        }
        let digits = text.trim_end_matches(['K', 'M', 'G']);
        let shift = match &text[digits.len()..] {
            "" => 0,
            "K" => 10,
            "M" => 20,
            "G" => 30,
            _ => return Err(Error::msg("bytes are a number and K, M or G, if any of them")),
        };
        let number: u64 = digits.parse().context("bytes are a whole number, such as 64M")?;
        let bytes = number.checked_mul(1 << shift).context("more bytes than there can be")?;
        ensure!(bytes > 0, "a cache of no bytes holds nothing");
        Ok(Self::Bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_shares() {
        let size = |text: &str| text.parse::<Size>().ok();
        assert_eq!(size("64M"), Some(Size::Bytes(64 << 20)));
        assert_eq!(size("4096"), Some(Size::Bytes(4096)));
        assert_eq!(size("12.5%").map(|size| size.bytes(800)), Some(100));
        for wrong in ["", "M", "64MM", "x", "0", "0%", "-1%", "99999999999999G"] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }
}
