//! A crash at every event of a run: each image must open to a legal prefix.
//!
//! The run happens once, on a device that logs its events; then the image as of every event is
//! built, in several ways of losing unflushed writes, opened and compared.

use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use kvfs_device::{CrashDevice, CrashMode, Device, MemoryDevice};
use kvfs_store::{Store, TxnId};

use crate::crash_check::{History, compare};
use crate::engine::Engine;
use crate::named::NamedLog;
use crate::ops::{Profile, Step, generate};
use crate::session::{
    Session, check_goes_on, check_ids_go_on, check_recovery, expect_keyspaces, writes_only,
};
use crate::spaces::Handles;
use crate::txns::Outcomes;
use crate::undo::check_undo;

/// What a sweep does.
#[derive(Debug, Clone)]
pub struct CrashSweep {
    /// The run.
    pub profile: Profile,
    /// Looks at every so many-th event; 1: all.
    pub events_step: usize,
    /// Ways of losing writes, at each event.
    pub modes: Vec<CrashMode>,
    /// At one event in so many the recovered store is written to and crashes again.
    pub again_one_in: usize,
}

impl CrashSweep {
    /// All events of a run of `steps` steps, in three ways.
    pub fn of_steps(steps: usize) -> Self {
        let modes = vec![CrashMode::DropAll, CrashMode::KeepAll, CrashMode::Any];
        Self { profile: writes_only(steps), events_step: 1, modes, again_one_in: 5 }
    }
}

/// What a sweep looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swept {
    /// Device events of the run.
    pub events: usize,
    /// Images opened.
    pub images: usize,
}

/// At this event, so many batches were synced and so many begun.
struct Mark {
    events: usize,
    synced: usize,
    begun: usize,
    last_txn: TxnId,
    /// Creations and deletions of named snapshots that were done, and begun.
    named: (usize, usize),
}

struct Recording {
    device: Arc<CrashDevice>,
    history: History,
    outcomes: Outcomes,
    named: NamedLog,
    marks: Vec<Mark>,
    steps: Vec<Step>,
}

/// Sweeps the run of `seed`.
///
/// # Errors
/// A report for people: event, way of losing, what is wrong.
pub fn crash_sweep(engine: &dyn Engine, sweep: &CrashSweep, seed: u64) -> Result<Swept, String> {
    let recording = record(engine, &sweep.profile, seed).map_err(|error| format!("seed {seed}: {error}"))?;
    let events = recording.device.events_len();
    let first = recording.marks[0].events;
    let mut images = 0;
    for event in (first..=events).step_by(sweep.events_step) {
        for &mode in &sweep.modes {
            let again = images % sweep.again_one_in == 0;
            let outcome =
                catch_unwind(AssertUnwindSafe(|| check_image(engine, &recording, event, seed, mode, again)));
            let outcome = outcome.unwrap_or_else(|_| Err("panicked, see above".to_owned()));
            outcome.map_err(|problem| describe(&recording, event, seed, mode, &problem))?;
            images += 1;
        }
    }
    Ok(Swept { events, images })
}

/// As [`crash_sweep`], for tests.
///
/// # Panics
/// With the report.
pub fn assert_survives_crashes(engine: &dyn Engine, sweep: &CrashSweep, seed: u64) -> Swept {
    crash_sweep(engine, sweep, seed).unwrap_or_else(|report| panic!("{report}"))
}

fn record(engine: &dyn Engine, profile: &Profile, seed: u64) -> Result<Recording, String> {
    let device = CrashDevice::in_memory(0, engine.device_bytes_max()).with_log();
    let device = Arc::new(device.map_err(|error| error.to_string())?);
    let dynamic = Arc::clone(&device) as Arc<dyn Device>;
    let mut session = Session::create(engine, &dynamic).map_err(|error| error.to_string())?;
    let mark = |session: &Session, begun: usize, named: usize| Mark {
        events: device.events_len(),
        synced: session.history.synced(),
        begun: session.history.len() + begun,
        last_txn: session.last_txn(),
        named: (session.named.len(), session.named.len() + named),
    };
    let steps = generate(profile, seed);
    let mut marks = vec![mark(&session, 0, 0)];
    for (index, step) in steps.iter().enumerate() {
        let is_batch = matches!(step, Step::Apply { .. } | Step::TxnCommit { .. });
        let is_naming = matches!(step, Step::NamedCreate { .. } | Step::NamedDelete { .. });
        marks.push(mark(&session, is_batch.into(), is_naming.into()));
        let result = session.step(engine, &dynamic, step);
        session = result.map_err(|error| format!("step {index} ({step:?}): {error}"))?;
        marks.push(mark(&session, 0, 0));
    }
    session.compare()?;
    let Session { history, outcomes, named, .. } = session;
    Ok(Recording { device, history, outcomes, named, marks, steps })
}

