//! Quotas: what users, groups and projects have in files, and how much they may have.
//!
//! Purpose: every change of an inode's owner or space adds to the usage that it concerns, in the same batch,
//! so that usage is exact at every position of the history, in transactions, and after a crash. Limits are
//! looked at before the batch is applied. An inode counts from its making until its end, also while it has no
//! name: one inode, and as bytes its blocks, or its content in the row. (What had lost its name and its row
//! before quotas were turned on counts from its next change on.) What has a project counts for it, too.
//!
//! Thread safety: as [`FileSystem`]. The *gate* is held shared from before an operation takes its names until
//! its batch is applied, and exclusively while quotas are turned on or off: so no batch is half counted. The
//! table of accounts has one lock, held for moments and with nothing else. Threads that set limits take
//! turns, and so do those that write what was counted.
//!
//! Invariants: the usage in the table is that in the store, but for batches that are being applied and for a
//! count that has not been written yet, whatever is charged meanwhile; with quotas off, an operation pays for
//! one look at the gate. Files of a store with quotas are not changed by a kvfs that does not know of them:
//! its superblock record has another version.

mod charge;
mod count;
mod exclusive;
mod project;
mod record;
mod table;

use std::sync::Arc;

use kvfs_locks::{Mutex, RwLock, class};
use kvfs_store::clock::Clock;
use kvfs_store::{Batch, Durability, KeyRange, Keyspace, KeyspaceKind, Read, Store};
use kvfs_txn::Admission;

use charge::Change;
pub(crate) use charge::{Charges, Gate};
use count::Sums;
pub(crate) use count::{check_usage, forget_count, stage_recount};
pub use project::Project;
pub(crate) use project::expect_same_project;
pub(crate) use record::{InvalidRecord, QuotaMerge, invalid_record};
pub(crate) use table::Pending;

use crate::schema::Keyspaces;
use crate::superblock::LiveSuperblock;
use crate::{FileSystem, FsError, Result, Timestamp};
use record::{Part, key};
use table::Accounts;

/// Name of the keyspace; users' names have no control characters.
pub(crate) const QUOTA_KEYSPACE: &str = "\u{1}quota";

/// Time for which a soft limit may be overstepped, unless told otherwise (seconds): a week.
pub const GRACE_SECONDS: u64 = 7 * 24 * 3600;

/// Kinds of owners whose usage is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaKind {
    /// A user's.
    User,
    /// A group's.
    Group,
    /// That of a project: of the trees that it is given to.
    Project,
}

impl QuotaKind {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
            Self::Project => "project",
        }
    }

    fn letter(self) -> u8 {
        match self {
            Self::User => b'u',
            Self::Group => b'g',
            Self::Project => b'p',
        }
    }

    fn from_letter(letter: u8) -> Option<Self> {
        match letter {
            b'u' => Some(Self::User),
            b'g' => Some(Self::Group),
            b'p' => Some(Self::Project),
            _ => None,
        }
    }
}

/// Bytes and inodes, or a change of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Content: blocks of 4 KiB, or the length of what is in rows.
    pub bytes: i64,
    /// Files, directories and all else.
    pub inodes: i64,
}

impl Usage {
    fn plus(self, other: Self) -> Self {
        // Wrapping, so that changes may be folded in any grouping; sound usage never wraps.
        Self { bytes: self.bytes.wrapping_add(other.bytes), inodes: self.inodes.wrapping_add(other.inodes) }
    }

    fn minus(self, other: Self) -> Self {
        Self { bytes: self.bytes.wrapping_sub(other.bytes), inodes: self.inodes.wrapping_sub(other.inodes) }
    }
}

/// How much a user, a group or a project may have; 0: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// More than this for no longer than the grace time.
    pub bytes_soft: u64,
    /// Never more than this.
    pub bytes_hard: u64,
    /// As for bytes.
    pub inodes_soft: u64,
    /// As for bytes.
    pub inodes_hard: u64,
    /// How long soft limits may be overstepped (seconds).
    pub grace_seconds: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes_soft: 0, bytes_hard: 0, inodes_soft: 0, inodes_hard: 0, grace_seconds: GRACE_SECONDS }
    }
}

