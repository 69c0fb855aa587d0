//! Detached trees: taken out of the tree by one operation, and removed in the background.
//!
//! `kvfs rm -r` moves a directory into the directory of detached trees, which no name leads to: a rename, so
//! a transaction, a crash, a branch, an undo and a restore meet nothing new. What is below still has its
//! rows, its nodes and its owner's quota until the main line has removed it name by name ([`remover`]), as
//! `rm -r` would: files that are open stay until they are closed. An undo moves back what is left, and makes
//! again what has gone.
//!
//! A tree is named by the store that detached it and by its inode. One that came by a stream stays until a
//! named snapshot differs from the newest received one: the next stream goes on from that, and says itself
//! what has gone.
//!
//! Thread safety: any number of threads; one removes at a time, a batch under the lock. Invariants: what is
//! removed lies below the directory of detached trees at that moment; no transaction moves out of a tree what
//! it saw before it was taken apart ([`remover`]); nothing is removed while a [`Pause`] is held.

mod moves;
mod remover;
mod stale;

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kvfs_locks::{Mutex, class};
use kvfs_store::{Batch, Keyspace, Position, SnapshotInfo};

use crate::schema::{DETACHED_INODE, Header, Placement, ROOT_INODE, encode_row};
use crate::transfer::has_changed;
use crate::view::TxnView;
use crate::{Caller, FileSystem, FileType, FsError, Result};
use moves::Moves;
pub(crate) use remover::names_after;
use remover::{Step, TreeRemover, Walk};
pub use stale::StaleOfTrees;

/// Names that are removed at most, when housekeeping comes by: about half a second of work.
const SLICE_NAMES: u64 = 1 << 16;

/// How long that may take.
const SLICE_TIME: Duration = Duration::from_millis(500);

/// Names that an operation removes before it is tried again, when it has found no space.
const SPACE_NAMES: u64 = 1 << 12;

/// How often a slice begins anew, because what it walks through has changed. Trees that are still not what
/// they say are passed over: they are damaged.
const RESTARTS_MAX: u32 = 8;

/// What a part of the removal came to.
struct Advanced {
    names: u64,
    /// There may be more that nothing holds.
    has_more: bool,
    /// How often the walk came to the end of all trees, and went on.
    ends: u32,
}

/// What all views share of it.
#[derive(Default)]
pub(crate) struct Detached {
    state: Mutex<State, class::FsDetachedState>,
    /// See there.
    pub(crate) moves: Moves,
    /// Whether the directory of detached trees is known to be there.
    exists: AtomicBool,
    /// As they were counted last.
    trees: AtomicU64,
    names_removed: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Holders of a [`Pause`].
    pauses: u32,
    /// Where the removal is.
    walk: Walk,
    /// What has gone, and a front end knows.
    stale: StaleOfTrees,
    /// Whether the snapshots at these positions differ, the last one received and the newest one.
    compared: Option<((Position, Position), bool)>,
}

/// Figures of detached trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DetachedStats {
    /// Trees that were not removed wholly when the removal came by last.
    pub trees: u64,
    /// Names that were removed of them since the file system was opened.
    pub names_removed: u64,
}

/// The detached trees of a file system; of any view, those of its main line.
pub struct DetachedTrees<'v> {
    main: &'v FileSystem,
    /// Whether they were asked for by the main line itself.
    is_main: bool,
}

/// As long as it is held, nothing is removed of detached trees: whatever brings something back from there
/// must hold it from before it chooses the state that it goes by until its commit.
#[must_use]
pub struct Pause {
    main: Arc<FileSystem>,
}

impl Pause {
    /// From now on.
    pub fn of(fs: &Arc<FileSystem>) -> Self {
        let main = Arc::clone(fs.txn().map_or(fs, |txn| &txn.main));
        main.shared.detached.state.lock().pauses += 1;
        Self { main }
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        let detached = &self.main.shared.detached;
        let mut state = detached.state.lock();
        // What has come back was moved by a transaction.
        detached.moves.count_one();
        state.pauses -= 1;
    }
}

impl fmt::Debug for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pause").finish_non_exhaustive()
    }
}

impl fmt::Debug for DetachedTrees<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedTrees").field("stats", &self.stats()).finish()
    }
}

