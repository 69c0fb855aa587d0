//! What is told is compared with where each block lies, over histories at random.

use std::collections::BTreeMap;

use bytes::Bytes;
use kvfs_device::Rng;
use kvfs_store::{
    BLOCK_BYTES, Batch, BlockClone, Compression, Durability, KeyspaceKind, Store, StoreError, Transactions,
    TxnOptions,
};

use super::*;
use crate::testing::{ZONE_BYTES, small_store};
use crate::{Db, Options};

const PREFIXES: u64 = 8;
const BLOCKS: u64 = 120;

/// Numbers of blocks, by the prefixes that refer to them.
type Shared = BTreeMap<Vec<Bytes>, u64>;

fn small_pieces(options: &mut Options) {
    options.merge.piece_bytes = 64 << 10;
    options.merge.class_runs = 2;
}

struct Files {
    db: Arc<Db>,
    data: Keyspace,
    rng: Rng,
    compression: Compression,
}

fn prefix(number: u64) -> Bytes {
    format!("p{number}").into()
}

fn keys(prefix: &Bytes, blocks: Range<u64>) -> [Vec<u8>; 2] {
    [blocks.start, blocks.end].map(|block| [prefix, &block.to_be_bytes()[..]].concat())
}

impl Files {
    fn new(seed: u64, compression: Compression, change: impl FnOnce(&mut Options)) -> Self {
        let db = small_store(256, |options| {
            options.memtable_bytes = 256 << 10;
            change(options);
        });
        let data = db.open_keyspace("data", KeyspaceKind::Block, None).expect("opens");
        Self { db, data, rng: Rng::new(seed), compression }
    }

    fn range(&mut self) -> Range<u64> {
        let first = self.rng.below(BLOCKS);
        first..BLOCKS.min(first + 1 + self.rng.below(60))
    }

    fn put(&mut self, number: u64, blocks: Range<u64>) {
        let mut content = vec![7; (blocks.end - blocks.start) as usize * BLOCK_BYTES];
        for block in content.chunks_mut(BLOCK_BYTES) {
            block[..1500].fill_with(|| self.rng.below(256) as u8);
        }
        let mut batch = Batch::new();
        batch.put_blocks_packed(self.data, prefix(number), blocks.start, content, self.compression);
        self.db.apply(batch, Durability::Buffered).expect("applies");
    }

    fn delete(&self, number: u64, blocks: Range<u64>) {
        let [start, end] = keys(&prefix(number), blocks);
        let mut batch = Batch::new();
        batch.delete_range(self.data, start, end);
        self.db.apply(batch, Durability::Buffered).expect("applies");
    }

    fn clone(&self, source: u64, blocks: Range<u64>, target: u64, target_first: u64) {
        let txn = self.db.begin(TxnOptions::default()).expect("begins");
        let count = blocks.end - blocks.start;
        let [start, end] = keys(&prefix(target), target_first..target_first + count);
        let mut batch = Batch::new();
        batch.delete_range(self.data, start, end);
        txn.apply(batch).expect("applies");
        let (source, target, compression) = (prefix(source), prefix(target), self.compression);
        let clone = BlockClone { source, first: blocks.start, count, target, target_first, compression };
        txn.clone_blocks(self.data, &[clone]).expect("clones");
        txn.commit(Durability::Buffered).expect("commits");
    }

    fn step(&mut self) {
        let (number, blocks) = (self.rng.below(PREFIXES), self.range());
        match self.rng.below(12) {
            0..3 => self.put(number, blocks),
            3 => self.delete(number, blocks),
            4..9 => {
                let count = blocks.end - blocks.start;
                let to = self.rng.below(BLOCKS - count + 1);
                let other = (number + 1 + self.rng.below(PREFIXES - 1)) % PREFIXES;
                self.clone(number, blocks, other, to);
            }
            9 => self.db.flush().expect("flushes"),
            10 => self.db.compact().expect("merges"),
            _ => self.db.reclaim().expect("reclaims"),
        }
    }

    fn told(&self, layers: &Layers, limits: Limits) -> Shared {
        let mut shared = Shared::new();
        let accountant = &self.db.parts.runtime.ctx.accountant;
        let walk = Walk::new(layers, self.data.0, ZONE_BYTES, accountant, limits);
        let told = walk.each_shared(&mut |blocks, prefixes| {
            let mut prefixes: Vec<_> = prefixes.iter().map(|prefix| Bytes::copy_from_slice(prefix)).collect();
            prefixes.sort_unstable();
            *shared.entry(prefixes).or_default() += blocks;
            Ok(())
        });
        told.expect("is told");
        shared
    }

    /// Block by block.
    fn expected(&self, layers: &Layers) -> Shared {
        let mut places: BTreeMap<(u64, u64), Vec<Bytes>> = BTreeMap::new();
        for number in 0..PREFIXES {
            let prefix = prefix(number);
            for located in layers.locate(self.data.0, &prefix, 0, BLOCKS as usize).expect("is found") {
                let Located::InPiece(location) = located else { continue };
                let index = location.piece.index().expect("is read");
                let region = index.layers()[location.layer].region(location.region);
                for block in location.first..location.first + u64::from(location.count) {
                    let in_unit = region.unit.map_or(0, |unit| u64::from(unit.skip) + block - region.first);
                    places.entry((region.addr_of(block), in_unit)).or_default().push(prefix.clone());
                }
            }
        }
        let mut shared = Shared::new();
        for prefixes in places.into_values().filter(|prefixes| prefixes.len() > 1) {
            *shared.entry(prefixes).or_default() += 1;
        }
        shared
    }

