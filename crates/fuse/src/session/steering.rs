//! Serves the program that asks on its own CPU.
//!
//! Purpose: a program that makes small requests sleeps until each is answered, so nothing is gained by
//! serving it on another CPU, and much is lost: waking a CPU that has gone idle takes longer than the work,
//! on a virtual machine many times as long (docs/decisions/steering.md has the figures). While samples say
//! that one program asks, one worker, the *companion*, goes to the program's CPU and alone takes requests;
//! there, request and reply are two switches of context, and its replies leave the program where it is, since
//! it sends them from the idle class: it stays there, or enters it for each reply (`dispatch::idle_class`)
//! where another thread wants its CPU. Large requests are better served beside the program, requests that
//! wait for the disk by as many workers as there are of them, and several programs on several CPUs by any
//! free worker: then all workers take requests, and go where the scheduler sends them.
//!
//! Thread safety: [`Steering`] is shared by the workers of a session; each has a [`Helm`] of its own. The
//! companion looks at a few atomics per request; every [`SAMPLE_REQUESTS`] it finds out where its caller
//! runs, which is the only thing that costs something. Of the others, one looks every [`WATCH_PERIOD`]
//! whether the companion gets on. Invariants: a worker never leaves the CPUs that it was started with; when
//! the companion is held up, by the store or by others on its CPU, or has nothing to do, all workers take
//! requests after two periods at the latest; where nothing can be found out it is as if there was no
//! steering.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use kvfs_locks::{Condvar, Mutex, class};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use zerocopy::FromBytes;

use crate::abi::{InHeader, Opcode, ReadIn};
use crate::dispatch::idle_class;
use crate::process::policy::{IDLE, NORMAL, set_policy, set_policy_of, sleeps_of_thread};
use crate::process::{cpu_of_thread, is_runnable};

/// The companion, among the workers.
const COMPANION: usize = 0;
/// How often the companion is looked after while it serves alone.
const WATCH_PERIOD: Duration = Duration::from_millis(5);
/// A worker asks for its caller's CPU once in so many requests.
const SAMPLE_REQUESTS: u32 = 32;
/// From this mean size on (bytes per request), copying beside the program is worth more than being near it.
const LARGE_BYTES: u64 = 64 << 10;
/// So many samples must agree before the companion serves alone.
const AGREEING_MIN: u32 = 3;
/// More agreement than this isn't remembered, so that a change is seen soon.
const AGREEING_MAX: u32 = 12;
/// What a sample that contradicts takes away.
const CONTRADICTION: u32 = 4;

/// With fewer requests in a period, the companion, if it is about to run, waits for its CPU.
const REQUESTS_MIN: u64 = 16;
/// For so many periods (two seconds) it does not stay in the idle class then.
const POLITE_PERIODS: u32 = 400;

/// No CPU: the scheduler decides.
const ANYWHERE: u32 = u32::MAX;

/// What the samples of all workers say.
#[derive(Debug, Default)]
struct Votes {
    /// The thread that asked last, as far as the samples agree.
    tid: u32,
    cpu: u32,
    agreeing: u32,
}

impl Votes {
    /// Counts a sample: the thread that asked and its CPU. Returns where the workers should be.
    fn count(&mut self, tid: u32, cpu: u32) -> u32 {
        if self.agreeing == 0 || tid == self.tid || cpu == self.cpu {
            (self.tid, self.cpu) = (tid, cpu);
            self.agreeing = (self.agreeing + 1).min(AGREEING_MAX);
        } else {
            self.agreeing = self.agreeing.saturating_sub(CONTRADICTION);
        }
        self.place()
    }

    /// Counts a sample that speaks for all workers: of large requests, or of one that slept in the store.
    fn count_against(&mut self) -> u32 {
        self.agreeing = self.agreeing.saturating_sub(CONTRADICTION);
        self.place()
    }

    fn place(&self) -> u32 {
        if self.agreeing < AGREEING_MIN { ANYWHERE } else { self.cpu }
    }
}

/// Which workers serve, and where.
#[derive(Debug)]
pub(super) struct Steering {
    votes: Mutex<Votes, class::FuseSessionSteeringVotes>,
    /// Where the companion serves alone, or [`ANYWHERE`].
    cpu: AtomicU32,
    /// Requests that the companion took, roughly: it alone counts.
    taken: AtomicU64,
    /// The companion's thread; 0: not there yet.
    companion: AtomicI32,
    /// Whether the companion stays in the idle class. It alone sets it.
    stays: AtomicBool,
    /// For how many periods it is not to.
    polite_periods: AtomicU32,
    /// Whether one of the workers that stand by watches.
    is_watched: Mutex<bool, class::FuseSessionSteeringIsWatched>,
    /// The same, for the companion to look at: in the idle class it is never alone.
    has_watcher: AtomicBool,
    freed: Condvar,
}

