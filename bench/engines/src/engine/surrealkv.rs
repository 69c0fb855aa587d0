//! SurrealKV, whose commits are asynchronous: each is waited for.

use super::{Config, Engine, Kind, Pair};
use anyhow::Result;
use std::path::Path;
use surrealkv::{CompressionType, LSMIterator, Mode, Tree, TreeBuilder};
use tokio::runtime::Runtime;

pub(crate) const KIND: Kind = Kind { name: "surrealkv", about: "SurrealKV 1, no compression", open };

struct SurrealKv {
    tree: Tree,
    runtime: Runtime,
}

fn open(dir: &Path, config: &Config) -> Result<Box<dyn Engine>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let guard = runtime.enter();
    let options = surrealkv::Options::new()
        .with_path(dir.join("db"))
        .with_compression_per_level(vec![CompressionType::None])
        .with_block_cache_capacity(config.own_bytes() / 2)
        .with_max_memtable_size(usize::try_from(config.own_bytes() / 8)?);
    let tree = TreeBuilder::with_options(options).build()?;
    drop(guard);
    Ok(Box::new(SurrealKv { tree, runtime }))
}

impl Engine for SurrealKv {
    fn write(&mut self, pairs: Vec<Pair>) -> Result<()> {
        let mut txn = self.tree.begin_with_mode(Mode::WriteOnly)?;
        for (key, value) in pairs {
            txn.set(key, value)?;
        }
        Ok(self.runtime.block_on(txn.commit())?)
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let txn = self.tree.begin_with_mode(Mode::ReadOnly)?;
        Ok(txn.get(key)?)
    }

    fn scan(&mut self, from: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let txn = self.tree.begin_with_mode(Mode::ReadOnly)?;
        let mut pairs = txn.scan(from..)?;
        let mut is_valid = pairs.seek_first()?;
        while is_valid {
            if !visit(pairs.key().user_key(), &pairs.value_ref()?) {
                break;
            }
            is_valid = LSMIterator::next(&mut pairs)?;
        }
        Ok(())
    }

    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        let mut txn = self.tree.begin_with_mode(Mode::WriteOnly)?;
        txn.delete_range(from, to)?;
        Ok(self.runtime.block_on(txn.commit())?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.tree.flush_wal(true)?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.runtime.block_on(self.tree.close())?)
    }
}
