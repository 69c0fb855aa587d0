//! RocksDB of the system.

use super::{Config, Engine, Kind, Pair};
use anyhow::Result;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, DB, DBCompressionType, Direction, IteratorMode,
    Options, WriteBatch,
};
use std::path::Path;

pub(crate) const KIND: Kind = Kind {
    name: "rocksdb",
    about: "Debian's librocksdb, leveled, Bloom filters of 10 bits, two background jobs, no compression",
    open,
};

struct RocksDb {
    db: DB,
}

fn open(dir: &Path, config: &Config) -> Result<Box<dyn Engine>> {
    let memory = usize::try_from(config.own_bytes())?;
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(memory / 2)?);
    table.set_bloom_filter(10.0, false);
    table.set_cache_index_and_filter_blocks(true);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compression_type(DBCompressionType::None);
    options.set_block_based_table_factory(&table);
    options.set_write_buffer_size(memory / 8);
    options.set_max_write_buffer_number(3);
    options.set_db_write_buffer_size(memory / 3);
    options.set_max_background_jobs(2);
    options.set_level_compaction_dynamic_level_bytes(true);
    let family = ColumnFamilyDescriptor::new("default", options.clone());
    Ok(Box::new(RocksDb { db: DB::open_cf_descriptors(&options, dir.join("db"), [family])? }))
}

impl Engine for RocksDb {
    fn write(&mut self, pairs: Vec<Pair>) -> Result<()> {
        let mut batch = WriteBatch::default();
        for (key, value) in &pairs {
            batch.put(key, value);
        }
        Ok(self.db.write(batch)?)
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.db.get(key)?)
    }

    fn scan(&mut self, from: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        for pair in self.db.iterator(IteratorMode::From(from, Direction::Forward)) {
            let (key, value) = pair?;
            if !visit(&key, &value) {
                break;
            }
        }
        Ok(())
    }

    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        let mut batch = WriteBatch::default();
        batch.delete_range(from, to);
        Ok(self.db.write(batch)?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.db.flush_wal(true)?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.cancel_all_background_work(true);
        Ok(())
    }
}
