//! Files of blocks in a store: written in sequences, and read in order of their keys.
//!
//! Thread safety: belongs to one thread. Invariant: each block tells its place and how often it was written,
//! so that a scan sees what is missing, and what is old.

use anyhow::{Context, Result, ensure};
use kvfs_bench::interrupt;
use kvfs_store::{BLOCK_BYTES, Batch, Durability, KeyRange, Keyspace, Read, Store};

/// After so many sequences one looks for a signal.
const CHECK_EVERY: u64 = 256;

/// What was written.
pub(crate) struct Files {
    /// How often each block of each file was.
    times: Vec<Vec<u32>>,
    sequences: u64,
}

impl Files {
    /// So many empty ones.
    pub(crate) fn new(count: usize) -> Self {
        Self { times: vec![Vec::new(); count], sequences: 0 }
    }

    pub(crate) fn count(&self) -> u64 {
        self.times.len() as u64
    }

    /// Blocks of a file.
    pub(crate) fn blocks(&self, file: u64) -> u64 {
        self.times[file as usize].len() as u64
    }

    /// What all of them have (bytes).
    pub(crate) fn bytes(&self) -> u64 {
        self.times.iter().map(Vec::len).sum::<usize>() as u64 * BLOCK_BYTES as u64
    }

    /// Writes `count` blocks in one batch, from block `first` on; at or before the end of the file.
    pub(crate) fn write(
        &mut self,
        (store, keyspace): (&dyn Store, Keyspace),
        file: u64,
        first: u64,
        count: u64,
    ) -> Result<()> {
        self.sequences += 1;
        if self.sequences.is_multiple_of(CHECK_EVERY) {
            interrupt::check()?;
        }
        let times = &mut self.times[file as usize];
        let end = (first + count) as usize;
        times.resize(times.len().max(end), 0);
        let mut data = vec![0x5a; count as usize * BLOCK_BYTES];
        for (block, number) in data.chunks_mut(BLOCK_BYTES).zip(first..) {
            let times = &mut times[number as usize];
            *times += 1;
            block[..24].copy_from_slice(&stamp(file, number, *times));
        }
        let mut batch = Batch::new();
        batch.put_blocks(keyspace, file.to_be_bytes().to_vec(), first, data);
        store.apply(batch, Durability::Buffered)?;
        Ok(())
    }

    /// Reads everything in order of the keys.
    pub(crate) fn scan(&self, store: &dyn Read, keyspace: Keyspace) -> Result<()> {
        let expected = (0..)
            .zip(&self.times)
            .flat_map(|(file, times)| (0..).zip(times).map(move |(block, &times)| stamp(file, block, times)));
        let mut cursor = store.cursor(keyspace, KeyRange::all())?;
        cursor.first()?;
        for (count, stamp) in (0_u64..).zip(expected) {
            if count.is_multiple_of(1 << 14) {
                interrupt::check()?;
            }
            let (key, value) = cursor.entry().with_context(|| format!("the scan ends at block {count}"))?;
            ensure!(
                key == &stamp[..16] && value[..24] == stamp,
                "the scan finds other data at block {count}"
            );
            cursor.next()?;
        }
        ensure!(cursor.entry().is_none(), "the scan finds more than was written");
        Ok(())
    }
}

/// File, block, and how often it was written; the first two are its key.
fn stamp(file: u64, block: u64, times: u32) -> [u8; 24] {
    let mut stamp = [0; 24];
    stamp[..8].copy_from_slice(&file.to_be_bytes());
    stamp[8..16].copy_from_slice(&block.to_be_bytes());
    stamp[16..].copy_from_slice(&u64::from(times).to_be_bytes());
    stamp
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvfs_store::KeyspaceKind;
    use kvfs_store::model::ModelStore;

    #[test]
    fn scan_finds_what_was_written_and_misses_what_was_not() {
        let store = ModelStore::new();
        let keyspace = store.open_keyspace("blocks", KeyspaceKind::Block, None).expect("opens");
        let mut files = Files::new(3);
        for (file, first, count) in [(2, 0, 5), (0, 0, 1), (2, 3, 4)] {
            files.write((&store, keyspace), file, first, count).expect("written");
        }
        assert_eq!((files.blocks(2), files.bytes()), (7, 8 * BLOCK_BYTES as u64));
        files.scan(&store, keyspace).expect("all is there");
        let mut others = Files { times: files.times.clone(), sequences: 0 };
        others.times[2][4] = 1;
        assert!(others.scan(&store, keyspace).is_err(), "an old block");
        files.times[1].push(1);
        assert!(files.scan(&store, keyspace).is_err(), "a missing one");
    }
}
