//! Named snapshots as users meet them: made, shown, deleted; which users see them.
//!
//! Content of a snapshot is readable to the users that its permission bits admit, as of its moment: what was
//! made unreadable since is readable there. So a snapshot can be *private*, shown to root and the store's
//! owner alone.
//!
//! Thread safety: any number of threads. Invariants: a record in `meta` makes a snapshot private, by name. It
//! is durable before the snapshot exists, and goes after it: a crash may leave a record without a snapshot,
//! never a private snapshot without a record.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvfs_locks::{Mutex, RwLock, class};
use kvfs_store::{Batch, Durability, KeyRange, Keyspace, SnapshotInfo, Store, StoreError};

use crate::error::done_unless_full;
use crate::schema::{
    decode_received, encode_private, parse_private_key, private_key, private_keys, received_key,
};
use crate::transfer::{SnapshotId, StreamId, drop_note, finish_receive, received_last};
use crate::{FileSystem, FsError, MountOptions, Result};

/// Named snapshots of a store. Each holds what was deleted since, and is looked at by whatever looks for a
/// name.
pub const SNAPSHOTS_MAX: usize = 16_384;

/// The named snapshots of a store that holds a file system: one list for all its views.
pub struct Snapshots {
    store: Arc<dyn Store>,
    meta: Keyspace,
    /// The store's owner, to whom all are shown.
    owner_uid: u32,
    /// All are private, whatever the records say.
    are_all_private: bool,
    is_read_only: bool,
    /// Which are private in the state that is shown is not known yet: all are.
    is_renewing: AtomicBool,
    /// Of what was received there is a note, which could not be dropped for lack of space.
    has_note: AtomicBool,
    /// Held across the writes of records and names; comes before `private`.
    changing: Mutex<(), class::FsSnapshotsChanging>,
    /// The names of private ones, and of some that are no more.
    private: RwLock<BTreeSet<String>, class::FsSnapshotsPrivate>,
}

impl Snapshots {
    pub(crate) fn read(store: &Arc<dyn Store>, meta: Keyspace, options: &MountOptions) -> Result<Self> {
        let names = read_private(&**store, meta)?;
        Ok(Self {
            store: Arc::clone(store),
            meta,
            owner_uid: options.owner_uid,
            are_all_private: options.private_snapshots,
            is_read_only: options.read_only,
            is_renewing: AtomicBool::new(false),
            has_note: AtomicBool::new(false),
            changing: Mutex::default(),
            private: RwLock::new(names),
        })
    }

    /// As [`finish_receive`]; what finds no space is left to [`Self::drop_note`].
    pub(crate) fn finish_receive(&self) -> Result<()> {
        let has_note = !finish_receive(&*self.store, self.meta)?;
        self.has_note.store(has_note, Ordering::Release);
        Ok(())
    }

    /// Drops the note of what was received, where there was no space for that, if there is some now.
    pub(crate) fn drop_note(&self) -> Result<()> {
        if self.has_note.load(Ordering::Acquire) {
            let _changing = self.changing.lock();
            self.has_note.store(!done_unless_full(drop_note(&*self.store, self.meta))?, Ordering::Release);
        }
        Ok(())
    }

    /// Gives the state of now a name. What open transactions have written is not in it.
    ///
    /// # Errors
    /// As [`kvfs_store::NamedSnapshots::create_snapshot`]; `ReadOnly`; `TooMany`.
    pub fn create(&self, name: &str, is_private: bool) -> Result<SnapshotInfo> {
        let _changing = self.changing.lock();
        if self.find_named(name).is_some() {
            return Err(StoreError::SnapshotExists(name.to_owned()).into());
        }
        self.check_room()?;
        self.mark(name, is_private)?;
        Ok(self.store.create_snapshot(name)?)
    }

    /// Takes the name of a snapshot away.
    ///
    /// # Errors
    /// As [`kvfs_store::NamedSnapshots::delete_snapshot`]; `NoSpace` where one was received last by a store
    /// that has been full since.
    pub fn delete(&self, name: &str) -> Result<()> {
        let _changing = self.changing.lock();
        // With the note, the next opening would give the name to another state.
        if received_last(&*self.store, self.meta)?.is_some_and(|received| received.name == name) {
            drop_note(&*self.store, self.meta)?;
        }
        self.store.delete_snapshot(name)?;
        // A record that stays would make the next one of the name private, which does no harm.
        if let Err(error) = self.mark(name, false) {
            tracing::debug!(name, %error, "the record of a private snapshot stays");
        }
        Ok(())
    }

    /// Makes a snapshot private, or not. When this returns it is so, durably. A program that has a directory
    /// of it open keeps that.
    ///
    /// # Errors
    /// There is no such snapshot; `ReadOnly`; store errors.
    pub fn set_private(&self, name: &str, is_private: bool) -> Result<()> {
        let _changing = self.changing.lock();
        if self.find_named(name).is_none() {
            return Err(StoreError::NoSnapshot(name.to_owned()).into());
        }
        self.mark(name, is_private)
    }

    /// Whether a named snapshot is shown to root and the store's owner alone.
    pub fn is_private(&self, name: &str) -> bool {
        self.are_all_private || self.are_renewing() || self.private.read().contains(name)
    }

