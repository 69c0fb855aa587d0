//! Clones of clones on a store that is nearly full, deleted in any order: whatever is not referred to any
//! more is space. And repairs of what is shared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kvfs_device::{AlignedBuf, Rng};
use kvfs_kvdb::{Db, repair};
use kvfs_store::{
    BLOCK_BYTES, Batch, BlockClone, Compression, Durability, Keyspace, KeyspaceKind, Read, Store, StoreError,
};

use crate::basics::{data, make, open};
use crate::clones::{assert_clean, clone, commit_clones, remove};

const ZONES: u64 = 200;
const ZONE_BYTES: u64 = 256 << 10;
const BLOCKS_OF_FILE: u64 = 24;

/// Files by tree and number; of each the blocks, by what they are made of.
struct Forest {
    rng: Rng,
    compression: Compression,
    db: Arc<Db>,
    data: Keyspace,
    files: BTreeMap<(u64, u64), BTreeMap<u64, u64>>,
    files_made: u64,
}

fn name((tree, file): (u64, u64)) -> String {
    format!("{tree:03}{file:05}")
}

impl Forest {
    fn new(seed: u64, compression: Compression) -> Self {
        let db = open(&make(ZONES), |_| {});
        let data = data(&db);
        Self { rng: Rng::new(seed), compression, db, data, files: BTreeMap::new(), files_made: 0 }
    }

    /// A block of which a third can be packed, where that is wished for.
    fn block(&self, seed: u64) -> Vec<u8> {
        let mut rng = Rng::new(seed);
        let packed = if self.compression == Compression::None { 0 } else { BLOCK_BYTES / 3 / 8 * 8 };
        let mut block = vec![7; BLOCK_BYTES];
        block[packed..].chunks_exact_mut(8).for_each(|word| {
            word.copy_from_slice(&rng.next_u64().to_le_bytes());
        });
        block
    }

    /// False: there is no space.
    fn write(&mut self, tree: u64) -> bool {
        self.files_made += 1;
        let file = (tree, self.files_made);
        let seeds: Vec<u64> = (0..BLOCKS_OF_FILE).map(|_| self.rng.next_u64()).collect();
        let content = seeds.iter().flat_map(|&seed| self.block(seed)).collect::<Vec<u8>>();
        let mut batch = Batch::new();
        batch.put_blocks_packed(self.data, name(file), 0, content, self.compression);
        match self.db.apply(batch, Durability::Synced) {
            Ok(_) => drop(self.files.insert(file, (0..).zip(seeds).collect())),
            Err(StoreError::Full) => return false,
            Err(error) => panic!("{error}"),
        }
        true
    }

    fn clone_tree(&mut self, from: u64, to: u64) {
        let of_tree: Vec<_> = self.files.range((from, 0)..(from + 1, 0)).collect();
        let compression = self.compression;
        let clone_of = |&(&file, _): &(&(u64, u64), _)| BlockClone {
            compression,
            ..clone(&name(file), (0, BLOCKS_OF_FILE), &name((to, file.1)), 0)
        };
        let clones: Vec<_> = of_tree.iter().map(clone_of).collect();
        let cloned: Vec<_> =
            of_tree.into_iter().map(|(file, blocks)| ((to, file.1), blocks.clone())).collect();
        commit_clones(&self.db, self.data, &clones);
        self.files.extend(cloned);
    }