impl Steering {
    /// `None` where it can't work: with one CPU, with one worker, which must not be held up, and for a user
    /// that may not let a thread leave the idle class.
    pub(super) fn for_workers(workers: usize) -> Option<Self> {
        let cpus = sched_getaffinity(None).map_or(1, |home| home.count());
        if workers < 2 || cpus < 2 || !idle_class::is_possible() {
            return None;
        }
        Some(Self::new())
    }

    fn new() -> Self {
        Self {
            votes: Mutex::default(),
            cpu: AtomicU32::new(ANYWHERE),
            taken: AtomicU64::new(0),
            companion: AtomicI32::new(0),
            stays: AtomicBool::new(false),
            polite_periods: AtomicU32::new(0),
            is_watched: Mutex::default(),
            has_watcher: AtomicBool::new(false),
            freed: Condvar::new(),
        }
    }

    /// Where the companion serves alone.
    pub(super) fn companion_cpu(&self) -> Option<u32> {
        Some(self.cpu()).filter(|&cpu| cpu != ANYWHERE)
    }

    fn cpu(&self) -> u32 {
        self.cpu.load(Ordering::Relaxed)
    }

    fn count(&self, sample: &Sample, has_slept: bool) {
        // Another worker counts just now: one sample less.
        let Some(mut votes) = self.votes.try_lock() else { return };
        let place = match sample.cpu {
            Some(cpu) if !has_slept => votes.count(sample.tid, cpu),
            _ => votes.count_against(),
        };
        let before = self.cpu.swap(place, Ordering::SeqCst);
        drop(votes);
        if place == ANYWHERE && before != ANYWHERE {
            self.rescue();
            self.wake();
        }
    }

    /// Whether the companion may stay in the idle class.
    fn may_stay(&self) -> bool {
        self.has_watcher.load(Ordering::SeqCst) && self.polite_periods.load(Ordering::Relaxed) == 0
    }

    /// Called by the companion: whether it is in the idle class from now on.
    fn stay(&self, stays: bool) {
        if self.stays.load(Ordering::SeqCst) == stays {
            return;
        }
        if let Err(error) = set_policy(if stays { IDLE } else { NORMAL }) {
            // It was possible when the session began.
            tracing::error!(%error, "a worker cannot change its scheduling class; remount to cure it");
        }
        self.stays.store(stays, Ordering::SeqCst);
        // The worker that lets all workers serve takes it out of the class afterwards; then no worker watches
        // it any more.
        if stays && (self.cpu.load(Ordering::SeqCst) == ANYWHERE || !self.may_stay()) {
            self.stay(false);
        }
    }

    /// A period of watching is over, in which so many requests were taken. A companion that has got on badly
    /// in the idle class, since another thread wants its CPU, is to have its share of it.
    fn note_period(&self, requests: u64) {
        let stays = self.stays.load(Ordering::SeqCst);
        if stays && requests < REQUESTS_MIN && is_runnable(self.companion.load(Ordering::Relaxed)) {
            self.polite_periods.store(POLITE_PERIODS, Ordering::Relaxed);
            self.rescue();
        } else {
            let periods = self.polite_periods.load(Ordering::Relaxed);
            self.polite_periods.store(periods.saturating_sub(1), Ordering::Relaxed);
        }
    }

    /// Lets all workers take requests, until samples agree anew.
    fn free(&self) {
        *self.votes.lock() = Votes::default();
        self.cpu.store(ANYWHERE, Ordering::SeqCst);
        self.rescue();
        self.wake();
    }

    /// Takes the companion out of the idle class, in case it is stuck there on a busy CPU: it may hold
    /// something of the kernel's that others of this process wait for.
    fn rescue(&self) {
        let tid = self.companion.load(Ordering::Relaxed);
        self.stays.store(false, Ordering::SeqCst);
        if tid != 0
            && let Err(error) = set_policy_of(tid, NORMAL)
        {
            tracing::debug!(%error, "the companion could not be taken out of the idle class");
        }
    }

    fn wake(&self) {
        // Under the lock: a worker that has looked before is waiting by now.
        let _lock = self.is_watched.lock();
        self.freed.notify_all();
    }

    /// Waits as long as the companion serves alone.
    fn stand_by(&self) {
        let mut is_watched = self.is_watched.lock();
        while *is_watched {
            if self.cpu() == ANYWHERE {
                return;
            }
            self.freed.wait(&mut is_watched);
        }
        // The worker that watched may have gone while the companion began anew: then this one watches.
        *is_watched = true;
        self.has_watcher.store(true, Ordering::SeqCst);
        let mut taken = self.taken.load(Ordering::Relaxed);
        while self.cpu() != ANYWHERE {
            if !self.freed.wait_for(&mut is_watched, WATCH_PERIOD).timed_out() {
                continue;
            }
            let now = self.taken.load(Ordering::Relaxed);
            self.note_period(now - taken);
            if now == taken {
                *is_watched = false;
                self.has_watcher.store(false, Ordering::SeqCst);
                drop(is_watched);
                return self.free();
            }
            taken = now;
        }
        *is_watched = false;
        self.has_watcher.store(false, Ordering::SeqCst);
    }
}

