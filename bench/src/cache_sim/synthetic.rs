//! Loads that are made up: blocks of both classes of devices, asked for in a known way.
//!
//! Thread safety: pure functions. Invariant: a load follows from its seed.

use clap::ValueEnum;
use kvfs_bench::zipf::Zipf;
use kvfs_device::Rng;
use kvfs_kvdb::{CacheAccess, CacheEvent};
use kvfs_store::Tier;

use crate::load::Load;

/// Blocks in a zone.
const ZONE_BLOCKS: u32 = 128;
/// Times that something changes, or that a scan begins, in the course of a load.
const SHIFTS: u64 = 10;
const SCANS: u64 = 50;
/// A scan goes over one block in so many.
const SCAN_DIVISOR: u32 = 10;
/// With a good placement so many blocks, one in this many, are on the fast device: those that are asked for
/// most.
const PLACED_DIVISOR: usize = 5;

/// How blocks are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shape {
    /// By their popularity (Zipf, 0.99); class and size have nothing to do with it
    Zipf,
    /// The same, and 50 times a tenth of all blocks one after the other
    Scan,
    /// All blocks one after the other, again and again
    Loop,
    /// By their popularity, and ten times others become popular
    Shift,
    /// By their popularity, and the fast device has the fifth that is most popular
    Placed,
}

impl Shape {
    fn name(self) -> &'static str {
        match self {
            Self::Zipf => "zipf",
            Self::Scan => "scan",
            Self::Loop => "loop",
            Self::Shift => "shift",
            Self::Placed => "placed",
        }
    }
}

/// A load to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Synthetic {
    pub(crate) shape: Shape,
    pub(crate) blocks: u32,
    pub(crate) lookups: u64,
    pub(crate) seed: u64,
}

impl Synthetic {
    /// Makes it.
    pub(crate) fn load(self) -> Load {
        let mut rng = Rng::new(self.seed);
        let mut by_rank: Vec<u32> = (0..self.blocks).collect();
        rng.shuffle(&mut by_rank);
        let blocks = self.make_blocks(&by_rank, &mut rng);
        let order = self.order(&by_rank, &mut rng);
        Load::made(self.shape.name(), order.into_iter().map(|block| blocks[block as usize]).collect())
    }

    /// An access for each block. Three in four are data of files of 4 KiB, the others rows of 16; half are on
    /// a slow device.
    fn make_blocks(self, by_rank: &[u32], rng: &mut Rng) -> Vec<CacheAccess> {
        let mut blocks: Vec<CacheAccess> = (0..self.blocks)
            .map(|block| CacheAccess {
                event: CacheEvent::Hit,
                zone: block / ZONE_BLOCKS,
                generation: 0,
                offset: (block % ZONE_BLOCKS) << 16,
                tier: if rng.chance(1, 2) { Tier::Fast } else { Tier::Slow },
                bytes: if rng.chance(3, 4) { 4 << 10 } else { 16 << 10 },
            })
            .collect();
        if self.shape == Shape::Placed {
            for (rank, &block) in by_rank.iter().enumerate() {
                let is_hot = rank < by_rank.len() / PLACED_DIVISOR;
                blocks[block as usize].tier = if is_hot { Tier::Fast } else { Tier::Slow };
            }
        }
        blocks
    }

    fn order(self, by_rank: &[u32], rng: &mut Rng) -> Vec<u32> {
        let zipf = Zipf::new(by_rank.len());
        let mut order = Vec::with_capacity(self.lookups as usize);
        let scan_every = (self.lookups / SCANS).max(1);
        while (order.len() as u64) < self.lookups {
            let step = order.len() as u64;
            match self.shape {
                Shape::Loop => order.push((step % u64::from(self.blocks)) as u32),
                Shape::Shift => {
                    let shift = step * SHIFTS / self.lookups * (u64::from(self.blocks) / SHIFTS);
                    let rank = (zipf.draw(rng) + shift as usize) % by_rank.len();
                    order.push(by_rank[rank]);
                }
                Shape::Zipf | Shape::Scan | Shape::Placed => order.push(by_rank[zipf.draw(rng)]),
            }
            let crossed = step / scan_every != (order.len() as u64) / scan_every;
            if self.shape == Shape::Scan && crossed {
                let first = rng.below(self.blocks.into()) as u32;
                order.extend((first..first + self.blocks / SCAN_DIVISOR).map(|block| block % self.blocks));
            }
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(shape: Shape) -> Load {
        Synthetic { shape, blocks: 1000, lookups: 20_000, seed: 1 }.load()
    }

    #[test]
    fn loads_are_the_same_for_the_same_seed_and_have_both_classes() {
        for &shape in Shape::value_variants() {
            let accesses: Vec<_> = load(shape).accesses().collect();
            assert_eq!(accesses, load(shape).accesses().collect::<Vec<_>>(), "{shape:?}");
            assert!(load(shape).has_both_tiers() && accesses.len() >= 20_000, "{shape:?}");
        }
    }

    #[test]
    fn loop_comes_to_each_block_in_turn_and_zipf_to_some_much_more_often() {
        let counts = |shape| {
            let mut counts = std::collections::HashMap::new();
            load(shape).accesses().for_each(|access| {
                *counts.entry((access.zone, access.offset)).or_insert(0_u32) += 1;
            });
            counts.into_values().max().unwrap_or(0)
        };
        assert_eq!(counts(Shape::Loop), 20);
        assert!(counts(Shape::Zipf) > 1000 && counts(Shape::Shift) < counts(Shape::Zipf));
    }

    #[test]
    fn placed_load_has_what_is_popular_on_the_fast_device() {
        let fast = load(Shape::Placed).accesses().filter(|access| access.tier == Tier::Fast).count();
        assert!(fast > 12_000, "{fast} of 20,000");
    }
}