    /// Removes about so many percent of all files, in any order, and parts of others.
    fn remove_some(&mut self, percent: u64) {
        let mut files: Vec<(u64, u64)> = self.files.keys().copied().collect();
        for at in (1..files.len()).rev() {
            files.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        // The same of all trees as a rule: else hardly anything is free.
        let of_all: BTreeSet<u64> =
            files.iter().map(|file| file.1).filter(|_| self.rng.below(100) < percent).collect();
        for file in files {
            if of_all.contains(&file.1) != (self.rng.below(30) == 0) {
                remove(&self.db, self.data, &name(file));
                self.files.remove(&file);
            } else if self.rng.below(4) == 0 {
                let first = self.rng.below(BLOCKS_OF_FILE);
                let key = |number: u64| [name(file).as_bytes(), &number.to_be_bytes()].concat();
                let mut batch = Batch::new();
                batch.delete_range(self.data, key(first), key(first + 3));
                self.db.apply(batch, Durability::Synced).expect("deletes");
                let blocks = self.files.get_mut(&file).expect("is there");
                blocks.retain(|number, _| !(first..first + 3).contains(number));
            }
        }
    }

    /// Blocks that are referred to, each counted once.
    fn blocks_live(&self) -> u64 {
        let blocks: BTreeSet<u64> = self.files.values().flat_map(BTreeMap::values).copied().collect();
        blocks.len() as u64
    }

    fn assert_right(&self, when: &str) {
        for (&file, blocks) in &self.files {
            let mut found = vec![1; BLOCKS_OF_FILE as usize * BLOCK_BYTES];
            self.db.read_blocks(self.data, name(file).as_bytes(), 0, &mut found).expect("reads");
            for (number, block) in (0..).zip(found.chunks(BLOCK_BYTES)) {
                let expected = blocks.get(&number).map_or(vec![0; BLOCK_BYTES], |&seed| self.block(seed));
                assert!(block == expected, "{when}: block {number} of {file:?}");
            }
        }
        assert_clean(&self.db, when);
    }

    /// Fills the store; what share of it is then taken by what is referred to (percent).
    fn fill(&mut self, tree: u64) -> u64 {
        while self.write(tree) {}
        let bytes = self.blocks_live() * BLOCK_BYTES as u64;
        bytes * 100 / (ZONES * ZONE_BYTES)
    }
}

#[test]
fn what_no_clone_refers_to_is_space_in_whatever_order_it_was_deleted() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (first, count) = (number("KVFS_SIM_SEED").unwrap_or(1), number("KVFS_SIM_SEEDS").unwrap_or(2));
    for seed in first..first + count {
        let compression = if seed % 2 == 1 { Compression::None } else { Compression::Lz4 };
        let mut forest = Forest::new(seed, compression);
        for _ in 0..200 {
            forest.write(0);
        }
        forest.clone_tree(0, 1);
        forest.clone_tree(1, 2);
        forest.remove_some(10);
        forest.clone_tree(2, 3);
        let mut fill = vec![forest.fill(0)];
        for round in 0..3 {
            let when = format!("seed {seed}, round {round}");
            forest.remove_some(50);
            fill.push(forest.fill(4 + round));
            forest.assert_right(&when);
        }
        assert!(fill.iter().all(|&percent| percent >= 65), "seed {seed}: full at {fill:?} percent");
    }
}

#[test]
fn repair_of_a_store_with_clones_loses_nothing_but_what_is_damaged() {
    const BLOCKS: u64 = 300;
    const DAMAGED: u64 = 77;
    let trees = ["f0", "f1", "f2", "f3", "f4"];
    let device = make(ZONES);
    let db = open(&device, |_| {});
    let space = data(&db);
    let block = |number: u64| number.to_le_bytes().repeat(BLOCK_BYTES / 8);
    let mut batch = Batch::new();
    batch.put_blocks(space, trees[0], 0, (1..=BLOCKS).flat_map(block).collect::<Vec<u8>>());
    db.apply(batch, Durability::Synced).expect("applies");
    db.flush().expect("flushes");
    let clones: Vec<_> = trees[1..].iter().map(|tree| clone(trees[0], (0, BLOCKS), tree, 0)).collect();
    commit_clones(&db, space, &clones);
    db.reclaim().expect("merges all into one");
    db.close().expect("closes");
    drop(db);
    let spaces = [("data", KeyspaceKind::Block)];
    let repaired = repair(&device, &spaces).expect("looks");
    assert!(repaired.findings.is_empty() && repaired.lost.is_empty(), "{repaired:?}");

    let mut found = AlignedBuf::zeroed(BLOCK_BYTES);
    let mut places = (0..device.len_bytes() / BLOCK_BYTES as u64).map(|at| at * BLOCK_BYTES as u64).rev();
    let is_damaged = |place: &u64| {
        device.read_at(found.as_mut(), *place).expect("reads");
        found.as_ref() == block(DAMAGED + 1)
    };
    let place = places.find(is_damaged).expect("is in a run");
    device.write_at(AlignedBuf::zeroed(BLOCK_BYTES).as_ref(), place).expect("damages");
    let repaired = repair(&device, &spaces).expect("repairs");
    assert_eq!(repaired.lost.len(), trees.len(), "{repaired:?}");
    let db = open(&device, |_| {});
    for tree in trees {
        let mut found = vec![0; BLOCKS as usize * BLOCK_BYTES];
        db.read_blocks(space, tree.as_bytes(), 0, &mut found).expect("reads");
        for (number, found) in (0..).zip(found.chunks(BLOCK_BYTES)) {
            let expected = if number == DAMAGED { vec![0; BLOCK_BYTES] } else { block(number + 1) };
            assert!(found == expected, "block {number} of {tree}");
        }
    }
    assert_clean(&db, "repaired");
}