/// One request that is looked at more closely.
struct Sample {
    /// The thread that asks.
    tid: u32,
    /// Where it runs; `None`: it is gone, or its requests are large.
    cpu: Option<u32>,
    /// How often this worker had slept when it took the request.
    sleeps: u64,
}

/// One worker's part.
pub(super) struct Helm<'a> {
    steering: &'a Steering,
    is_companion: bool,
    /// CPUs that this thread may use.
    home: CpuSet,
    at: u32,
    requests: u32,
    bytes: u64,
    /// The request that is being served, if it is a sample.
    sample: Option<Sample>,
}

impl<'a> Helm<'a> {
    /// For the calling thread, the worker of this number. `None`: its CPUs can't be found out.
    pub(super) fn new(steering: &'a Steering, index: usize) -> Option<Self> {
        // A kernel with more CPUs than fit into the set refuses.
        let home = sched_getaffinity(None).ok()?;
        let is_companion = index == COMPANION;
        if is_companion {
            steering.companion.store(gettid().as_raw_nonzero().get(), Ordering::Relaxed);
        }
        Some(Self { steering, is_companion, home, at: ANYWHERE, requests: 0, bytes: 0, sample: None })
    }

    /// Called before a request is waited for: workers other than the companion don't, while it serves alone.
    pub(super) fn stand_by(&mut self) {
        if let Some(sample) = self.sample.take() {
            self.steering.count(&sample, sleeps_of_thread() != sample.sleeps);
        }
        match (self.is_companion, self.steering.cpu() == ANYWHERE) {
            // A worker that waits for a request in the idle class may be late for it.
            (true, true) => self.steering.stay(false),
            (false, false) => self.steering.stand_by(),
            _ => {}
        }
    }

    /// Takes note of a request of the kernel; the companion goes to where it is best served.
    pub(super) fn took(&mut self, message: &[u8]) {
        let Ok((header, args)) = InHeader::ref_from_prefix(message) else { return };
        // No program waits for what the kernel asks on its own account.
        if header.pid == 0 {
            return;
        }
        self.requests += 1;
        self.bytes += data_bytes(header, args);
        if self.requests == SAMPLE_REQUESTS {
            let is_large = self.bytes >= LARGE_BYTES * u64::from(self.requests);
            let cpu = if is_large { None } else { cpu_of_thread(header.pid) };
            self.sample = Some(Sample { tid: header.pid, cpu, sleeps: sleeps_of_thread() });
            (self.requests, self.bytes) = (0, 0);
        }
        if self.is_companion {
            self.follow(header.unique);
        }
    }

    fn follow(&mut self, unique: u64) {
        let steering = self.steering;
        // One writer.
        steering.taken.store(steering.taken.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let place = steering.cpu();
        if place != self.at {
            self.at = place;
            go(&self.home, place);
        }
        let stays = place != ANYWHERE && steering.may_stay();
        steering.stay(stays);
        if place != ANYWHERE && !stays {
            idle_class::owe(unique);
        }
    }
}

impl Drop for Helm<'_> {
    /// The connection has ended: the workers that stand by have to see it.
    fn drop(&mut self) {
        if self.is_companion {
            // The number may soon be another thread's.
            self.steering.companion.store(0, Ordering::Relaxed);
            self.steering.free();
        }
    }
}

/// Bytes of data that go with a request, either way.
fn data_bytes(header: &InHeader, args: &[u8]) -> u64 {
    match Opcode::from_number(header.opcode) {
        Some(Opcode::Read) => ReadIn::ref_from_prefix(args).map_or(0, |(read, _)| u64::from(read.size)),
        _ => args.len() as u64,
    }
}

