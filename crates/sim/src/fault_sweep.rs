//! A failure of every device call of a run, one at a time: the store must stay right or refuse
//! writes, and what it leaves on the healed device must be a legal prefix.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use kvfs_device::{Call, CrashDevice, CrashMode, Device, FaultDevice, FaultError, FaultRule};
use kvfs_store::{Op, Position, StoreError};

use crate::engine::Engine;
use crate::ops::{Profile, Step, generate};
use crate::session::{Applied, Session, check_goes_on, check_recovery, writes_only};
use crate::spaces::Handles;

/// What a sweep does.
#[derive(Debug, Clone)]
pub struct FaultSweep {
    /// The run.
    pub profile: Profile,
    /// Which calls fail, and how.
    pub faults: Vec<(Call, FaultError)>,
    /// Fails every so many-th call; 1: all.
    pub calls_step: u64,
    /// Whether all later calls of the kind fail too, until the device is healed.
    pub lasting: bool,
}

impl FaultSweep {
    /// `EIO` at every call and `ENOSPC` at every write and growth of a run of `steps` steps.
    pub fn of_steps(steps: usize) -> Self {
        let faults = vec![
            (Call::Read, FaultError::EIO),
            (Call::Write, FaultError::EIO),
            (Call::Flush, FaultError::EIO),
            (Call::Grow, FaultError::EIO),
            (Call::Write, FaultError::ENOSPC),
            (Call::Allocate, FaultError::ENOSPC),
            (Call::Allocate, FaultError::EIO),
            (Call::Grow, FaultError::ENOSPC),
        ];
        Self { profile: writes_only(steps), faults, calls_step: 1, lasting: false }
    }
}

/// Batches tried on a store that stopped.
const REFUSALS_TRIED: usize = 3;

/// What became of the runs of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Faults that no caller saw.
    pub unnoticed: usize,
    /// Faults after which the store went on.
    pub went_on: usize,
    /// Faults after which the store refused writes.
    pub stopped: usize,
}

/// One run with one fault.
struct Faulty<'a> {
    engine: &'a dyn Engine,
    device: Arc<FaultDevice<Arc<CrashDevice>>>,
    session: Session,
    /// The batch that failed without becoming visible; it may yet survive.
    ghost: Option<Vec<Op>>,
    noticed: bool,
    stopped: bool,
}

/// Sweeps the run of `seed`.
///
/// # Errors
/// A report for people: which fault, what is wrong.
pub fn fault_sweep(engine: &dyn Engine, sweep: &FaultSweep, seed: u64) -> Result<Outcomes, String> {
    let steps = generate(&sweep.profile, seed);
    let calls_of =
        count_calls(engine, &steps).map_err(|problem| format!("seed {seed}, no fault: {problem}"))?;
    let mut outcomes = Outcomes::default();
    for &(call, error) in &sweep.faults {
        for nth in (0..calls_of(call)).step_by(sweep.calls_step as usize) {
            let rule = if sweep.lasting {
                FaultRule::from(call, nth, error)
            } else {
                FaultRule::once(call, nth, error)
            };
            let crash_seed = seed.wrapping_add(nth);
            let outcome = catch_unwind(AssertUnwindSafe(|| run_with(engine, &steps, rule, crash_seed)));
            let outcome = outcome.unwrap_or_else(|_| Err("panicked, see above".to_owned()));
            let (noticed, stopped) = outcome.map_err(|problem| {
                format!("seed {seed}, {error:?} at {call:?} {nth} of {}: {problem}", calls_of(call))
            })?;
            match (noticed, stopped) {
                (false, _) => outcomes.unnoticed += 1,
                (true, false) => outcomes.went_on += 1,
                (true, true) => outcomes.stopped += 1,
            }
        }
    }
    Ok(outcomes)
}

/// As [`fault_sweep`], for tests.
///
/// # Panics
/// With the report.
pub fn assert_survives_faults(engine: &dyn Engine, sweep: &FaultSweep, seed: u64) -> Outcomes {
    fault_sweep(engine, sweep, seed).unwrap_or_else(|report| panic!("{report}"))
}

