//! A transaction as the lock manager sees it.
//!
//! Purpose: [`LockOwner`] is the handle of a transaction that holds locks; it knows whether the transaction
//! may still go on.
//!
//! Thread safety: all methods are `&self`.
//!
//! Invariants: phases go forward: active → committing → decided → ended, save that a commit that failed with
//! nothing done goes back to active; doomed is reached from active and committing only, never from decided,
//! and is not left but for ended.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use kvfs_locks::class;
use kvfs_store::TxnId;

use super::doom::{Doom, DoomReason, Owner, Rival};
use super::table::LockTable;
use crate::object::ObjectKey;
use crate::sync::Mutex;

/// What is known of a transaction at its begin.
#[derive(Debug, Clone, Default)]
pub struct TxnTraits {
    /// As a nice value: smaller is more important.
    pub priority: i32,
    /// How long the transaction may take; `None`: as long as it likes.
    pub timeout: Option<Duration>,
    /// How long the transaction may go without an operation ([`LockOwner::touch`]); `None`: as long as it
    /// likes.
    pub idle_max: Option<Duration>,
    /// How long an operation of it may wait for locks; `None`: as long as it takes.
    pub lock_wait_max: Option<Duration>,
    /// The process that asks.
    pub owner: Owner,
}

/// How far a transaction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Phase {
    /// It takes locks, and can be doomed.
    Active,
    /// It prepares its commit: only what can't wait for it dooms it.
    Committing,
    /// Its commit takes place: it can't be doomed.
    Decided,
    /// It can never commit; it holds nothing.
    Doomed,
    /// It is over; it holds nothing.
    Ended,
}

impl Phase {
    const ALL: [Self; 5] = [Self::Active, Self::Committing, Self::Decided, Self::Doomed, Self::Ended];

    fn may_lock(self) -> bool {
        matches!(self, Self::Active | Self::Committing)
    }
}

/// How a transaction stops holding locks.
pub(super) enum Stop {
    /// Only while it is active.
    Doom(Doom),
    /// Until its commit is decided.
    DoomLate(Doom),
    End,
}

/// What the tables know of a transaction.
pub(crate) struct OwnerState {
    pub(super) id: TxnId,
    pub(super) traits: TxnTraits,
    pub(super) begun: Duration,
    /// When its newest operation began (nanoseconds, by the clock of the table).
    used: AtomicU64,
    pub(super) names_count: AtomicUsize,
    pub(super) bytes: AtomicUsize,
    /// Memory of the locks of all transactions of its user (bytes).
    pub(super) user_bytes: Arc<AtomicUsize>,
    /// Written under `inner` only.
    phase: AtomicU8,
    inner: Mutex<Inner, class::TxnLockOwnerInner>,
}

#[derive(Default)]
struct Inner {
    objects: Vec<ObjectKey>,
    doom: Option<Doom>,
}

impl OwnerState {
    pub(super) fn new(id: TxnId, traits: TxnTraits, begun: Duration, user_bytes: Arc<AtomicUsize>) -> Self {
        Self {
            id,
            traits,
            begun,
            used: AtomicU64::new(nanos(begun)),
            names_count: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            user_bytes,
            phase: AtomicU8::new(Phase::Active as u8),
            inner: Mutex::default(),
        }
    }

    pub(super) fn phase(&self) -> Phase {
        Phase::ALL[usize::from(self.phase.load(Ordering::Acquire))]
    }

    /// When its newest operation began, or the transaction itself.
    pub(super) fn used(&self) -> Duration {
        Duration::from_nanos(self.used.load(Ordering::Relaxed))
    }

    pub(super) fn rival(&self) -> Rival {
        Rival::Txn { id: self.id, owner: self.traits.owner.clone() }
    }

    /// Names held now.
    pub(super) fn names_count(&self) -> usize {
        self.names_count.load(Ordering::Relaxed)
    }

    /// Memory of its locks (bytes).
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn doom(&self) -> Option<Doom> {
        self.inner.lock().doom.clone()
    }

    /// Whether it may take further locks.
    pub(crate) fn check(&self) -> Result<(), Doom> {
        if self.phase().may_lock() { Ok(()) } else { Err(self.end_reason()) }
    }

    fn end_reason(&self) -> Doom {
        self.inner.lock().doom.clone().unwrap_or(Doom::new(DoomReason::Ended))
    }

    /// Notes that it holds something of one more object, so that its end finds it there; whether it is the
    /// first one. The caller must hold the lock of the object's shard.
    pub(super) fn note_object(&self, key: ObjectKey) -> Result<bool, Doom> {
        let mut inner = self.inner.lock();
        if !self.phase().may_lock() {
            return Err(inner.doom.clone().unwrap_or(Doom::new(DoomReason::Ended)));
        }
        inner.objects.push(key);
        Ok(inner.objects.len() == 1)
    }