/// Binds the calling thread to `cpu` if that is one of `home`, else to all of `home`.
fn go(home: &CpuSet, cpu: u32) {
    let mut set = *home;
    if (cpu as usize) < CpuSet::MAX_CPU && home.is_set(cpu as usize) {
        set.clear();
        set.set(cpu as usize);
    }
    // Refused when an administrator has just taken CPUs away; then the thread stays where it may be.
    if let Err(errno) = sched_setaffinity(None, &set) {
        tracing::debug!(%errno, cpu, "a worker could not be placed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::policy::policy;

    fn vote(votes: &mut Votes, samples: &[(u32, u32)]) -> u32 {
        samples.iter().map(|&(tid, cpu)| votes.count(tid, cpu)).last().unwrap_or(ANYWHERE)
    }

    #[test]
    fn one_program_is_followed_wherever_it_goes() {
        let mut votes = Votes::default();
        assert_eq!(vote(&mut votes, &[(7, 1), (7, 1)]), ANYWHERE, "two samples may be chance");
        assert_eq!(vote(&mut votes, &[(7, 1)]), 1);
        assert_eq!(vote(&mut votes, &[(7, 0)]), 0);
    }

    #[test]
    fn programs_that_follow_one_another_on_one_cpu_are_one() {
        let mut votes = Votes::default();
        assert_eq!(vote(&mut votes, &[(7, 1), (8, 1), (9, 1)]), 1);
    }

    #[test]
    fn programs_on_several_cpus_leave_the_workers_free() {
        let mut votes = Votes::default();
        let turns: Vec<_> = (0..40).map(|n| (n % 2, n % 2)).collect();
        assert_eq!(vote(&mut votes, &turns), ANYWHERE);
        vote(&mut votes, &[(7, 1); 20]);
        assert_eq!(vote(&mut votes, &[(8, 0)]), 1, "one stray request changes nothing");
        assert_eq!(vote(&mut votes, &[(8, 0), (7, 1), (8, 0), (9, 0)]), ANYWHERE);
    }

    #[test]
    fn large_requests_and_those_that_wait_for_the_disk_leave_the_workers_free() {
        let mut votes = Votes::default();
        vote(&mut votes, &[(7, 1); 20]);
        let places: Vec<_> = (0..3).map(|_| votes.count_against()).collect();
        assert_eq!(places, [1, 1, ANYWHERE]);
    }

    #[test]
    fn one_that_waits_for_the_disk_now_and_then_is_followed() {
        let mut votes = Votes::default();
        for _ in 0..20 {
            vote(&mut votes, &[(7, 1); 9]);
            votes.count_against();
        }
        assert_eq!(votes.place(), 1);
    }

    #[test]
    fn a_companion_that_gets_on_badly_leaves_the_idle_class_for_a_while() {
        if !idle_class::is_possible() {
            // Ordinary users may not.
            return;
        }
        let steering = Steering::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                steering.cpu.store(0, Ordering::SeqCst);
                steering.stay(true);
                assert_eq!(policy(), NORMAL, "no worker watches");
                steering.has_watcher.store(true, Ordering::SeqCst);
                steering.companion.store(gettid().as_raw_nonzero().get(), Ordering::Relaxed);
                let is_polite = || steering.polite_periods.load(Ordering::Relaxed) > 0;
                steering.stay(true);
                assert_eq!(policy(), IDLE);
                steering.note_period(REQUESTS_MIN);
                assert_eq!((policy(), is_polite()), (IDLE, false));
                // It runs, so it is runnable.
                steering.note_period(REQUESTS_MIN - 1);
                assert_eq!((policy(), is_polite()), (NORMAL, true));
                (0..POLITE_PERIODS).for_each(|_| steering.note_period(0));
                assert!(!is_polite(), "after a while it tries again");
                steering.stay(true);
                assert_eq!(policy(), IDLE);
                steering.free();
                assert_eq!(policy(), NORMAL, "letting others serve takes it out of the class");
                steering.stay(true);
                assert_eq!(policy(), NORMAL, "and no worker would watch it there");
            });
        });
    }

    #[test]
    fn watcher_gone_is_replaced_by_another_worker() {
        let steering = Steering::new();
        steering.cpu.store(0, Ordering::Relaxed);
        *steering.is_watched.lock() = true;
        std::thread::scope(|scope| {
            scope.spawn(|| steering.stand_by());
            while steering.freed.notify_all() == 0 {
                std::thread::yield_now();
            }
            // It waits. The companion was stopped, and begins again before it can look.
            *steering.is_watched.lock() = false;
            steering.wake();
        });
        assert_eq!(steering.companion_cpu(), None, "no program is served, so all workers are to serve");
    }

    #[test]
    fn a_worker_goes_to_a_cpu_and_comes_home() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let home = sched_getaffinity(None).expect("known");
                let cpu = (0..CpuSet::MAX_CPU).find(|&cpu| home.is_set(cpu)).expect("one") as u32;
                go(&home, cpu);
                assert_eq!(sched_getaffinity(None).expect("known").count(), 1);
                go(&home, ANYWHERE);
                assert_eq!(sched_getaffinity(None).expect("known"), home);
                let other = (0..CpuSet::MAX_CPU).find(|&cpu| !home.is_set(cpu));
                go(&home, other.map_or(ANYWHERE, |cpu| cpu as u32));
                assert_eq!(sched_getaffinity(None).expect("known"), home, "a CPU that it may not use");
            });
        });
    }
}
