//! The mount that has the store open to be written to: an object that it writes again and again.
//!
//! Purpose: `SlateDB` lets a second writer in at once, and fences the first. So a writer looks first whether
//! there is one: the record of a mount that is alive changes within the lease that stands in it. It has no
//! clock in it, so clocks may differ.
//!
//! A writer that was held up for longer than its lease may find that another one has the store. It needs no
//! look at the record for that: to be durable a batch becomes an object of the log that must not be there
//! yet, and the next writer has put one of its own there when it opened. So what is acknowledged is what the
//! next writer found.
//!
//! Thread safety: one thread, ended by its owner. Invariants: the record promises nothing about writes, which
//! fencing alone keeps apart; a record goes with the close of its store, or is found to be dead; a mount
//! removes none but its own.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use kvfs_locks::{Condvar, Mutex, class};
use kvfs_store::{Result, StoreError};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::error::of_objects;
use crate::health::Health;
use crate::shared::Shared;
use crate::wait_limit::while_answered;

/// The object, beside those of `SlateDB`.
const HOLDER: &str = "kvfs-holder";

/// For messages.
const LOOKING: &str = "looking who has the store open";

/// Records are written, and looked for, so often within a lease.
const BEATS: u32 = 4;

/// A lease as it can be: with a shorter one a slow request would cost the store, with a longer one a dead
/// mount would keep it for too long.
pub const LEASES: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_mins(10);

/// Who opens a store to write to it.
#[derive(Debug, Clone)]
pub struct Claimant {
    /// For other users, such as "host box, /srv/store, pid 4711"; one line.
    pub name: String,
    /// Equal for those of which one at a time can have the store open, whatever their record says; empty: for
    /// none.
    pub identity: String,
    /// It is dead when its record has not changed for so long.
    pub lease: Duration,
    /// It takes the store over from one that is alive, and gives up what that one's journal alone holds.
    pub takes_over: bool,
}

impl Default for Claimant {
    fn default() -> Self {
        let lease = Duration::from_secs(6);
        Self { name: "a mount".to_owned(), identity: String::new(), lease, takes_over: false }
    }
}

/// The last line in the record of a holder that has a journal on its local disk.
const JOURNAL: &str = "journal";

/// Who holds a store, and how.
#[derive(Debug, Clone)]
pub(crate) struct Holding {
    pub(crate) claimant: Claimant,
    pub(crate) has_journal: bool,
}

impl Holding {
    fn record(&self, beat: u64) -> String {
        let Claimant { name, identity, lease, .. } = &self.claimant;
        let journal = if self.has_journal { format!("{JOURNAL}\n") } else { String::new() };
        format!("{name}\n{identity}\n{beat}\n{}\n{journal}", lease.as_millis())
    }
}

/// The name of another holder, for messages.
pub(crate) fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(200).collect()
}

/// The lease in a record; `None`: it has none, as those of older versions.
fn lease_of(record: &str) -> Option<Duration> {
    let millis = record.lines().nth(3)?.parse().ok()?;
    Some(Duration::from_millis(millis).min(*LEASES.end()))
}

/// Where the record is.
pub(crate) struct Place {
    service: Arc<dyn ObjectStore>,
    object: Path,
}

impl Place {
    pub(crate) fn of(service: &Arc<dyn ObjectStore>, prefix: &Path) -> Self {
        Self { service: Arc::clone(service), object: prefix.clone().join(HOLDER) }
    }

    async fn read(&self) -> Result<Option<String>> {
        let failed = |error: &object_store::Error| of_objects(LOOKING, error);
        let found = match self.service.get(&self.object).await {
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            found => found.map_err(|error| failed(&error))?,
        };
        let bytes = found.bytes().await.map_err(|error| failed(&error))?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Returns when `claimant` may open the store to write to it, which ends the writes of the mount that has
    /// it open. Whether that may be alive, cut off, and have a journal.
    ///
    /// # Errors
    /// Another one has it open, and is alive; a look is not answered within the limit of `health`.
    pub(crate) async fn wait(&self, claimant: &Claimant, health: &Health) -> Result<bool> {
        let look = || while_answered(LOOKING, health, self.read());
        let Some(known) = look().await? else { return Ok(false) };
        let mut lines = known.lines();
        let (name, identity) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let is_own = !identity.is_empty() && identity == claimant.identity;
        if claimant.takes_over || is_own {
            return Ok(false);
        }
        let lease = lease_of(&known).unwrap_or(claimant.lease);
        for _ in 0..BEATS {
            tokio::time::sleep(lease / BEATS).await;
            match look().await? {
                None => return Ok(false),
                Some(record) if record == known => {}
                Some(_) => {
                    let text = format!(
                        "it is open elsewhere, and alive: {}; unmount it there, or take it over with -o take_over",
                        shown(name)
                    );
                    let error = std::io::Error::new(std::io::ErrorKind::ResourceBusy, text);
                    return Err(StoreError::io(LOOKING, error));
                }
            }
        }
        Ok(lines.nth(2) == Some(JOURNAL))
    }

    /// Whether it was written within a lease does not matter: the next one may be.
    async fn write(&self, record: &str, lease: Duration) {
        let put = self.service.put(&self.object, record.to_owned().into());
        let _ = tokio::time::timeout(lease, put).await;
    }

    /// Removes `record`, unless there is another one: a mount that has taken the store over may not have been
    /// noticed.
    async fn remove(&self, record: &str, lease: Duration) {
        let remove = async {
            if self.read().await.is_ok_and(|found| found.as_deref() == Some(record)) {
                // Where it stays it is found to be dead.
                let _ = self.service.delete(&self.object).await;
            }
        };
        let _ = tokio::time::timeout(lease, remove).await;
    }
}

struct Asked {
    is_over: Mutex<bool, class::EngineSlatedbHolderOver>,
    changed: Condvar,
}

/// The thread that writes the record of an open store.
pub(crate) struct Holder {
    asked: Arc<Asked>,
    thread: Option<JoinHandle<()>>,
}

impl Holder {
    pub(crate) fn start(shared: &Arc<Shared>, place: Place, holding: Holding) -> Result<Self> {
        let asked = Arc::new(Asked { is_over: Mutex::default(), changed: Condvar::default() });
        let (theirs, shared) = (Arc::clone(&asked), Arc::clone(shared));
        let thread = std::thread::Builder::new().name("kvfs-slate-hold".into());
        let thread = thread.spawn(move || run(&shared, &theirs, &place, &holding));
        let thread = thread.map_err(|error| StoreError::io("starting a thread", error))?;
        Ok(Self { asked, thread: Some(thread) })
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        *self.asked.is_over.lock() = true;
        self.asked.changed.notify_all();
        // A panic of the thread has been told of already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(shared: &Shared, asked: &Asked, place: &Place, holding: &Holding) {
    let lease = holding.claimant.lease;
    for beat in 0.. {
        // The record is another one's by now, if there is one.
        if shared.failure().is_some() {
            return;
        }
        let record = holding.record(beat);
        shared.wait(place.write(&record, lease));
        let mut is_over = asked.is_over.lock();
        if !*is_over {
            asked.changed.wait_for(&mut is_over, lease / BEATS);
        }
        if *is_over {
            drop(is_over);
            if shared.failure().is_none() {
                shared.wait(place.remove(&record, lease));
            }
            return;
        }
    }
}