impl<'v> DetachedTrees<'v> {
    /// Those of this file system.
    pub fn of(fs: &'v FileSystem) -> Self {
        Self { main: fs.txn().map_or(fs, |txn: &TxnView| &*txn.main), is_main: fs.origin.is_main() }
    }

    /// Makes the directory of detached trees, unless it is there. Must be called before the transaction
    /// begins that detaches one.
    ///
    /// # Errors
    /// `ReadOnly`; store errors.
    pub fn prepare(&self) -> Result<()> {
        if self.own().exists.load(Ordering::Acquire) {
            return Ok(());
        }
        self.main.locker().check_writable()?;
        let _state = self.own().state.lock();
        if !self.main.rows().has_own(DETACHED_INODE)? {
            let mut header = Header::new(DETACHED_INODE, FileType::Directory, self.main.shared.time());
            (header.mode, header.nlink, header.parent) = (0o700, 2, ROOT_INODE);
            let key = Placement::own_subtree(DETACHED_INODE).own_key();
            let batch = beginning(self.main.keyspaces.meta, key, encode_row(&header, b""));
            self.main.gate().apply_counted(&Caller::default(), batch, None, Some(&header))?;
        }
        self.own().exists.store(true, Ordering::Release);
        Ok(())
    }

    /// As [`Self::prepare`], before a view begins: so what is removed in it goes at once, too. A replica is
    /// left as it came, and a view without the directory removes trees name by name.
    pub(crate) fn prepare_for_views(&self) {
        if self.own().exists.load(Ordering::Acquire) {
            return;
        }
        let prepared = self.is_newest_own().and_then(|is_own| if is_own { self.prepare() } else { Ok(()) });
        if let Err(error) = prepared {
            tracing::debug!(%error, "no directory for detached trees; views remove them name by name");
        }
    }

    /// The name that a tree gets among the detached ones.
    pub(crate) fn name_of(&self, inode: u64) -> Vec<u8> {
        [&self.own_prefix()[..], inode.to_string().as_bytes()].concat()
    }

    fn own_prefix(&self) -> Vec<u8> {
        let uuid = u128::from_be_bytes(self.main.store.uuid());
        format!("{uuid:032x}.").into_bytes()
    }

    /// Figures, without a look at the store.
    pub fn stats(&self) -> DetachedStats {
        let (trees, names_removed) = (&self.own().trees, &self.own().names_removed);
        DetachedStats {
            trees: trees.load(Ordering::Relaxed),
            names_removed: names_removed.load(Ordering::Relaxed),
        }
    }

    /// How many trees are not removed wholly yet.
    ///
    /// # Errors
    /// Store errors.
    pub fn count(&self) -> Result<u64> {
        let count = match self.main.resolver().by_own_row(DETACHED_INODE) {
            Ok(trees) => {
                self.own().exists.store(true, Ordering::Release);
                trees.header().size
            }
            Err(FsError::NotFound) => 0,
            Err(error) => return Err(error),
        };
        self.own().trees.store(count, Ordering::Relaxed);
        Ok(count)
    }

