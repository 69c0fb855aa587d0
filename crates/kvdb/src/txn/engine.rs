//! What transactions work on, and which of them are open.
//!
//! Thread safety: shared; the lock of the list is never held across I/O.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use kvfs_locks::{Mutex, class};
use kvfs_store::TxnId;

use super::DbTxn;
use super::merges::Merges;
use crate::commits::{Checkpoints, Transactions, Undo};
use crate::flush::Flusher;
use crate::history::History;
use crate::live::LiveSet;
use crate::live::keyspaces::Keyspaces;
use crate::read::Reader;
use crate::runtime::Runtime;
use crate::write::Writer;

/// See the module.
pub(crate) struct Txns {
    pub(super) runtime: Arc<Runtime>,
    pub(super) live: Arc<LiveSet>,
    pub(super) keyspaces: Arc<Keyspaces>,
    pub(super) history: Arc<History>,
    pub(super) reader: Arc<Reader>,
    pub(super) transactions: Arc<Transactions>,
    pub(super) checkpoints: Arc<Checkpoints>,
    pub(super) undo: Arc<Undo>,
    pub(super) flusher: Arc<Flusher>,
    pub(super) writer: Arc<Writer>,
    pub(super) open: OpenTxns,
    pub(super) merges: Mutex<Merges, class::KvdbTxnMerges>,
}

impl Txns {
    /// No transaction is open.
    pub(crate) fn new(reader: &Arc<Reader>, checkpoints: &Arc<Checkpoints>, writer: &Arc<Writer>) -> Self {
        Self {
            runtime: Arc::clone(&writer.runtime),
            live: Arc::clone(&writer.live),
            keyspaces: Arc::clone(&writer.keyspaces),
            history: Arc::clone(&writer.history),
            reader: Arc::clone(reader),
            transactions: Arc::clone(&writer.transactions),
            checkpoints: Arc::clone(checkpoints),
            undo: Arc::clone(&writer.undo),
            flusher: Arc::clone(&writer.flusher),
            writer: Arc::clone(writer),
            open: OpenTxns::default(),
            merges: Mutex::default(),
        }
    }
}

/// All transactions that are open, as long as a caller holds them.
#[derive(Default)]
pub(super) struct OpenTxns(Mutex<BTreeMap<TxnId, Weak<DbTxn>>, class::KvdbTxnEngine>);

impl OpenTxns {
    pub(super) fn add(&self, id: TxnId, txn: Weak<DbTxn>) {
        self.0.lock().insert(id, txn);
    }

    pub(super) fn remove(&self, id: TxnId) {
        self.0.lock().remove(&id);
    }

    pub(super) fn get(&self, id: TxnId) -> Option<Arc<DbTxn>> {
        self.0.lock().get(&id)?.upgrade()
    }

    /// Of those that can spill anything the one that holds most memory.
    pub(super) fn largest(&self) -> Option<Arc<DbTxn>> {
        // Those that are not the largest are let go outside of the lock: the last reference ends a
        // transaction.
        let all: Vec<_> = self.0.lock().values().filter_map(Weak::upgrade).collect();
        all.into_iter().filter(|txn| txn.can_spill()).max_by_key(|txn| txn.bytes_memory())
    }
}
