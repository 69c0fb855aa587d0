//! The lock manager through its door, [`crate::Admission`].

mod deadlock;
mod escalation;
mod kept;
mod list;
mod model;
mod ranges;
mod rules;
mod scheduled;
mod scripts;
mod time;
mod upgrade;

use std::sync::Arc;
use std::time::Duration;

use kvfs_store::TxnId;
use kvfs_store::clock::ManualClock;

use crate::{
    Admission, Doom, LockName, LockOptions, LockOwner, Owner, Party, Refused, Ticket, TxnTraits, Want,
};

/// An admission whose time stands still.
pub(super) struct Fixture {
    pub(super) admission: Arc<Admission>,
    pub(super) clock: Arc<ManualClock>,
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self::with(LockOptions::default())
    }

    pub(super) fn with(options: LockOptions) -> Self {
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1)));
        let admission = Arc::new(Admission::new(Arc::<ManualClock>::clone(&clock), options));
        Self { admission, clock }
    }

    pub(super) fn begin(&self, id: u64) -> Arc<LockOwner> {
        self.begin_as(id, &TxnTraits::default())
    }

    pub(super) fn begin_as(&self, id: u64, traits: &TxnTraits) -> Arc<LockOwner> {
        let owner = Owner { uid: 1000, pid: 100 + id as u32, name: format!("p{id}") };
        self.admission.begin(TxnId(id), TxnTraits { owner, ..traits.clone() })
    }

    /// One whole operation of a transaction.
    pub(super) fn lock(&self, owner: &LockOwner, wants: &[Want<'_>]) -> Result<(), Refused> {
        self.admission.try_lock(owner, wants, None)
    }

    /// One whole operation on the main line.
    pub(super) fn main(&self, wants: &[Want<'_>]) -> Result<(), Refused> {
        self.admission.try_acquire(Party::Main { pid: 7 }, wants, |_| true, None).map(drop)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.admission.list().is_empty()
            && self.admission.bytes() == 0
            && self.admission.latches().held_count() + self.admission.latches().waiting_count() == 0
            && self.admission.locks().is_unused()
    }
}

/// The ticket of an operation that must wait.
pub(super) fn ticket(outcome: Result<(), Refused>) -> Ticket {
    match outcome {
        Err(Refused::Wait(ticket)) => ticket,
        other => panic!("not waiting: {other:?}"),
    }
}

/// The doom of an operation that was refused.
pub(super) fn doom(outcome: Result<(), Refused>) -> Doom {
    match outcome {
        Err(Refused::Doomed(doom)) => doom,
        other => panic!("not doomed: {other:?}"),
    }
}

pub(super) const fn entry(directory: u64, name: &[u8]) -> LockName<'_> {
    LockName::Entry { directory, name }
}

pub(super) const fn blocks(first: u64, end: u64) -> LockName<'static> {
    LockName::Blocks { inode: 9, first, end }
}

pub(super) const fn identity(directory: u64) -> LockName<'static> {
    LockName::Identity { directory }
}