/// A fresh store on a device that can fail.
fn start(engine: &dyn Engine) -> Result<Faulty<'_>, String> {
    let device = CrashDevice::in_memory(0, engine.device_bytes_max());
    let device = Arc::new(FaultDevice::new(Arc::new(device)));
    let session = Session::create(engine, &(Arc::clone(&device) as Arc<dyn Device>));
    let session = session.map_err(|error| error.to_string())?;
    Ok(Faulty { engine, device, session, ghost: None, noticed: false, stopped: false })
}

/// How often each call is made, after the store was made.
fn count_calls(engine: &dyn Engine, steps: &[Step]) -> Result<impl Fn(Call) -> u64, String> {
    let run = start(engine)?;
    let before = run.device.counts();
    let device = Arc::clone(&run.device);
    if let Some(run) = run.all_steps(steps)? {
        run.read_everything()?;
    }
    let after = device.counts();
    Ok(move |call| after.of(call) - before.of(call))
}

/// Gives whether the fault was noticed, and whether the store stopped.
fn run_with(
    engine: &dyn Engine,
    steps: &[Step],
    rule: FaultRule,
    crash_seed: u64,
) -> Result<(bool, bool), String> {
    let run = start(engine)?;
    run.device.add(rule);
    let device = Arc::clone(&run.device);
    let outcome = match run.all_steps(steps)? {
        Some(run) if run.device.faults() == 0 => run.read_everything()?.finish(crash_seed)?,
        Some(run) => run.finish(crash_seed)?,
        None => (true, true),
    };
    if device.faults() == 0 { Err("the call was never made".to_owned()) } else { Ok(outcome) }
}

