//! Policies by which blocks of files are placed on one of two tiers, by name.
//!
//! A policy is a list of *parts*. Each is asked where something goes, and answers or passes; the first answer
//! counts, and where all pass, it is the slow tier. A part that limits is asked before those that choose,
//! wherever it is written. A wish of the file comes before all of them, a tier without a device or without
//! room behind. So no policy can refuse anything, and a change of policy concerns only what is written from
//! then on.
//!
//! Thread safety: plain data.

use std::fmt;
use std::str::FromStr;

use kvfs_store::Tier;

/// A rule of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    /// To the slow tier.
    Static,
    /// What is written as a long stretch to the slow one, the rest to the fast one while that has room.
    SequentialToSlow,
    /// The same; and what is often asked for is moved to the fast one, in the place of what is not.
    HotCold,
    /// To the slow one while the fast devices have been written to as much as they may be.
    Endurance {
        /// Bytes.
        per_day: u64,
    },
}

/// What a part may ask about new blocks.
pub(crate) struct Asked<'a> {
    /// Length of the stretch that is written at once, as far as it is known (bytes).
    pub(crate) bytes_in_row: u64,
    /// Whether more is free on the fast tier than is kept for what needs it.
    pub(crate) fast_has_room: &'a dyn Fn() -> bool,
    /// Whether fast devices have been written to as much as they may be by now.
    pub(crate) is_budget_spent: &'a dyn Fn() -> bool,
}

/// A stretch from this length on is sequential (bytes): a hard disk takes longer to transfer it than to find
/// it.
const SEQUENTIAL_BYTES_MIN: u64 = 1 << 20;

/// Less would not even pay for the manifest (bytes each day).
const PER_DAY_MIN: u64 = 1 << 20;

impl Part {
    /// Where blocks go that are written for the first time. `None`: that is for other parts to say.
    fn tier_of_new(self, asked: &Asked<'_>) -> Option<Tier> {
        match self {
            Self::Static => Some(Tier::Slow),
            Self::SequentialToSlow | Self::HotCold if asked.bytes_in_row >= SEQUENTIAL_BYTES_MIN => {
                Some(Tier::Slow)
            }
            Self::SequentialToSlow | Self::HotCold => (asked.fast_has_room)().then_some(Tier::Fast),
            Self::Endurance { .. } => (asked.is_budget_spent)().then_some(Tier::Slow),
        }
    }

    fn limits(self) -> bool {
        matches!(self, Self::Endurance { .. })
    }

    /// What it is called, without what it is given.
    fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::SequentialToSlow => "sequential-to-slow",
            Self::HotCold => "hot-cold",
            Self::Endurance { .. } => "endurance",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Some(match text.split_once(':') {
            None if text == "static" => Self::Static,
            None if text == "sequential-to-slow" => Self::SequentialToSlow,
            None if text == "hot-cold" => Self::HotCold,
            Some(("endurance", bytes)) => {
                Self::Endurance { per_day: parse_bytes(bytes).filter(|bytes| *bytes >= PER_DAY_MIN)? }
            }
            _ => return None,
        })
    }
}

/// Each part at most once.
const PARTS_MAX: usize = 4;

/// On which tier blocks of files go that have no wish, in a store that has both; by default the slow one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Placement {
    /// As they are written.
    parts: [Option<Part>; PARTS_MAX],
}

impl Default for Placement {
    fn default() -> Self {
        let mut parts = [None; PARTS_MAX];
        parts[0] = Some(Part::Static);
        Self { parts }
    }
}

impl Placement {
    fn parts(&self) -> impl Iterator<Item = Part> {
        self.parts.iter().flatten().copied()
    }

    /// Where blocks go that are written for the first time.
    pub(crate) fn tier_of_new(&self, asked: &Asked<'_>) -> Tier {
        let limits = self.parts().filter(|part| part.limits());
        let choices = self.parts().filter(|part| !part.limits());
        limits.chain(choices).find_map(|part| part.tier_of_new(asked)).unwrap_or(Tier::Slow)
    }

    /// Whether it asks how often blocks are asked for.
    pub(crate) fn counts_heat(&self) -> bool {
        self.parts().any(|part| part == Part::HotCold)
    }

    /// How much may be written to fast devices in a day (bytes); `None`: any.
    pub fn bytes_per_day(&self) -> Option<u64> {
        self.parts().find_map(|part| match part {
            Part::Endurance { per_day } => Some(per_day),
            _ => None,
        })
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, part) in self.parts().enumerate() {
            f.write_str(if at > 0 { "+" } else { "" })?;
            f.write_str(part.name())?;
            if let Part::Endurance { per_day } = part {
                write!(f, ":{}", Bytes(per_day))?;
            }
        }
        Ok(())
    }
}