    /// True: there was something.
    fn compare(&self, when: &str) -> bool {
        let layers = self.db.parts.history.newest_layers();
        let expected = self.expected(&layers);
        for (sectors, references) in [(1 << 25, 1 << 16), (100, 1 << 16), (1 << 25, 3), (64, 1), (1, 1)] {
            let told = self.told(&layers, Limits { sectors, references });
            assert_eq!(told, expected, "{when}, windows of {sectors} with {references} references");
        }
        !expected.is_empty()
    }
}

#[test]
fn shared_blocks_are_those_that_several_newest_versions_refer_to() {
    for (seed, compression, change) in [
        (1, Compression::None, small_pieces as fn(&mut Options)),
        (2, Compression::None, |options| options.merge.stitch_bytes_min = 0),
        (3, Compression::Lz4, small_pieces),
        (4, Compression::Lz4, |options| options.private_bytes = 1),
    ] {
        let mut files = Files::new(seed, compression, change);
        let mut with_any = 0;
        for step in 0..120 {
            files.step();
            if step % 3 == 0 {
                with_any += u32::from(files.compare(&format!("seed {seed}, step {step}")));
            }
        }
        assert!(with_any > 20, "seed {seed}: {with_any}");
    }
}

#[test]
fn references_beyond_the_limit_are_gathered_one_stretch_after_the_other() {
    let mut files = Files::new(5, Compression::None, |_| {});
    files.put(0, 0..64);
    files.db.flush().expect("flushes");
    (1..PREFIXES).for_each(|number| files.clone(0, 0..64, number, 0));
    // Each has lost another part.
    (1..PREFIXES).for_each(|number| files.delete(number, number * 8..number * 8 + 2));
    assert!(files.compare("clones with holes"));
    let layers = files.db.parts.history.newest_layers();
    let told = files.told(&layers, Limits { sectors: 1 << 25, references: 4 });
    assert_eq!(told.values().sum::<u64>(), 64);
    assert_eq!(told.len(), PREFIXES as usize, "one of all, and one without each clone");
}

#[test]
fn references_to_one_stretch_are_charged_however_many_there_are() {
    const CLONES: u64 = 100;
    let mut files = Files::new(7, Compression::None, |_| {});
    files.put(0, 0..8);
    files.db.flush().expect("flushes");
    (1..CLONES).for_each(|number| files.clone(0, 0..8, number, 0));
    let layers = files.db.parts.history.newest_layers();
    let accountant = &files.db.parts.runtime.ctx.accountant;
    let before = accountant.used(Pool::Io);
    let limits = Limits { sectors: 1 << 10, references: 4 };
    let walk = Walk::new(&layers, files.data.0, ZONE_BYTES, accountant, limits);
    let mut told = Vec::new();
    let walked = walk.each_shared(&mut |blocks, prefixes| {
        told.push((blocks, prefixes.len(), accountant.used(Pool::Io) - before));
        Ok(())
    });
    walked.expect("is told");
    assert!(!told.is_empty());
    for (_, references, charged) in &told {
        assert!(*references as u64 == CLONES && *charged >= CLONES * 56, "{told:?}");
    }
    assert_eq!(told.iter().map(|(blocks, ..)| blocks).sum::<u64>(), 8);
    assert_eq!(accountant.used(Pool::Io), before, "is given back");
}

#[test]
fn search_for_shared_blocks_that_is_not_wanted_is_given_up() {
    let mut files = Files::new(6, Compression::None, |_| {});
    files.put(0, 0..64);
    files.db.flush().expect("flushes");
    let snapshot = files.db.snapshot().expect("pins");
    let look = || {
        let mut count = 0;
        let told = snapshot.each_shared(files.data, &mut |_, _| {
            count += 1;
            Ok(())
        });
        (told, count)
    };
    let (told, count) = progress::while_wanted(|| false, look);
    assert!(told.is_ok() && count == 0, "nothing was ever cloned, and nothing is read");
    files.clone(0, 0..64, 1, 0);
    let (told, count) = progress::while_wanted(|| false, look);
    assert!(matches!(told, Err(StoreError::GivenUp)) && count == 0, "{told:?}");
    let (told, count) = look();
    assert!(told.is_ok() && count == 0, "the snapshot is older");
    let mut count = 0;
    let newest = files.db.snapshot().expect("pins");
    let refused = newest.each_shared(files.data, &mut |blocks, _| {
        count += blocks;
        Err(StoreError::Full)
    });
    assert!(matches!(refused, Err(StoreError::Full)), "{refused:?}");
    assert!((1..=64).contains(&count), "{count}");
    let charged = files.db.parts.runtime.ctx.accountant.used(Pool::Io);
    newest.each_shared(files.data, &mut |_, _| Ok(())).expect("is told");
    assert_eq!(files.db.parts.runtime.ctx.accountant.used(Pool::Io), charged, "all memory is given back");
}
