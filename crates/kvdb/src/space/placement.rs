//! Policies by which blocks of files are placed on one of two tiers, by name.
//!
//! A policy answers where something goes, and nothing else: a wish of the file comes before it, a tier without a device or
//! without room behind it. So no policy can refuse anything, and a change of policy concerns only what is written from then on.
//!
//! Thread safety: plain data.

use std::fmt;
use std::str::FromStr;

use kvfs_store::Tier;

/// On which tier blocks of files go that have no wish, in a store that has both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Placement {
    /// To the slow one.
    #[default]
    Static,
    /// What is written as a long stretch to the slow one, the rest to the fast one while that has room.
    SequentialToSlow,
    /// The same; and what is often asked for is moved to the fast one, in the place of what is not.
    HotCold,
}

impl Placement {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Static, Self::SequentialToSlow, Self::HotCold];

    pub(super) fn policy(self) -> &'static dyn PlacementPolicy {
        match self {
            Self::Static => &Static,
            Self::SequentialToSlow | Self::HotCold => &SequentialToSlow,
        }
    }

    /// Whether it asks how often blocks are asked for.
    pub(super) fn counts_heat(self) -> bool {
        self == Self::HotCold
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Static => "static",
            Self::SequentialToSlow => "sequential-to-slow",
            Self::HotCold => "hot-cold",
        })
    }
}

/// Words that name no placement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no placement; it is static, sequential-to-slow or hot-cold")]
pub struct UnknownPlacement(String);

impl FromStr for Placement {
    type Err = UnknownPlacement;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|placement| placement.to_string() == text);
        found.ok_or_else(|| UnknownPlacement(text.to_owned()))
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

/// Where blocks go in a store that has both tiers.
pub(super) trait PlacementPolicy: Sync {
    /// Blocks that are written for the first time. `fast_has_room`: more is free there than is kept for what needs it.
    fn tier_of_new(&self, bytes_in_row: u64, fast_has_room: &dyn Fn() -> bool) -> Tier;

    /// Blocks that lie on `tier`, and are copied by a merge.
    fn tier_of_copy(&self, tier: Tier) -> Tier {
        tier
    }
}

struct Static;

impl PlacementPolicy for Static {
    fn tier_of_new(&self, _bytes_in_row: u64, _fast_has_room: &dyn Fn() -> bool) -> Tier {
        Tier::Slow
    }
}

/// A stretch from this length on is sequential (bytes): a hard disk takes longer to transfer it than to find it.
const SEQUENTIAL_BYTES_MIN: u64 = 1 << 20;

struct SequentialToSlow;

impl PlacementPolicy for SequentialToSlow {
    fn tier_of_new(&self, bytes_in_row: u64, fast_has_room: &dyn Fn() -> bool) -> Tier {
        if bytes_in_row < SEQUENTIAL_BYTES_MIN && fast_has_room() { Tier::Fast } else { Tier::Slow }
    }
}

/// What files wish.
pub(crate) trait TierWishes: Send + Sync {
    /// Where blocks of that prefix are wished to lie.
    fn tier_of(&self, prefix: &[u8]) -> Option<Tier>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placement_has_a_name_that_leads_back() {
        for placement in Placement::ALL {
            assert_eq!(placement.to_string().parse(), Ok(placement));
        }
        assert!("hot".parse::<Placement>().is_err_and(|error| error.to_string().contains("static,")));
    }

    #[test]
    fn short_stretches_go_to_the_fast_tier_while_it_has_room() {
        let policy = Placement::SequentialToSlow.policy();
        let long = SEQUENTIAL_BYTES_MIN;
        let tiers = [(4096, true), (4096, false), (long - 4096, true), (long, true)]
            .map(|(bytes, has_room)| policy.tier_of_new(bytes, &|| has_room));
        assert_eq!(tiers, [Tier::Fast, Tier::Slow, Tier::Fast, Tier::Slow]);
        assert_eq!(policy.tier_of_copy(Tier::Fast), Tier::Fast);
        assert_eq!(Placement::Static.policy().tier_of_new(4096, &|| true), Tier::Slow);
    }
}
