//! Which pushes are under way, and since when.
//!
//! What a push of more than a week wrote first is older than a week, and nothing refers to it before the push
//! ends. So a push writes an object when it begins and again twice a day, and removes them when it has ended.
//! As long as the last of them is fresh, `prune` counts the week from the first one. What a push that was
//! killed leaves counts for two days, and for a month as long as one is under way that began in these two
//! days and relies on it. They are no lock: nothing that is removed relies on them.
//!
//! Thread safety: belongs to a push; functions. Invariant: ages are told by the clock of the service.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use kvfs_store::clock::Clock;

use crate::error::Result;
use crate::layout::{PUSHING, hex};
use crate::repository::Repository;
use crate::seal::random;

/// How long after one object the next one is written.
const INTERVAL: Duration = Duration::from_hours(12);

/// So long after its last object a push counts as under way.
const FRESH: Duration = Duration::from_hours(48);

/// So long after its last object a push counts at most that another one relies on. Where many machines push,
/// one is killed every other day, and each of them may rely on the one before.
const RELIED_ON_MAX: Duration = Duration::from_hours(30 * 24);

/// Monotonic, and since 1970.
pub(crate) type Moment = (Duration, Duration);

pub(crate) fn moment(clock: &dyn Clock) -> Moment {
    (clock.monotonic(), clock.wall())
}

/// How long ago `then` was, at least. A machine that sleeps counts no monotonic time.
pub(crate) fn age(then: Moment, now: Moment) -> Duration {
    now.0.saturating_sub(then.0).max(now.1.saturating_sub(then.1))
}

/// A push that is under way.
pub(crate) struct Pushing<'r> {
    repository: &'r Repository,
    name: String,
    /// Objects that were written.
    count: u64,
    /// When the last of them was.
    written: Moment,
}

impl<'r> Pushing<'r> {
    pub(crate) fn begin(repository: &'r Repository, now: Moment) -> Result<Self> {
        let mut name = [0; 8];
        random(&mut name)?;
        let mut pushing = Self { repository, name: hex(&name), count: 0, written: now };
        pushing.write(now)?;
        Ok(pushing)
    }

    /// Says that it goes on, where it has not for long.
    pub(crate) fn go_on(&mut self, now: Moment) -> Result<()> {
        if age(self.written, now) < INTERVAL { Ok(()) } else { self.write(now) }
    }

    pub(crate) fn end(self) -> Result<()> {
        self.repository.remote().delete((0..self.count).map(|number| self.object(number)))
    }

    fn object(&self, number: u64) -> String {
        format!("{PUSHING}/{}/{number}", self.name)
    }

    fn write(&mut self, now: Moment) -> Result<()> {
        let object = self.object(self.count);
        let sealed = self.repository.sealer().seal(&object, &[])?;
        self.repository.remote().put_new(&object, sealed)?;
        (self.count, self.written) = (self.count + 1, now);
        Ok(())
    }
}

/// Pushes of any machine.
pub(crate) struct Pushes {
    /// When the first of those began that are under way, or that such a one relies on.
    pub(crate) since: Option<Duration>,
    /// Objects of the others.
    pub(crate) ended: Vec<String>,
}

impl Pushes {
    /// `now`: by the clock of the service.
    pub(crate) fn list(repository: &Repository, now: Duration) -> Result<Self> {
        let mut objects: BTreeMap<String, Vec<(Duration, String)>> = BTreeMap::new();
        repository.remote().list(PUSHING, |name, written| {
            let push = name.split('/').next().unwrap_or(name);
            objects.entry(push.to_owned()).or_default().push((written, format!("{PUSHING}/{name}")));
            Ok(())
        })?;
        let mut objects: Vec<_> = objects.into_values().collect();
        let last_of = |objects: &[(Duration, String)]| objects.iter().map(|(written, _)| *written).max();
        // The last one first: those that may rely on another one have been looked at before it.
        objects.sort_by_key(|objects| Reverse(last_of(objects)));
        let mut pushes = Self { since: None, ended: Vec::new() };
        for objects in objects {
            let fresh_at = pushes.since.map_or(now, |since| since.min(now));
            let counts =
                |last| fresh_at.saturating_sub(last) < FRESH && now.saturating_sub(last) < RELIED_ON_MAX;
            if last_of(&objects).is_some_and(counts) {
                let times = objects.iter().map(|(written, _)| *written);
                pushes.since = pushes.since.into_iter().chain(times).min();
            } else {
                pushes.ended.extend(objects.into_iter().map(|(_, object)| object));
            }
        }
        Ok(pushes)
    }
}