    /// The objects that it holds something of.
    pub(super) fn objects(&self) -> Vec<ObjectKey> {
        self.inner.lock().objects.clone()
    }

    /// Goes on from `from` to `to`.
    pub(super) fn advance(&self, from: Phase, to: Phase) -> Result<(), Doom> {
        let inner = self.inner.lock();
        if self.phase() == from {
            self.phase.store(to as u8, Ordering::Release);
            Ok(())
        } else {
            Err(inner.doom.clone().unwrap_or(Doom::new(DoomReason::Ended)))
        }
    }

    /// Stops it, if it can be stopped so: the objects that it holds something of are the caller's to release.
    pub(super) fn stop(&self, stop: Stop) -> Option<Vec<ObjectKey>> {
        let mut inner = self.inner.lock();
        let phase = self.phase();
        let (allowed, next, doom) = match stop {
            Stop::Doom(doom) => (phase == Phase::Active, Phase::Doomed, Some(doom)),
            Stop::DoomLate(doom) => (phase.may_lock(), Phase::Doomed, Some(doom)),
            Stop::End => (phase != Phase::Ended, Phase::Ended, None),
        };
        if !allowed {
            return None;
        }
        if doom.is_some() {
            inner.doom = doom;
        }
        self.phase.store(next as u8, Ordering::Release);
        Some(std::mem::take(&mut inner.objects))
    }
}

/// A transaction's handle in the lock manager. Its locks last until [`LockOwner::end`], a doom, or until the
/// handle is dropped.
pub struct LockOwner {
    pub(crate) table: Arc<LockTable>,
    pub(crate) state: Arc<OwnerState>,
}

impl fmt::Debug for LockOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockOwner")
            .field("id", &self.state.id)
            .field("phase", &self.phase())
            .finish_non_exhaustive()
    }
}

impl LockOwner {
    /// The transaction's name.
    pub fn id(&self) -> TxnId {
        self.state.id
    }

    /// As begun.
    pub fn traits(&self) -> &TxnTraits {
        &self.state.traits
    }

    /// How far it is.
    pub fn phase(&self) -> Phase {
        self.state.phase()
    }

    /// Why the transaction can't go on, if it can't: it was doomed, or [`LockOwner::end`] was called. One
    /// atomic load while it can. A read that took locks asks once more before it answers: what was read after
    /// the doom may not fit what was read before.
    pub fn doomed(&self) -> Option<Doom> {
        match self.phase() {
            Phase::Doomed | Phase::Ended => Some(self.state.end_reason()),
            _ => None,
        }
    }

    /// Notes that an operation of the transaction begins now.
    pub fn touch(&self) {
        self.state.used.store(nanos(self.table.now()), Ordering::Relaxed);
    }

    /// Time since the newest operation of the transaction began, or since its begin.
    pub fn idle(&self) -> Duration {
        self.table.now().saturating_sub(self.state.used())
    }

    /// Dooms the transaction if it is active; releases its locks, and has its waiting operations refused.
    /// Whether this call did it.
    pub fn doom(&self, doom: Doom) -> bool {
        self.table.stop(&self.state, Stop::Doom(doom))
    }

    /// As [`LockOwner::doom`], and also when it is committing and not decided yet.
    pub fn doom_late(&self, doom: Doom) -> bool {
        self.table.stop(&self.state, Stop::DoomLate(doom))
    }

    /// Nothing can doom it any more, save [`LockOwner::doom_late`], a deadlock among its waits, and dirty
    /// pages of the main line that meet its locks ([`Party::Launder`](crate::Party)). It can still take
    /// locks. O(waiting operations).
    ///
    /// # Errors
    /// It is doomed, also by such a page that waits already; or it is not active any more.
    pub fn begin_commit(&self) -> Result<(), Doom> {
        self.table.begin_commit(&self.state)
    }

    /// Nothing can doom it any more. The caller must call this right before the commit record is written.
    ///
    /// # Errors
    /// It was doomed late, or no commit has begun.
    pub fn decide(&self) -> Result<(), Doom> {
        self.state.advance(Phase::Committing, Phase::Decided)
    }

    /// A commit that failed with nothing done: the transaction is active again.
    ///
    /// # Errors
    /// It was doomed, or no commit has begun.
    pub fn undecide(&self) -> Result<(), Doom> {
        self.state
            .advance(Phase::Decided, Phase::Active)
            .or_else(|_| self.state.advance(Phase::Committing, Phase::Active))
    }

    /// Releases everything and lets waiters go on; operations of the transaction that wait are refused.
    pub fn end(&self) {
        self.table.stop(&self.state, Stop::End);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Drop for LockOwner {
    fn drop(&mut self) {
        self.end();
    }
}
