//! Whether object storage answers, and what is said in the log when it does not.
//!
//! Purpose: `SlateDB` makes a failed request again and again, and says so to no user. Here each outcome is
//! seen. Failures that go on for a while are an outage: it is told once, with what follows and what to do,
//! and its end is told, too. Reads and writes are judged apart, since a bucket without room or permission may
//! still be read.
//!
//! Thread safety: shared; one short lock where something fails or has failed, none otherwise. Invariant: an
//! outage that was told of is told to be over.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kvfs_locks::{Mutex, class};
use kvfs_store::clock::Clock;

use kvfs_objects::brief;

/// Failures are told of when there was nothing else for so long.
const TOLD_AFTER: Duration = Duration::from_secs(5);

/// What is judged by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Reads,
    Writes,
}

/// From the first failure without a success behind it.
#[derive(Debug)]
struct Outage {
    since: Duration,
    is_told: bool,
}

/// See the module.
pub(crate) struct Health {
    /// Of the storage, for messages.
    name: String,
    timeout: Option<Duration>,
    clock: Arc<dyn Clock>,
    outages: [Mutex<Option<Outage>, class::EngineSlatedbOutage>; 2],
    /// There is an outage, or the begin of one, by direction.
    is_failing: [AtomicBool; 2],
    /// By direction.
    answers: [AtomicU64; 2],
    told: AtomicU64,
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Health {
    pub(crate) fn new(name: String, timeout: Option<Duration>, clock: Arc<dyn Clock>) -> Self {
        Self {
            name,
            timeout,
            clock,
            outages: Default::default(),
            is_failing: Default::default(),
            answers: Default::default(),
            told: AtomicU64::new(0),
        }
    }

    /// How long calls wait for an answer; `None`: for ever.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Answers so far, of any kind but failures.
    pub(crate) fn answers(&self) -> u64 {
        self.answers_to(Direction::Reads) + self.answers_to(Direction::Writes)
    }

    /// Those to requests of this kind.
    pub(crate) fn answers_to(&self, direction: Direction) -> u64 {
        self.answers[direction as usize].load(Ordering::Relaxed)
    }

    /// Outages so far that were told of.
    pub(crate) fn outages(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }

    /// Whether the last request of this kind failed.
    pub(crate) fn is_failing(&self, direction: Direction) -> bool {
        self.is_failing[direction as usize].load(Ordering::Relaxed)
    }

    /// The storage has answered. What is to be told.
    pub(crate) fn answered(&self, direction: Direction) -> Option<String> {
        self.answers[direction as usize].fetch_add(1, Ordering::Relaxed);
        if !self.is_failing(direction) {
            return None;
        }
        let ended = {
            let mut outage = self.outages[direction as usize].lock();
            self.is_failing[direction as usize].store(false, Ordering::Relaxed);
            outage.take()?
        };
        let took = self.clock.monotonic().saturating_sub(ended.since).as_secs();
        let verb = match direction {
            Direction::Reads => "answers",
            Direction::Writes => "takes writes",
        };
        ended.is_told.then(|| format!("object storage {} {verb} again, after {took} s", self.name))
    }

    /// A request was in vain. What is to be told.
    pub(crate) fn failed(&self, direction: Direction, error: &object_store::Error) -> Option<String> {
        let now = self.clock.monotonic();
        let mut outage = self.outages[direction as usize].lock();
        self.is_failing[direction as usize].store(true, Ordering::Relaxed);
        let outage = outage.get_or_insert(Outage { since: now, is_told: false });
        let lasts = now.saturating_sub(outage.since);
        if outage.is_told || lasts < TOLD_AFTER {
            return None;
        }
        outage.is_told = true;
        self.told.fetch_add(1, Ordering::Relaxed);
        let (name, secs, error, advice) =
            (&self.name, lasts.as_secs(), brief(&error.to_string()), advice(error));
        let limit = self.timeout.map_or("for as long as it takes".to_owned(), |timeout| {
            format!("for up to {timeout:?} each (-o timeout=), and then fail with EIO")
        });
        Some(match direction {
            Direction::Reads => format!(
                "object storage {name} has answered nothing for {secs} s: {error}. What is cached is read; other reads wait {limit}. \
                 All goes on by itself when it answers. {advice}"
            ),
            Direction::Writes => format!(
                "object storage {name} has taken no write for {secs} s: {error}. Files can be written until memory for that is full; \
                 syncs, and then writes, wait {limit}. Nothing that was acknowledged is lost, and all goes on by itself when it \
                 answers. {advice}"
            ),
        })
    }
}

/// What to do about it.
fn advice(error: &object_store::Error) -> &'static str {
    match error {
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            "The credentials are refused: give them their rights again; those of an instance role or a web identity are renewed by \
             themselves, those of the environment only by another mount."
        }
        _ => "See to the network, the service, and the room in the bucket.",
    }
}

#[cfg(test)]
mod tests;
