//! Transactions that a connection has begun.
//!
//! Thread safety: one lock, held for a few instructions. Invariant: none is left when the connection ends.

use std::collections::BTreeSet;
use std::sync::Arc;

use kvfs_fs::operations::Recorder;
use kvfs_locks::{Mutex, class};
use kvfs_posix::Result;
use rustix::io::Errno;

use crate::server::{Visitor, World};
use crate::session::refused;

/// See the module.
pub(crate) struct Begun {
    world: Arc<dyn World>,
    visitor: Visitor,
    open: Mutex<BTreeSet<u64>, class::ServeBegunOpen>,
}

impl Begun {
    pub(crate) fn new(world: Arc<dyn World>, visitor: Visitor) -> Self {
        Self { world, visitor, open: Mutex::default() }
    }

    /// Of a child: none yet.
    pub(crate) fn forked(&self) -> Self {
        Self::new(Arc::clone(&self.world), self.visitor.clone())
    }

    /// Is told of each call that is answered.
    pub(crate) fn recorder(&self) -> Option<Arc<dyn Recorder>> {
        self.world.recorder()
    }

    /// The process at the other end, and the transaction that it is in.
    pub(crate) fn visitor(&self) -> &Visitor {
        &self.visitor
    }

    /// The user of the connection.
    pub(crate) fn uid(&self) -> u32 {
        self.visitor.uid
    }

    pub(crate) fn begin(&self, is_serializable: bool, label: &str) -> Result<u64> {
        let txn = self.world.begin(&self.visitor, is_serializable, label)?;
        self.open.lock().insert(txn);
        Ok(txn)
    }

    pub(crate) fn commit(&self, txn: u64) -> Result<()> {
        self.end(txn, |world, visitor| world.commit(visitor, txn))
    }

    pub(crate) fn abort(&self, txn: u64) -> Result<()> {
        self.end(txn, |world, visitor| world.abort(visitor, txn))
    }

    /// One that could not be committed, and is open still, ends with the connection at the latest.
    fn end(&self, txn: u64, end: impl FnOnce(&dyn World, &Visitor) -> Result<()>) -> Result<()> {
        if !self.open.lock().contains(&txn) {
            return Err(refused(Errno::NOENT));
        }
        end(&*self.world, &self.visitor)?;
        self.open.lock().remove(&txn);
        Ok(())
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        for txn in std::mem::take(&mut *self.open.lock()) {
            // It may have ended by itself.
            let _ = self.world.abort(&self.visitor, txn);
        }
    }
}
