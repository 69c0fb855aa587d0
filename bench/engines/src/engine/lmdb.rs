//! LMDB, by heed. It has no log: a commit writes pages, and what is not synced may be torn by a power cut.

use super::{Config, Engine, Kind, Pair};
use anyhow::{Context, Result};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions};
use std::fs;
use std::ops::Bound;
use std::path::Path;

pub(crate) const KIND: Kind = Kind {
    name: "lmdb",
    about: "LMDB by heed, MDB_NOSYNC (a power cut before the sync may tear the store), MDB_NORDAHEAD, its cache is the kernel's",
    open,
};

struct Lmdb {
    env: Env,
    db: Database<'static, Bytes, Bytes>,
}

#[expect(unsafe_code, reason = "LMDB's environment maps its file")]
fn open(dir: &Path, config: &Config) -> Result<Box<dyn Engine>> {
    let path = dir.join("db");
    fs::create_dir_all(&path)?;
    let mut options = EnvOpenOptions::new();
    options.map_size(usize::try_from(8 * config.data_bytes + (1 << 30))?);
    // SAFETY: the directory is this run's own, opened once at a time, and no other process changes the file.
    // Without syncs the file may be torn by a power cut, after which it is not opened again.
    let env = unsafe {
        options.flags(EnvFlags::NO_SYNC | EnvFlags::NO_READ_AHEAD);
        options.open(&path)?
    };
    let created = env.create_databases_and_commit(env.write_txn()?, |opener, txn| {
        opener.create_database(txn, None).map(CommitOrAbort::<_, ()>::Commit)
    })?;
    let db = created.commit().context("the database is not made")?;
    Ok(Box::new(Lmdb { env, db }))
}

impl Engine for Lmdb {
    fn write(&mut self, pairs: Vec<Pair>) -> Result<()> {
        let mut txn = self.env.write_txn()?;
        for (key, value) in &pairs {
            self.db.put(&mut txn, key, value)?;
        }
        Ok(txn.commit()?)
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let txn = self.env.read_txn()?;
        Ok(self.db.get(&txn, key)?.map(<[u8]>::to_vec))
    }

    fn scan(&mut self, from: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let txn = self.env.read_txn()?;
        // An empty key is refused.
        let first = if from.is_empty() { Bound::Unbounded } else { Bound::Included(from) };
        let range = (first, Bound::<&[u8]>::Unbounded);
        for pair in self.db.range(&txn, &range)? {
            let (key, value) = pair?;
            if !visit(key, value) {
                break;
            }
        }
        Ok(())
    }

    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        let mut txn = self.env.write_txn()?;
        self.db.delete_range(&mut txn, &(Bound::Included(from), Bound::Excluded(to)))?;
        Ok(txn.commit()?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.env.force_sync()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.env.force_sync()?)
    }
}