    /// Makes all private until [`Self::renew`]: another state is about to be shown, with names of its own.
    pub(crate) fn expect_others(&self) {
        self.is_renewing.store(true, Ordering::Release);
    }

    /// Whether all are private until [`Self::renew`].
    pub(crate) fn are_renewing(&self) -> bool {
        self.is_renewing.load(Ordering::Acquire)
    }

    /// Takes note which are private in the state that is shown. The list of names may be older than the
    /// records, so one that was private stays it for as long as it is listed.
    ///
    /// # Errors
    /// Store errors: all stay private.
    pub(crate) fn renew(&self) -> Result<()> {
        let mut names = read_private(&*self.store, self.meta)?;
        let listed: BTreeSet<_> = self.store.named_snapshots().into_iter().map(|info| info.name).collect();
        {
            let mut private = self.private.write();
            names.extend(std::mem::take(&mut *private).into_iter().filter(|name| listed.contains(name)));
            *private = names;
        }
        self.is_renewing.store(false, Ordering::Release);
        Ok(())
    }

    /// The store's owner, to whom all are shown.
    pub fn owner_uid(&self) -> u32 {
        self.owner_uid
    }

    /// The named snapshots that user `uid` may see, oldest first.
    pub fn shown_to(&self, uid: u32) -> Vec<SnapshotInfo> {
        let mut named = self.store.named_snapshots();
        if uid != 0 && uid != self.owner_uid {
            named.retain(|info| !self.is_private(&info.name));
        }
        named
    }

    /// Identity of a named snapshot of this store.
    ///
    /// # Errors
    /// Store errors; `Corrupt`.
    pub fn id(&self, info: &SnapshotInfo) -> Result<SnapshotId> {
        let created = info.created.as_nanos() as u64;
        let record = self.store.get(self.meta, &received_key(&info.name))?;
        let received = record.map(|bytes| decode_received(&info.name, &bytes)).transpose()?;
        let own = SnapshotId { store: self.store.uuid(), position: info.position.0, created };
        Ok(received.filter(|received| received.created == created).unwrap_or(own))
    }

    /// The named snapshot with that identity. O(n) in the named snapshots.
    ///
    /// # Errors
    /// As [`Self::id`].
    pub fn find(&self, id: &SnapshotId) -> Result<Option<SnapshotInfo>> {
        for info in self.store.named_snapshots() {
            if self.id(&info)? == *id {
                return Ok(Some(info));
            }
        }
        Ok(None)
    }

    /// The snapshots that a stream leads from and to, if this store has them. O(n²) in the named snapshots.
    ///
    /// # Errors
    /// As [`Self::id`].
    pub fn find_stream(&self, stream: StreamId) -> Result<Option<(Option<SnapshotId>, SnapshotId)>> {
        let ids: Result<Vec<_>> = self.store.named_snapshots().iter().map(|info| self.id(info)).collect();
        let ids = ids?;
        for to in &ids {
            let froms = std::iter::once(None).chain(ids.iter().map(Some));
            for from in froms {
                if StreamId::of(from, to) == stream {
                    return Ok(Some((from.copied(), *to)));
                }
            }
        }
        Ok(None)
    }

    /// Whether there may be one more named snapshot.
    pub(crate) fn check_room(&self) -> Result<()> {
        let count_max =
            self.store.snapshots().map_or(SNAPSHOTS_MAX, |named| named.snapshots_max().min(SNAPSHOTS_MAX));
        if self.store.named_snapshots().len() < count_max {
            return Ok(());
        }
        let (what, remedy) = ("named snapshots", "delete some with `kvfs snapshot delete`");
        Err(FsError::TooMany { what, count_max, remedy })
    }

    fn find_named(&self, name: &str) -> Option<SnapshotInfo> {
        self.store.named_snapshots().into_iter().find(|info| info.name == name)
    }

    /// Writes or removes the record of `name`, durably.
    fn mark(&self, name: &str, is_private: bool) -> Result<()> {
        if self.private.read().contains(name) == is_private {
            return Ok(());
        }
        if self.is_read_only {
            return Err(FsError::ReadOnly);
        }
        if is_private {
            // In memory first: where the write fails, it is hidden until the next mount.
            self.private.write().insert(name.to_owned());
        }
        let (meta, key) = (self.meta, private_key(name));
        let mut batch = Batch::new();
        if is_private {
            batch.put(meta, key, encode_private());
        } else {
            batch.delete(meta, key);
        }
        self.store.apply(batch, Durability::Synced)?;
        if !is_private {
            self.private.write().remove(name);
        }
        Ok(())
    }
}

/// The names of private snapshots, and of some that are no more.
fn read_private(store: &dyn Store, meta: Keyspace) -> Result<BTreeSet<String>> {
    let range: KeyRange = private_keys();
    let mut names = BTreeSet::new();
    let mut cursor = store.cursor(meta, range)?;
    cursor.next()?;
    while let Some((key, _)) = cursor.entry() {
        // A record that can't be read makes its snapshot private, too: `check` tells of it.
        names.extend(parse_private_key(key).map(str::to_owned));
        cursor.next()?;
    }
    Ok(names)
}

impl FileSystem {
    /// The named snapshots of the store; all views have the same.
    pub fn snapshots(&self) -> &Snapshots {
        &self.shared.snapshots
    }
}