impl Limits {
    fn are_none(&self) -> bool {
        [self.bytes_soft, self.bytes_hard, self.inodes_soft, self.inodes_hard] == [0; 4]
    }
}

/// What there is to say of one user, group or project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaLine {
    /// Of what kind.
    pub kind: QuotaKind,
    /// Which.
    pub id: u32,
    /// What there is.
    pub usage: Usage,
    /// Of its bytes those that would come free without it; `None`: [`Quotas::tell_exclusive`] was not asked.
    pub bytes_exclusive: Option<i64>,
    /// What there may be.
    pub limits: Limits,
    /// Until when the soft limit of bytes may be overstepped (seconds since 1970); `None`: it is kept.
    pub bytes_until: Option<u64>,
    /// The same for inodes.
    pub inodes_until: Option<u64>,
}

/// What is counted while quotas are on.
#[derive(Debug)]
struct Counted {
    keyspace: Keyspace,
    accounts: Accounts,
    /// Usage in the store as it was when counting began: it says nothing, and is not in the table. Empty
    /// where everything had been counted.
    uncounted: Sums,
    /// What the usage in the store lacks of what there is. `None`: nothing, or it is not known yet.
    lacking: Mutex<Option<Sums>, class::FsQuotaLacking>,
    /// Held while limits are set, so that the store and the table agree on which setting was the last.
    setting: Mutex<(), class::FsQuotaSetting>,
}

/// The quotas of a store that holds a file system: one table for all its views.
pub struct Quotas {
    store: Arc<dyn Store>,
    keyspaces: Keyspaces,
    clock: Arc<dyn Clock>,
    admission: Arc<Admission>,
    superblock: Arc<LiveSuperblock>,
    is_read_only: bool,
    /// `None` while quotas are off. The lock is the gate.
    counted: RwLock<Option<Arc<Counted>>, class::FsQuotaCounted>,
}

/// Makes it where it is missing.
pub(crate) fn open_keyspace(store: &dyn Store) -> Result<Keyspace> {
    Ok(store.open_keyspace(QUOTA_KEYSPACE, KeyspaceKind::Tuple, Some(Arc::new(QuotaMerge)))?)
}

/// Opens the keyspace of quotas where the store has them; before anything of it is read or merged.
pub(crate) fn find_keyspace(store: &dyn Store) -> Result<Option<Keyspace>> {
    let has_one = store.keyspaces().iter().any(|info| info.name == QUOTA_KEYSPACE);
    if has_one { open_keyspace(store).map(Some) } else { Ok(None) }
}

/// Whether quotas are on in what `read` shows, and if so, whether everything has been counted.
pub(crate) fn state_of(read: &dyn Read, keyspace: Keyspace) -> Result<Option<bool>> {
    let state = read.get(keyspace, record::STATE_KEY)?;
    state.map(|bytes| record::decode_state(&bytes)).transpose()
}

/// Whether quotas are on in what `read` shows, whatever else can be said of them.
pub(crate) fn are_on(read: &dyn Read, keyspace: Keyspace) -> Result<bool> {
    Ok(read.get(keyspace, record::STATE_KEY)?.is_some())
}

impl FileSystem {
    /// The quotas of the store; all views have the same.
    pub fn quotas(&self) -> &Quotas {
        &self.shared.quotas
    }
}

impl Quotas {
    /// Quotas that are off.
    pub(crate) fn new(
        store: &Arc<dyn Store>,
        keyspaces: Keyspaces,
        clock: &Arc<dyn Clock>,
        admission: &Arc<Admission>,
        superblock: &Arc<LiveSuperblock>,
        is_read_only: bool,
    ) -> Self {
        Self {
            store: Arc::clone(store),
            keyspaces,
            clock: Arc::clone(clock),
            admission: Arc::clone(admission),
            superblock: Arc::clone(superblock),
            is_read_only,
            counted: RwLock::default(),
        }
    }

