//! The engine of kvfs, over a file of its own.

use super::{Config, Engine, Kind, Pair};
use anyhow::{Context, Result};
use kvfs_device::FileDevice;
use kvfs_kvdb::{CreateOptions, Db, Options};
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::{BLOCK_BYTES, Batch, Durability, KeyRange, Keyspace, KeyspaceKind, Read, Store};
use std::path::Path;
use std::sync::Arc;

pub(crate) const KIND: Kind = Kind { name: "kvfs", about: "its engine as a library, direct I/O", open };

const KEYSPACE: &str = "bench";

/// The part of what its process may have that it is told to use; the others have the kernel use whatever
/// their programs leave. A cache that has to give way to memtables, which may take a quarter, gives back no
/// memory at first: blocks that stay are spread over all of it. So filled, read and then written to, it comes
/// to a quarter and 30 to 40 MiB more than it was told; what is left is for the worst of many runs.
const TOLD: (u64, u64) = (9, 16);

struct Kvfs {
    db: Arc<Db>,
    keyspace: Keyspace,
    is_blocks: bool,
}

fn open(dir: &Path, config: &Config) -> Result<Box<dyn Engine>> {
    let path = dir.join("device");
    let device = if path.exists() {
        Arc::new(FileDevice::open(&path, false)?)
    } else {
        let bytes = 4 * config.data_bytes + (1 << 30);
        let device = Arc::new(FileDevice::create(&path, bytes)?);
        Db::create(device.clone(), &CreateOptions::new(bytes, [7; 16]))?;
        device
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let db = Db::open(device, Options::with_memory(config.process_bytes * TOLD.0 / TOLD.1), clock)?;
    let kind = if config.is_blocks { KeyspaceKind::Block } else { KeyspaceKind::Tuple };
    let keyspace = db.open_keyspace(KEYSPACE, kind, None)?;
    Ok(Box::new(Kvfs { db, keyspace, is_blocks: config.is_blocks }))
}

impl Kvfs {
    fn pairs(&self, pairs: Vec<Pair>) -> Batch {
        let mut batch = Batch::new();
        for (key, value) in pairs {
            batch.put(self.keyspace, key, value);
        }
        batch
    }

    /// Neighbours are one operation, which is how the interface takes blocks.
    fn blocks(&self, pairs: Vec<Pair>) -> Result<Batch> {
        let mut batch = Batch::new();
        let mut stretch: Option<(Vec<u8>, u64, Vec<u8>)> = None;
        let mut put = |(prefix, first, data): (Vec<u8>, u64, Vec<u8>)| {
            batch.put_blocks(self.keyspace, prefix, first, data);
        };
        for (key, value) in pairs {
            let (prefix, number) = key.split_last_chunk::<8>().context("a block's key ends in its number")?;
            let number = u64::from_be_bytes(*number);
            match &mut stretch {
                Some((of, first, data))
                    if of[..] == *prefix && *first + (data.len() / BLOCK_BYTES) as u64 == number =>
                {
                    data.extend_from_slice(&value);
                }
                _ => {
                    stretch.replace((prefix.to_vec(), number, value)).map(&mut put);
                }
            }
        }
        stretch.map(put);
        Ok(batch)
    }
}

impl Engine for Kvfs {
    fn write(&mut self, pairs: Vec<Pair>) -> Result<()> {
        let batch = if self.is_blocks { self.blocks(pairs)? } else { self.pairs(pairs) };
        self.db.apply(batch, Durability::Buffered)?;
        Ok(())
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.db.get(self.keyspace, key)?.map(|value| value.to_vec()))
    }

    fn scan(&mut self, from: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let mut cursor = self.db.cursor(self.keyspace, KeyRange::all())?;
        cursor.seek(from)?;
        while let Some((key, value)) = cursor.entry() {
            if !visit(key, value) {
                break;
            }
            cursor.next()?;
        }
        Ok(())
    }

    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        let mut batch = Batch::new();
        batch.delete_range(self.keyspace, from.to_vec(), to.to_vec());
        self.db.apply(batch, Durability::Buffered)?;
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.db.sync(self.db.position())?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.db.close()?)
    }
}
