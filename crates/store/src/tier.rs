//! Classes of devices.

use std::fmt;
use std::str::FromStr;

/// How quick the device is that something lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Small and quick: an SSD.
    Fast,
    /// Large and slow: a hard disk.
    Slow,
}

impl Tier {
    /// Both, the quick one first.
    pub const ALL: [Self; 2] = [Self::Fast, Self::Slow];

    /// The byte by which it is stored.
    pub fn code(self) -> u8 {
        match self {
            Self::Fast => 1,
            Self::Slow => 2,
        }
    }

    /// What [`Tier::code`] gave; `None` for any other byte.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|tier| tier.code() == code)
    }

    /// The one that this one is not.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Fast => Self::Slow,
            Self::Slow => Self::Fast,
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fast => "fast",
            Self::Slow => "slow",
        })
    }
}

/// Bytes on devices of each tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierBytes {
    /// On fast ones.
    pub fast: u64,
    /// On slow ones.
    pub slow: u64,
}

impl TierBytes {
    /// Those of a tier.
    pub fn of(&mut self, tier: Tier) -> &mut u64 {
        match tier {
            Tier::Fast => &mut self.fast,
            Tier::Slow => &mut self.slow,
        }
    }
}

/// Words that name no tier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no tier; it is fast or slow")]
pub struct UnknownTier(String);

impl FromStr for Tier {
    type Err = UnknownTier;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|tier| tier.to_string() == text)
            .ok_or_else(|| UnknownTier(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_lead_back() {
        for tier in Tier::ALL {
            assert_eq!(tier.to_string().parse(), Ok(tier));
            assert_eq!(Tier::from_code(tier.code()), Some(tier));
            assert_eq!(tier.other().other(), tier);
        }
        assert!("quick".parse::<Tier>().is_err());
        assert_eq!((Tier::from_code(0), Tier::from_code(3)), (None, None));
    }
}
