//! What a store may hold that older programs do not know, and the version of the format that tells them.
//!
//! Thread safety: plain data.
//!
//! Invariants: a version announces its own feature and may go with all before it, since a program that knows
//! a version knows those, too; so the version of a store does not tell whether it has what older versions
//! announce.

/// The version of a store that has nothing of [`Feature`], which is all that a store begins with.
pub const FORMAT_VERSION_PLAIN: u32 = 1;

/// The newest version of the format that this code reads and writes.
pub const FORMAT_VERSION: u32 = ANNOUNCED[ANNOUNCED.len() - 1].0;

/// Which version announces what, ascending.
const ANNOUNCED: [(u32, Feature); 8] = [
    (2, Feature::Packed),
    (3, Feature::Patches),
    (4, Feature::Bound),
    (5, Feature::Steps),
    (6, Feature::Members),
    (7, Feature::Clones),
    (8, Feature::BoundPatches),
    (9, Feature::Forks),
];

/// Something that a store of the first version does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Data is packed, or wished to be. It stays for good.
    Packed,
    /// The journal has patches of blocks. They are gone when it is empty.
    Patches,
    /// The journal refers to blocks in their final place. It does not when it is empty.
    Bound,
    /// The manifest records merges under way, and replaces pieces. It stays for good.
    Steps,
    /// The store has more than one device, or had. It stays for good.
    Members,
    /// A piece may refer to the same bytes for several prefixes. It stays for good.
    Clones,
    /// The journal refers to blocks in their final place that several patches make up. It does not when it is
    /// empty.
    BoundPatches,
    /// Several runs may have the same piece. It stays for good.
    Forks,
}

impl Feature {
    /// What only the journal ever has.
    pub const OF_JOURNAL: [Self; 3] = [Self::Patches, Self::Bound, Self::BoundPatches];

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(u8);

impl Features {
    /// What a store of this version may hold.
    pub fn announced_by(version: u32) -> Self {
        let announced = ANNOUNCED.iter().filter(|(needed, _)| *needed <= version);
        announced.fold(Self::default(), |features, (_, feature)| features.with(*feature))
    }

    /// The version that a store with these needs.
    pub fn version(self) -> u32 {
        let needed = ANNOUNCED.iter().rfind(|(_, feature)| self.has(*feature));
        needed.map_or(FORMAT_VERSION_PLAIN, |(version, _)| *version)
    }

    /// Whether `feature` is among them.
    pub fn has(self, feature: Feature) -> bool {
        self.0 & feature.bit() != 0
    }

    /// These and `feature`.
    #[must_use]
    pub fn with(self, feature: Feature) -> Self {
        Self(self.0 | feature.bit())
    }

    /// These but `feature`.
    #[must_use]
    pub fn without(self, feature: Feature) -> Self {
        Self(self.0 & !feature.bit())
    }

    /// As a number, for [`Features::from_bits`].
    pub fn bits(self) -> u8 {
        self.0
    }

    /// What [`Features::bits`] gave.
    pub fn from_bits(bits: u8) -> Self {
        Self(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_newest_feature_and_announces_all_before() {
        let none = Features::default();
        let (packed, patches) = (none.with(Feature::Packed), none.with(Feature::Patches));
        let all = packed.with(Feature::Patches);
        let bound = none.with(Feature::Bound);
        assert_eq!([none, packed, patches, all, bound].map(Features::version), [1, 2, 3, 3, 4]);
        assert_eq!([1, 2, 3].map(Features::announced_by), [none, packed, all]);
        assert_eq!(Features::announced_by(4), all.with(Feature::Bound));
        let steps = none.with(Feature::Steps);
        assert_eq!(steps.version(), 5);
        assert_eq!(Features::announced_by(5), Features::announced_by(4).with(Feature::Steps));
        assert_eq!(all.without(Feature::Patches), packed);
        assert_eq!(patches.without(Feature::Patches).version(), FORMAT_VERSION_PLAIN);
        assert!(ANNOUNCED.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(Features::from_bits(all.bits()), all);
    }
}
