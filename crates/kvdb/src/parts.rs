//! The owners of an open store, each made from those before it (`open`).
//!
//! Thread safety: shared; this type has no state and no rule of its own.

mod figures;
pub(crate) mod memory;

use std::sync::Arc;

use crate::commits::{Checkpoints, Transactions, Undo};
use crate::devices::Devices;
use crate::flush::Flusher;
use crate::flush::headroom::Space;
use crate::history::History;
use crate::live::LiveSet;
use crate::live::catalog::Catalog;
use crate::live::keyspaces::Keyspaces;
use crate::merge::Merger;
use crate::merge::defrag::Defragmenter;
use crate::merge::deleted::Deleted;
use crate::merge::migrate::Migrator;
use crate::order::Sequencer;
use crate::order::log::Log;
use crate::pressure::Pressure;
use crate::read::Reader;
use crate::runtime::Runtime;
use crate::txn::Txns;
use crate::write::Writer;

/// See the module.
pub(crate) struct Parts {
    pub(crate) uuid: [u8; 16],
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) pressure: Arc<Pressure>,
    pub(crate) live: Arc<LiveSet>,
    pub(crate) log: Arc<Log>,
    pub(crate) keyspaces: Arc<Keyspaces>,
    pub(crate) catalog: Catalog,
    pub(crate) history: Arc<History>,
    pub(crate) sequencer: Arc<Sequencer>,
    pub(crate) reader: Arc<Reader>,
    pub(crate) transactions: Arc<Transactions>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) undo: Arc<Undo>,
    pub(crate) space: Arc<Space>,
    pub(crate) deleted: Arc<Deleted>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) merger: Arc<Merger>,
    pub(crate) defragmenter: Defragmenter,
    pub(crate) devices: Devices,
    pub(crate) migrator: Migrator,
    pub(crate) writer: Arc<Writer>,
    pub(crate) txns: Arc<Txns>,
}