/// Words that name no placement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no placement; it is static, sequential-to-slow, hot-cold, endurance:SIZE (to be written to fast devices in a day, \
     at least 1M), or several of them, as in hot-cold+endurance:20G"
)]
pub struct UnknownPlacement(String);

impl FromStr for Placement {
    type Err = UnknownPlacement;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownPlacement(text.to_owned());
        let mut parts = [None; PARTS_MAX];
        for (at, word) in text.split('+').enumerate() {
            let part = Part::parse(word).ok_or_else(unknown)?;
            let is_new = parts.iter().flatten().all(|other: &Part| other.name() != part.name());
            *parts.get_mut(at).filter(|_| is_new).ok_or_else(unknown)? = Some(part);
        }
        Ok(Self { parts })
    }
}

/// From the largest unit down.
const UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// `20G`, `20g`, `20GB` and `20GiB`, of powers of 1024.
fn parse_bytes(text: &str) -> Option<u64> {
    let short = text.strip_suffix("iB").or_else(|| text.strip_suffix('B')).unwrap_or(text);
    let unit = UNITS.into_iter().find(|(unit, _)| short.ends_with(|c: char| c.eq_ignore_ascii_case(unit)));
    let digits = unit.map_or(text, |_| &short[..short.len() - 1]);
    let number: u64 = digits.parse().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()))?;
    number.checked_mul(1 << unit.map_or(0, |(_, bits)| bits))
}

/// As [`parse_bytes`] reads it, without loss.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.into_iter().find(|(_, bits)| self.0.trailing_zeros() >= *bits) {
            Some((unit, bits)) => write!(f, "{}{unit}", self.0 >> bits),
            None => write!(f, "{}", self.0),
        }
    }
}

/// What is known of blocks of one file that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NewBlocks {
    /// Where the file wishes its blocks to lie.
    pub(crate) wish: Option<Tier>,
    /// Length of the stretch of consecutive blocks that is written at once, as far as it is known (bytes).
    pub(crate) bytes_in_row: u64,
}

/// What files wish.
pub(crate) trait TierWishes: Send + Sync {
    /// Where blocks of that prefix are wished to lie.
    fn tier_of(&self, prefix: &[u8]) -> Option<Tier>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(text: &str) -> Placement {
        text.parse().expect("is a placement")
    }

    fn tier(text: &str, bytes_in_row: u64, has_room: bool, is_spent: bool) -> Tier {
        let asked = Asked { bytes_in_row, fast_has_room: &|| has_room, is_budget_spent: &|| is_spent };
        placement(text).tier_of_new(&asked)
    }

    #[test]
    fn a_placement_has_a_name_that_leads_back() {
        for name in
            ["static", "sequential-to-slow", "hot-cold", "endurance:20G", "hot-cold+endurance:1536M+static"]
        {
            assert_eq!(placement(name).to_string(), name);
        }
        assert_eq!(placement("endurance:2097153").to_string(), "endurance:2097153");
        assert_eq!(placement("static"), Placement::default());
        for name in ["endurance:20G", "endurance:20g", "endurance:20GB", "endurance:20GiB"] {
            assert_eq!(placement(name).bytes_per_day(), Some(20 << 30));
        }
        for wrong in [
            "hot",
            "",
            "static+",
            "static+static",
            "endurance",
            "endurance:",
            "endurance:1K",
            "endurance:+9G",
            "endurance:9000000B",
            "endurance:9GiG",
            "endurance:2G+endurance:3G",
            "static:1",
        ] {
            let said = wrong.parse::<Placement>();
            assert!(said.is_err_and(|error| error.to_string().contains("static,")), "{wrong}");
        }
    }

    #[test]
    fn short_stretches_go_to_the_fast_tier_while_it_has_room() {
        let long = SEQUENTIAL_BYTES_MIN;
        let tiers = [(4096, true), (4096, false), (long - 4096, true), (long, true)]
            .map(|(bytes, has_room)| tier("sequential-to-slow", bytes, has_room, false));
        assert_eq!(tiers, [Tier::Fast, Tier::Slow, Tier::Fast, Tier::Slow]);
        assert_eq!(tier("static", 4096, true, false), Tier::Slow);
    }

    #[test]
    fn parts_of_a_mixture_answer_in_turn_and_limits_come_first() {
        for name in ["sequential-to-slow+endurance:1G", "endurance:1G+sequential-to-slow"] {
            assert_eq!(
                [false, true].map(|is_spent| tier(name, 4096, true, is_spent)),
                [Tier::Fast, Tier::Slow]
            );
        }
        assert_eq!(tier("static+hot-cold", 4096, true, false), Tier::Slow);
        assert!(placement("static+hot-cold").counts_heat() && !placement("static").counts_heat());
        // A limit chooses nothing.
        assert_eq!(tier("endurance:1G", 4096, true, false), Tier::Slow);
    }
}