    /// Keeps quotas from being turned on or off while it is held.
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.counted.read()
    }

    /// Whether quotas are on.
    pub fn are_on(&self) -> bool {
        self.counted.read().is_some()
    }

    /// All users, groups and projects that have something, or a limit; users first, by number. Empty while
    /// quotas are off.
    pub fn report(&self) -> Vec<QuotaLine> {
        let quotas = self.counted.read().clone();
        quotas.map_or_else(Vec::new, |quotas| quotas.accounts.lines())
    }

    /// What there is to say of one user, group or project. `None` while quotas are off.
    pub fn get(&self, kind: QuotaKind, id: u32) -> Option<QuotaLine> {
        let quotas = self.counted.read().clone()?;
        Some(quotas.accounts.line(kind, id))
    }

    /// Sets limits, durably within the commit interval. A user that has more already keeps it.
    ///
    /// # Errors
    /// `Invalid` while quotas are off, and for project 0, which is none; store errors.
    pub fn set(&self, kind: QuotaKind, id: u32, limits: Limits) -> Result<()> {
        self.change(kind, id, |_| limits)
    }

    /// As [`Self::set`], with what `change` makes of the limits that there are: no other thread changes any
    /// meanwhile.
    ///
    /// # Errors
    /// As there.
    pub fn change(&self, kind: QuotaKind, id: u32, change: impl FnOnce(Limits) -> Limits) -> Result<()> {
        self.check_writable()?;
        if (kind, id) == (QuotaKind::Project, 0) {
            return Err(FsError::Invalid("project 0 is none"));
        }
        let gate = self.counted.read();
        let quotas = gate.as_ref().ok_or(QUOTAS_ARE_OFF)?;
        let _turn = quotas.setting.lock();
        let limits = change(quotas.accounts.line(kind, id).limits);
        let mut batch = Batch::new();
        let key = key(kind, id, Part::Limits);
        if limits.are_none() && limits.grace_seconds == GRACE_SECONDS {
            batch.delete(quotas.keyspace, key);
        } else {
            batch.put(quotas.keyspace, key, record::encode_limits(&limits));
        }
        self.store.apply(batch, Durability::Buffered)?;
        quotas.accounts.limit(kind, id, limits, self.now());
        Ok(())
    }

    fn check_writable(&self) -> Result<()> {
        if self.is_read_only { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    /// Seconds since 1970.
    fn now(&self) -> i64 {
        Timestamp::from(self.clock.wall()).seconds
    }

    /// Writes since when soft limits are overstepped, where that has changed.
    pub(crate) fn write_times(&self) -> Result<()> {
        let gate = self.counted.read();
        let Some(quotas) = gate.as_ref() else { return Ok(()) };
        let changed = quotas.accounts.changed_since();
        if changed.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new();
        for &(kind, id, since) in &changed {
            batch.put(quotas.keyspace, key(kind, id, Part::Since), record::encode_since(since));
        }
        self.store.apply(batch, Durability::Buffered)?;
        quotas.accounts.wrote_since(&changed);
        Ok(())
    }

    /// Reads all accounts.
    fn load(&self, keyspace: Keyspace, is_counted: bool) -> Result<Arc<Counted>> {
        let accounts = Accounts::new(is_counted);
        let mut uncounted = Sums::new();
        let mut cursor = self.store.cursor(keyspace, KeyRange::all())?;
        cursor.next()?;
        while let Some((key, value)) = cursor.entry() {
            match record::parse_key(key) {
                Some((kind, id, Part::Usage)) if !is_counted => {
                    uncounted.insert((kind, id), record::decode_usage(value)?);
                }
                Some((kind, id, Part::Usage)) => {
                    accounts.add(&[Change { kind, id, usage: record::decode_usage(value)? }]);
                }
                Some((kind, id, Part::Limits)) => {
                    accounts.limit(kind, id, record::decode_limits(value)?, 0);
                }
                Some((kind, id, Part::Since)) => {
                    accounts.set_since(kind, id, record::decode_since(value)?);
                }
                None => {}
            }
            cursor.next()?;
        }
        let (setting, lacking) = Default::default();
        Ok(Arc::new(Counted { keyspace, accounts, uncounted, lacking, setting }))
    }
}

const QUOTAS_ARE_OFF: FsError = FsError::Invalid("quotas are off; turn them on first");
