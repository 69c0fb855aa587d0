//! fjall.

use super::{Config, Engine, Kind, Pair, keys_of};
use anyhow::Result;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::path::Path;

pub(crate) const KIND: Kind =
    Kind { name: "fjall", about: "fjall 3, no compression; a range is deleted key by key", open };

struct Fjall {
    db: Database,
    keyspace: Keyspace,
}

fn open(dir: &Path, config: &Config) -> Result<Box<dyn Engine>> {
    let db = Database::builder(dir.join("db")).cache_size(config.own_bytes() / 2).worker_threads(2).open()?;
    let memtable_bytes = config.own_bytes() / 8;
    let keyspace =
        db.keyspace("bench", move || KeyspaceCreateOptions::default().max_memtable_size(memtable_bytes))?;
    Ok(Box::new(Fjall { db, keyspace }))
}

impl Engine for Fjall {
    fn write(&mut self, pairs: Vec<Pair>) -> Result<()> {
        let mut batch = self.db.batch();
        for (key, value) in pairs {
            batch.insert(&self.keyspace, key, value);
        }
        Ok(batch.commit()?)
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.keyspace.get(key)?.map(|value| value.to_vec()))
    }

    fn scan(&mut self, from: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        for pair in self.keyspace.range(from..) {
            let (key, value) = pair.into_inner()?;
            if !visit(&key, &value) {
                break;
            }
        }
        Ok(())
    }

    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        let mut batch = self.db.batch();
        for key in keys_of(self, from, to)? {
            batch.remove(&self.keyspace, key);
        }
        Ok(batch.commit()?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.db.persist(PersistMode::SyncAll)?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.db.persist(PersistMode::SyncAll)?)
    }
}
