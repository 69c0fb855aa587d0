//! What is told of a store in numbers: its counters, its zones, its health, how its keyspaces are compressed.
//!
//! Thread safety: for threads that may block. Invariant: names of keyspaces are told to those that may read
//! them, as the socket for keys does; the file system's own to all.

use std::collections::BTreeSet;

use kvfs_fs::{DetachedStats, DetachedTrees};
use kvfs_kv::Access;
use kvfs_store::{Compression, UnknownCompression};

use crate::authority::{authorize, is_master};
use crate::branches::Branches;
use crate::caller::Caller;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::lines::{ChargeLines, HealthLine, ZoneLines};
use crate::served::ServedStore;

/// 1: the store was opened for reading only.
pub const READ_ONLY_STAT: &str = "store.read_only";

/// 1: it accepts no more writes, or nothing at all, until it is mounted again.
const FAILED_STAT: &str = "store.failed";

impl ServedStore<'_> {
    /// The counters of now, as far as the caller may know of them, by name. Every user may ask.
    pub fn stats(&self, caller: &Caller) -> Vec<(String, u64)> {
        let mut stats = self.fs.store().stats();
        let shown = self.keyspaces_shown_to(caller);
        let (nodes, locks) = (self.fs.nodes().stats(), self.fs.admission().stats());
        let detached = DetachedTrees::of(self.fs).stats();
        let own = [
            (READ_ONLY_STAT, u64::from(self.engine.is_read_only())),
            (FAILED_STAT, u64::from(self.health().failure.is_some())),
            ("fs.nodes", nodes.nodes),
            ("fs.nodes_bytes", nodes.bytes),
            ("fs.nodes_content_bytes", nodes.content_bytes),
            ("fs.orphans_queued", nodes.orphans_queued),
            ("fs.trees_removing", detached.trees),
            ("fs.tree_names_removed", detached.names_removed),
            ("locks.owners", locks.owners),
            ("locks.bytes", locks.bytes),
            ("txn.dooms", locks.dooms),
        ];
        stats.extend(own.map(|(name, value)| (name.to_owned(), value)));
        stats.extend(self.engine.counters());
        stats.retain(|(name, _)| keyspace_of(name).is_none_or(&shown));
        stats.sort();
        stats
    }

    /// Whether it works. Every user may ask.
    pub fn health(&self) -> HealthLine {
        let health = self.engine.health();
        let failure = health.failure.or_else(|| self.fs.nodes().failure().map(str::to_owned));
        let DetachedStats { trees, names_removed } = DetachedTrees::of(self.fs).stats();
        let branches_not_kept = self.branches.map_or(0, Branches::count_not_kept);
        HealthLine { failure, trees_removing: trees, names_removed, branches_not_kept, ..health }
    }

    /// What its zones are used for.
    ///
    /// # Errors
    /// The caller may not.
    pub fn zones(&self, caller: &Caller) -> Result<ZoneLines> {
        authorize(self.fs, caller, "see the zones of the store")?;
        Ok(self.engine.control_of("zones")?.zones())
    }

    /// What memory is charged, and where in the code it was.
    ///
    /// # Errors
    /// The caller may not.
    pub fn charges(&self, caller: &Caller) -> Result<ChargeLines> {
        authorize(self.fs, caller, "see what memory is charged")?;
        Ok(self.engine.control_of("charges of memory")?.charges())
    }

    /// How a keyspace is stored, after it was changed if there is something to change: by the words of the
    /// command line.
    ///
    /// # Errors
    /// The caller may not; there is no such keyspace, or no such compression; store errors.
    pub fn compression(&self, caller: &Caller, keyspace: &str, change: Option<&str>) -> Result<String> {
        authorize(self.fs, caller, "see and change how keyspaces are stored")?;
        let entry = self.fs.keys().keyspace(keyspace)?;
        let missing = || ServiceError::new(ErrorKind::Failed, format!("there is no keyspace \"{keyspace}\""));
        let entry = entry.ok_or_else(missing)?;
        if let Some(words) = change {
            let compression: Compression = words.parse().map_err(|error: UnknownCompression| {
                ServiceError::new(ErrorKind::Usage, error.to_string())
            })?;
            self.fs.store().set_compression(entry.keyspace, compression)?;
        }
        Ok(self.fs.store().compression(entry.keyspace).to_string())
    }

    /// Whether the caller may know of a keyspace by its name: of one that is there and that it may read, and
    /// of those that are no user's. The engine has names of dropped ones, too, which are for masters.
    fn keyspaces_shown_to(&self, caller: &Caller) -> impl Fn(&str) -> bool {
        let keys = self.fs.keys();
        let is_master = is_master(self.fs, caller.uid);
        // Where they can't be read nothing is told of them.
        let known = keys.keyspaces().unwrap_or_default().into_iter();
        let readable = known.filter(|(_, entry)| caller.may_use_keys(self.fs, &entry.owner, Access::Read));
        let readable: BTreeSet<String> = readable.map(|(name, _)| name).collect();
        move |name| is_master || readable.contains(name) || !keys.is_for_users(name)
    }
}

/// The keyspace that a counter is of, if it is of one.
fn keyspace_of(counter: &str) -> Option<&str> {
    let (name, _) = counter.strip_prefix("keyspace.")?.rsplit_once('.')?;
    Some(name)
}

#[cfg(test)]
mod tests;
