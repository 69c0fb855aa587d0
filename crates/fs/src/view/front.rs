//! What front ends ask of views beside operations on files: the transactions that are open, messages.
//!
//! Thread safety: as [`FileSystem`]. Nothing here parks.

use std::fmt;
use std::sync::Arc;

use kvfs_store::{Store, TxnId};
use kvfs_txn::{Admission, Doom, LockNameBuf, Rival};

use super::Processes;
use crate::FileSystem;
use crate::node::NodeTable;
use crate::operations::Recorder;

impl FileSystem {
    /// The locks of all views, and the transactions that are open. [`Admission::tick`] must be called about
    /// ten times a second while there are transactions.
    pub fn admission(&self) -> &Admission {
        &self.shared.admission
    }

    /// Names of locks in words.
    pub fn lock_words(&self) -> LockWords<'_> {
        let main_nodes = self.txn().map_or(&self.nodes, |txn| &txn.main.nodes);
        LockWords { nodes: &self.nodes, main_nodes, store: &*self.store, processes: &self.shared.processes }
    }
}

/// From now on `recorder` is told of the operations that front ends answer, in all views of `fs`. The first
/// one stays.
pub fn record_operations(fs: &FileSystem, recorder: Arc<dyn Recorder>) {
    let _ = fs.shared.recorder.set(recorder);
}

/// What front ends have to tell of the operations that they answer, in any view of `fs`.
pub fn recorder(fs: &FileSystem) -> Option<&Arc<dyn Recorder>> {
    fs.shared.recorder.get()
}

/// The path from the root of an inode that has a node, in a transaction if one of this number is open, else
/// in `fs`.
pub fn path_in(fs: &FileSystem, txn: u64, inode: u64) -> Option<String> {
    let view = if txn == 0 { None } else { fs.shared.open.of(TxnId(txn)) };
    view.as_deref().unwrap_or(fs).lock_words().path_of(inode)
}

/// What a process is called now, or was lately. Reads a file now and then.
pub fn command_of(fs: &FileSystem, pid: u32) -> Option<String> {
    fs.shared.processes.see(pid, fs.shared.clock.monotonic());
    fs.shared.processes.command(pid)
}

/// Names of locks in words, as a view knows its paths.
pub struct LockWords<'v> {
    nodes: &'v NodeTable,
    main_nodes: &'v NodeTable,
    store: &'v dyn Store,
    processes: &'v Processes,
}

impl fmt::Debug for LockWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockWords").finish_non_exhaustive()
    }
}

impl LockWords<'_> {
    /// The transaction's doom in words, with paths where they are known.
    pub fn explain(&self, doom: &Doom) -> String {
        doom.message(|name| self.describe(name), |rival| self.party(rival))
    }

    /// The other party of a doom in words, with what a process is called.
    pub fn party(&self, rival: &Rival) -> String {
        match rival {
            Rival::Main { pid } => rival.words(self.command(*pid).as_deref()),
            Rival::Txn { .. } => rival.to_string(),
        }
    }

    /// What a process was called when it changed the main line last, as far as that is known.
    pub fn command(&self, pid: u32) -> Option<String> {
        self.processes.command(pid)
    }

    /// A lock's name in words, with a path where it is known.
    pub fn describe(&self, name: &LockNameBuf) -> String {
        let path = |inode: u64| self.path_of(inode).unwrap_or_else(|| format!("inode {inode}"));
        match name {
            LockNameBuf::Entry { directory, name } => match self.path_of(*directory) {
                Some(path) => format!("{}/{}", path.trim_end_matches('/'), String::from_utf8_lossy(name)),
                None => name_in_unknown(*directory, name),
            },
            LockNameBuf::Entries { directory } => format!("the entries of {}", path(*directory)),
            LockNameBuf::Identity { directory } | LockNameBuf::Placement { directory } => {
                format!("the place of {}", path(*directory))
            }
            LockNameBuf::Counters { directory } => format!("times and counts of {}", path(*directory)),
            LockNameBuf::Attributes { inode, fields } => format!("{fields} of {}", path(*inode)),
            LockNameBuf::Blocks { inode, .. } => format!("the content of {}", path(*inode)),
            LockNameBuf::Keys { keyspace, start, end } => {
                let known = self.store.keyspaces().into_iter().find(|info| info.keyspace == *keyspace);
                let keyspace = known.map_or_else(|| keyspace.0.to_string(), |info| info.name);
                let start_text = String::from_utf8_lossy(start);
                match end {
                    Some(end) if end.strip_prefix(&start[..]) == Some(&[0]) => {
                        format!("key \"{start_text}\" of keyspace {keyspace}")
                    }
                    _ => format!("keys of keyspace {keyspace}, from \"{start_text}\" on"),
                }
            }
        }
    }

    /// The path from the root (with a leading slash) of an inode that has a node here or, for a
    /// transaction, on the main line.
    pub(super) fn path_of(&self, inode: u64) -> Option<String> {
        let path = self.nodes.path_of(inode).or_else(|| self.main_nodes.path_of(inode));
        Some(String::from_utf8_lossy(&path?).into_owned())
    }
}

fn name_in_unknown(directory: u64, name: &[u8]) -> String {
    format!("\"{}\" in directory {directory}", String::from_utf8_lossy(name))
}
