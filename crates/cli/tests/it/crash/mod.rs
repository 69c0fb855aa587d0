//! Crashes of a mounted store in the middle of work that comes through the kernel.
//!
//! Several threads work on the mount, each in its own manner; then the power fails ([`power`]) or the daemon
//! is killed ([`killed`]); what is there afterwards is compared with what was promised ([`history`]).
//! `KVFS_POWER_SEED` and `KVFS_POWER_ROUNDS` choose the seeds: a seed is the life of one store, through
//! several crashes. Threads and the kernel take turns as they like, so a seed repeats a kind of crash and not
//! each moment of it.

mod history;
mod killed;
pub(crate) mod mapped;
mod mapping;
mod power;
mod transactions;
mod tree;
mod worker;

use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use kvfs_device::Rng;
use rustix::io::Errno;

use history::{History, Moments, verify};
use mapping::Mapped;
use worker::{Manner, Worker};

/// Steps of a thread in a round in which nothing cuts it short.
const STEPS_MAX: usize = 400;

/// The seeds to try.
fn seeds(rounds_default: u64) -> impl Iterator<Item = u64> {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")))
    };
    let seed = number("KVFS_POWER_SEED");
    let rounds = number("KVFS_POWER_ROUNDS").unwrap_or(if seed.is_some() { 1 } else { rounds_default });
    let first = seed.unwrap_or(1);
    (0..rounds).map(move |round| first.wrapping_add(round))
}

/// The work of one round, and what must be left of it.
struct Round {
    number: u64,
    histories: Vec<History>,
    mapped: Vec<Mapped>,
    /// How the threads ended: `None` when they did all they wanted.
    errors: Vec<io::Error>,
}

fn directory(number: u64) -> String {
    format!("round{number}")
}

impl Round {
    /// Works on `mount`. `crash` runs when all that the threads start from is durable, beside them; it learns
    /// how many moments have passed, or `None` when the threads have ended. Without `syncing` they never make
    /// anything durable, so that only the engine's own periodic syncs do.
    fn work(
        mount: &Path,
        number: u64,
        syncing: bool,
        mut rng: Rng,
        crash: impl FnOnce(&dyn Fn() -> Option<u64>),
    ) -> Self {
        let moments = Moments::default();
        let root = mount.join(directory(number));
        fs::create_dir(&root).unwrap();
        let mut manners = Manner::EACH.to_vec();
        manners.push(Manner::EACH[rng.index(Manner::EACH.len())]);
        let workers: Vec<Worker<'_>> = manners
            .into_iter()
            .enumerate()
            .map(|(index, manner)| {
                let name = format!("{index}-{manner:?}");
                fs::create_dir(root.join(&name)).unwrap();
                Worker::new(&root, name, (manner, syncing), &moments, rng.fork())
            })
            .collect();
        // The last that is made is fsynced, and with it all that came before: `syncfs` would do nothing,
        // since the kernel does not pass it on.
        let mut mapped = vec![Mapped::new(&root, "mapped".to_owned()).unwrap()];
        if !syncing {
            // Its msync would make everything before it durable, too.
            mapped.clear();
        }

        let (mut histories, mut errors) = (Vec::new(), Vec::new());
        thread::scope(|scope| {
            let mut threads: Vec<_> =
                workers.into_iter().map(|worker| scope.spawn(move || worker.run(STEPS_MAX))).collect();
            let mapping: Vec<_> = mapped
                .iter_mut()
                .map(|mapped| {
                    let rng = rng.fork();
                    scope.spawn(move || mapped.run(rng, STEPS_MAX))
                })
                .collect();
            // Whatever comes of it: it is not part of any promise here.
            let old = mount.join(directory(number.wrapping_sub(2)));
            let remover = scope.spawn(move || fs::remove_dir_all(old));
            crash(&|| threads.iter().any(|thread| !thread.is_finished()).then(|| moments.so_far()));
            for thread in threads.drain(..) {
                let (history, result) = thread.join().unwrap();
                histories.push(history);
                errors.extend(result.err());
            }
            errors.extend(mapping.into_iter().filter_map(|thread| thread.join().unwrap().err()));
            drop(remover.join().unwrap());
        });
        Self { number, histories, mapped, errors }
    }

    /// Panics if the threads ended other than by a crash.
    fn check_errors(&self, crashed: bool) {
        // A store that has failed refuses changes like a read-only one.
        const LEGAL: [Errno; 4] = [Errno::IO, Errno::ROFS, Errno::NOTCONN, Errno::CONNABORTED];
        for error in &self.errors {
            let legal =
                crashed && LEGAL.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()));
            assert!(legal, "the work failed: {error}");
        }
    }

    /// Lets go of the mount.
    fn close(&mut self) {
        self.mapped.iter_mut().for_each(Mapped::close);
    }

    fn summary(&self) -> String {
        let counts: Vec<String> = self.histories.iter().map(History::summary).collect();
        format!("synced/done steps: {}; errors: {}", counts.join(" "), self.errors.len())
    }

    /// Compares with what is on the mount now.
    fn verify(&self, mount: &Path) -> Result<(), String> {
        let root = mount.join(directory(self.number));
        verify(&self.histories, &root)?;
        self.mapped.iter().try_for_each(|mapped| mapped.verify(&root))
    }
}

/// Waits a moment, and is not woken earlier.
fn pause() {
    thread::park_timeout(Duration::from_micros(200));
}