impl Recording {
    /// Numbers of batches that a crash after `event` events may leave.
    fn allowed(&self, event: usize) -> RangeInclusive<usize> {
        let passed = self.marks.iter().take_while(|mark| mark.events <= event);
        let (synced, begun) =
            passed.fold((0, 0), |(synced, begun), mark| (mark.synced.max(synced), mark.begun.max(begun)));
        synced..=begun.min(self.history.len())
    }

    /// How many namings were done for sure before `event`, and how many begun.
    fn named(&self, event: usize) -> (usize, usize) {
        let passed = self.marks.iter().take_while(|mark| mark.events <= event);
        passed.fold((0, 0), |(done, begun), mark| (mark.named.0.max(done), mark.named.1.max(begun)))
    }

    /// The greatest id that a transaction had for sure before `event`.
    fn last_txn(&self, event: usize) -> TxnId {
        let passed = self.marks.iter().take_while(|mark| mark.events <= event);
        passed.map(|mark| mark.last_txn).max().unwrap_or(TxnId(0))
    }
}

fn check_image(
    engine: &dyn Engine,
    recording: &Recording,
    event: usize,
    seed: u64,
    mode: CrashMode,
    again: bool,
) -> Result<(), String> {
    let image = recording.device.image_at(event, seed.wrapping_add(event as u64), mode);
    let image = image.map_err(|error| error.to_string())?;
    let device = Arc::new(CrashDevice::over(Arc::new(image)));
    let allowed = recording.allowed(event);
    let (open, position) =
        check_recovery(engine, Arc::clone(&device) as Arc<dyn Device>, &recording.history, allowed)?;
    recording.outcomes.clone().check_reopened(&*open.store(), position)?;
    let (done, begun) = recording.named(event);
    recording.named.check(&*open.store(), &recording.history, done, begun)?;
    if again {
        let handles = Handles::open(&*open.store()).map_err(|error| error.to_string())?;
        check_undo(&*open.store(), &handles, &recording.history)?;
        check_ids_go_on(&*open.store(), recording.last_txn(event))?;
        check_goes_on(&*open)?;
        let image = device.crash_image(seed, CrashMode::Any).map_err(|error| error.to_string())?;
        check_second_crash(engine, image, &*open.store(), &handles)?;
    }
    Ok(())
}

/// Recovery itself wrote; what it wrote must survive too, with all that `before` had when it crashed, since
/// the last thing was a sync.
fn check_second_crash(
    engine: &dyn Engine,
    image: MemoryDevice,
    before: &dyn Store,
    handles: &Handles,
) -> Result<(), String> {
    let failed = |error| format!("opening after a second crash: {error}");
    let open = engine.open(Arc::new(image)).map_err(failed)?;
    let store = open.store();
    let (position, synced) = (store.position(), before.position());
    if position != synced {
        return Err(format!("{synced:?} was synced before the second crash, but {position:?} is there"));
    }
    expect_keyspaces(&*store)?;
    let handles_now = Handles::open(&*store).map_err(failed)?;
    compare(&*store, &handles_now, before, handles)
        .map_err(|difference| format!("after a second crash: {difference}"))?;
    open.check()
}

fn describe(recording: &Recording, event: usize, seed: u64, mode: CrashMode, problem: &str) -> String {
    let events = recording.device.events();
    let around = &events[event.saturating_sub(4)..(event + 1).min(events.len())];
    let passed = recording.marks.iter().take_while(|mark| mark.events <= event).count();
    let step = passed.saturating_sub(1).div_ceil(2).saturating_sub(1);
    format!(
        "seed {seed}, crash after {event} of {} events, {mode:?}: {problem}\n  allowed batches: {:?}\n  \
         events up to there: {around:?}\n  during step {step}: {:?}",
        events.len(),
        recording.allowed(event),
        recording.steps.get(step),
    )
}