impl Faulty<'_> {
    /// Runs the steps until the store stops. `None`: it failed to close or open again, and what it
    /// left was checked.
    fn all_steps(mut self, steps: &[Step]) -> Result<Option<Self>, String> {
        for (index, step) in steps.iter().enumerate() {
            match step {
                Step::Reopen if !self.noticed => match self.reopen()? {
                    Some(run) => self = run,
                    None => return Ok(None),
                },
                _ => self.step(step).map_err(|problem| format!("step {index} ({step:?}): {problem}"))?,
            }
            if self.stopped {
                self.check_stays_stopped(steps)?;
                break;
            }
        }
        Ok(Some(self))
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        let refused = |error: StoreError| format!("the model refused: {error}");
        let error = match step {
            Step::Apply { ops, durability } => {
                let applied = self.session.apply(ops, *durability).map_err(refused)?;
                self.note(applied, ops)
            }
            Step::TxnBegin { slot, isolation } => self.session.txn_begin(*slot, *isolation).err(),
            Step::TxnApply { slot, ops } => self.session.txn_apply(*slot, ops).err(),
            Step::TxnPrepare { slot } => self.session.txn_prepare(*slot).err(),
            Step::TxnCommit { slot, durability } => {
                let ops = self.session.txn_ops(*slot).to_vec();
                let applied = self.session.txn_commit(*slot, *durability).map_err(refused)?;
                applied.and_then(|applied| self.note(applied, &ops))
            }
            Step::TxnAbort { slot } => {
                self.session.txns[*slot] = None;
                None
            }
            Step::NamedCreate { slot } => self.session.named_create(*slot).err(),
            Step::NamedDelete { slot } => self.session.named_delete(*slot).err(),
            Step::Sync => self.session.sync().err(),
            Step::Flush => self.session.open.flush().err(),
            Step::Compact => self.session.open.compact().err(),
            _ => None,
        };
        let Some(error) = error else { return Ok(()) };
        if matches!(error, StoreError::Full) && self.device.faults() == 0 {
            return Ok(());
        }
        if self.device.faults() == 0 {
            return Err(format!("failed before the fault: {error}"));
        }
        self.noticed = true;
        self.stopped = matches!(error, StoreError::Failed { .. }) || self.refuses_writes();
        // Whether stopped or not, reads go on and are right.
        self.device.clear();
        self.session.compare().map_err(|problem| format!("after \"{error}\": {problem}"))
    }

    /// Takes in what became of a batch; gives its error.
    fn note(&mut self, applied: Applied, ops: &[Op]) -> Option<StoreError> {
        match applied {
            Applied::Yes => {
                // What came later is in, so what was refused before is out for good.
                self.ghost = None;
                None
            }
            Applied::Unsynced(error) => Some(error),
            Applied::No(error) => {
                if !matches!(error, StoreError::Full) {
                    self.ghost.get_or_insert_with(|| ops.to_vec());
                }
                Some(error)
            }
        }
    }

    /// A stopped store refuses all writes, also on a healed device, and nothing of them is seen.
    fn check_stays_stopped(&mut self, steps: &[Step]) -> Result<(), String> {
        let batches = steps.iter().filter_map(|step| match step {
            Step::Apply { ops, durability } => Some((ops, *durability)),
            _ => None,
        });
        for (ops, durability) in batches.take(REFUSALS_TRIED) {
            match self.session.apply(ops, durability).map_err(|error| error.to_string())? {
                Applied::No(StoreError::Failed { .. }) => {}
                Applied::No(error) => return Err(format!("the store stopped, but then said \"{error}\"")),
                Applied::Yes | Applied::Unsynced(_) => {
                    return Err("the store stopped, but took a batch".to_owned());
                }
            }
        }
        self.session.compare().map_err(|problem| format!("after refused writes: {problem}"))
    }

    /// Whether an empty write is refused for good.
    fn refuses_writes(&self) -> bool {
        let store = self.session.open.store();
        matches!(store.sync(store.position()), Err(StoreError::Failed { .. }))
    }

    /// Reads all while the fault is still to come: what it hits fails, and what is answered is right.
    fn read_everything(mut self) -> Result<Self, String> {
        let failed = Cell::new(false);
        let may_fail = |_: &StoreError| {
            failed.set(self.device.faults() > 0);
            failed.get()
        };
        self.session.compare_readable(may_fail).map_err(|problem| format!("at last: {problem}"))?;
        self.noticed |= failed.get();
        Ok(self)
    }

    /// Closes and opens. When the fault hits that, the healed device must open instead.
    fn reopen(self) -> Result<Option<Self>, String> {
        let Self { engine, device, session, .. } = self;
        let dynamic = Arc::clone(&device) as Arc<dyn Device>;
        let Session { txns, outcomes, open, mut history, named, .. } = session;
        drop(txns);
        let reopened = open.close().and_then(|()| {
            let open = engine.open(Arc::clone(&dynamic))?;
            // Merge functions have to be given at every opening.
            let handles = Handles::open(&*open.store())?;
            Ok((open, handles))
        });
        match reopened {
            Ok((open, handles)) => {
                history.record_sync();
                let session = Session { txns: Default::default(), outcomes, open, handles, history, named };
                Ok(Some(Self { engine, device, session, ghost: None, noticed: false, stopped: false }))
            }
            Err(error) if device.faults() == 0 => Err(format!("reopening without a fault: {error}")),
            Err(_) => {
                device.clear();
                let allowed = history.synced()..=history.len();
                check_recovery(engine, dynamic, &history, allowed)?;
                Ok(None)
            }
        }
    }

    /// Crashes, heals the device, and looks at what is left.
    fn finish(mut self, crash_seed: u64) -> Result<(bool, bool), String> {
        self.device.clear();
        self.session.compare()?;
        let mode = if crash_seed.is_multiple_of(2) { CrashMode::KeepAll } else { CrashMode::Any };
        let image = self.device.inner().crash_image(crash_seed, mode).map_err(|error| error.to_string())?;
        let mut history = self.session.history;
        let allowed_len = history.len() + usize::from(self.ghost.is_some());
        let allowed = history.synced()..=allowed_len;
        if let Some(ops) = self.ghost.take() {
            let position = self.session.open.store().position().0 + ops.len() as u64;
            history.record(&ops, Position(position)).map_err(|error| error.to_string())?;
        }
        drop((self.session.txns, self.session.open));
        let (open, _) = check_recovery(self.engine, Arc::new(image), &history, allowed)
            .map_err(|problem| format!("on the healed device ({mode:?}): {problem}"))?;
        check_goes_on(&*open)?;
        Ok((self.noticed, self.stopped))
    }
}