    /// As [`Self::remove_some`], because time has come.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn remove_slice(&self) -> Result<u64> {
        self.remove_some(SLICE_NAMES)
    }

    /// Removes all that others do not hold, and that is what it says. O(n) in the names; may block for long.
    ///
    /// # Errors
    /// As [`Self::remove_some`].
    pub fn remove_all(&self) -> Result<()> {
        // Between two ends lies a whole walk: one that took nothing away would take nothing the next time.
        let mut ends = 0;
        while ends < 2 {
            let Advanced { names, has_more, ends: more } = self.advance(SLICE_NAMES)?;
            if !has_more {
                break;
            }
            ends = if names > 0 { 0 } else { ends + more };
        }
        Ok(())
    }

    /// As [`Self::remove_slice`], because space is short. True: there was something, so that an operation
    /// that has failed for lack of space may succeed now.
    pub(crate) fn remove_for_space(&self) -> bool {
        self.main.locker().check_writable().is_ok()
            && self.advance(SPACE_NAMES).is_ok_and(|advanced| advanced.names > 0 || advanced.has_more)
    }

    /// What the front end of the main line knows, and has gone or changed since the last call. Other views
    /// have none.
    pub fn take_stale(&self) -> StaleOfTrees {
        if !self.is_main || !self.own().exists.load(Ordering::Acquire) {
            return StaleOfTrees::default();
        }
        std::mem::take(&mut self.own().state.lock().stale)
    }

    fn own(&self) -> &'v Detached {
        &self.main.shared.detached
    }

    /// Removes some of what is detached: at most so many names, one more for each directory that is empty
    /// then, and not for longer than half a second. Returns how many; 0: there is none, or others hold what
    /// is left. May block.
    ///
    /// # Errors
    /// Store errors; what was not removed is tried again at the next call.
    pub fn remove_some(&self, names_max: u64) -> Result<u64> {
        Ok(self.advance(names_max)?.names)
    }

    fn advance(&self, names_max: u64) -> Result<Advanced> {
        let mut advanced = Advanced { names: 0, has_more: false, ends: 0 };
        if self.count()? == 0 {
            return Ok(advanced);
        }
        let done = self.take_steps(names_max, &mut advanced);
        // Of what has gone, whatever came of the rest.
        self.main.orphans().reap_all()?;
        self.count()?;
        done.map(|()| advanced)
    }

    fn take_steps(&self, names_max: u64, advanced: &mut Advanced) -> Result<()> {
        let clock = &self.main.shared.clock;
        let remover = TreeRemover::new(self.main, self.own_prefix(), self.takes_foreign()?);
        let began = clock.monotonic();
        // Whether the walk began in this call, so that its end is that of all trees.
        let (mut is_whole, mut restarts, mut failed) = (false, 0, None);
        advanced.has_more = true;
        while advanced.names < names_max && clock.monotonic().saturating_sub(began) < SLICE_TIME {
            // For one batch at a time: whatever brings something back waits no longer.
            let mut state = self.own().state.lock();
            let State { pauses, walk, stale, .. } = &mut *state;
            if *pauses > 0 {
                advanced.has_more = false;
                break;
            }
            is_whole |= walk.is_new();
            let is_last_try = restarts == RESTARTS_MAX;
            match remover.step(walk, stale, names_max - advanced.names, is_last_try) {
                Ok(Step::Removed(names)) => {
                    advanced.names += names;
                    self.own().names_removed.fetch_add(names, Ordering::Relaxed);
                }
                Ok(Step::Ended) if is_whole => {
                    advanced.has_more = false;
                    break;
                }
                Ok(Step::Ended) => advanced.ends += 1,
                Ok(Step::Changed) if !is_last_try => restarts += 1,
                // The list of trees itself is not what it says.
                Ok(Step::Changed) => {
                    advanced.has_more = false;
                    break;
                }
                // The others may be sound.
                Err(error) if restarts < RESTARTS_MAX => {
                    restarts += 1;
                    failed.get_or_insert(error);
                }
                Err(error) => return Err(failed.unwrap_or(error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Whether trees that came by a stream are removed here, and not by the next stream.
    fn takes_foreign(&self) -> Result<bool> {
        let mut named = self.main.store.named_snapshots();
        named.sort_by_key(|info| Reverse(info.position));
        for info in &named {
            if !self.is_own(info)? {
                let newest = &named[0];
                if info.position == newest.position {
                    return Ok(false);
                }
                // What these two are does not change, and comparing them takes long.
                let compared = (info.position, newest.position);
                let known = self.own().state.lock().compared;
                if let Some((_, differ)) = known.filter(|(of, _)| *of == compared) {
                    return Ok(differ);
                }
                let differ = has_changed(self.main, &info.name, &newest.name)?;
                self.own().state.lock().compared = Some((compared, differ));
                return Ok(differ);
            }
        }
        Ok(true)
    }

    fn is_newest_own(&self) -> Result<bool> {
        let named = self.main.store.named_snapshots();
        named.iter().max_by_key(|info| info.position).map_or(Ok(true), |newest| self.is_own(newest))
    }

    /// Whether a named snapshot was made here, and not received.
    fn is_own(&self, info: &SnapshotInfo) -> Result<bool> {
        Ok(self.main.snapshots().id(info)?.store == self.main.store.uuid())
    }
}

/// A row that a removal begins with. A batch that deletes may take what a full store keeps in reserve, so it
/// counts as one.
fn beginning(meta: Keyspace, key: Bytes, row: impl Into<Bytes>) -> Batch {
    let mut batch = Batch::new();
    batch.delete(meta, key.clone());
    batch.put(meta, key, row);
    batch
}
