//! `kill -9` of the daemon in the middle of work, and a mount again over what it left.

use std::path::Path;

use kvfs_device::Rng;
use rustix::process::{Signal, kill_process};

use super::{Round, pause, seeds};
use crate::world::{World, can_mount, daemon_of, daemons_of, kvfs, wait_until};

const ROUNDS_OF_A_LIFE: u64 = 3;
/// The daemon is killed at the latest after so many requests and answers.
const MOMENTS_MAX: u64 = 3000;

fn live(world: &World, seed: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let (store, dir) = (world.text(&format!("store{seed}")), world.dir("mnt"));
    kvfs(&["mkfs", "--size", "512M", &store]).ok();
    let commit = ["commit=0.01", "commit=1", "commit=3600"][rng.index(3)];
    let mut last: Option<Round> = None;
    for number in 0..=ROUNDS_OF_A_LIFE {
        // The dead mount is still there; `mount` takes it away.
        kvfs(&["mount", "--memory", "64M", "-o", commit, &store, &dir]).ok();
        if let Some(round) = &last {
            round.verify(Path::new(&dir)).map_err(|why| format!("kill {number}: {why}"))?;
        }
        if number == ROUNDS_OF_A_LIFE {
            break;
        }
        let daemon = daemon_of(&store);
        let moments = rng.below(MOMENTS_MAX);
        let round = Round::work(Path::new(&dir), number, true, rng.fork(), |progress| {
            while progress().is_some_and(|so_far| so_far < moments) {
                pause();
            }
            kill_process(daemon, Signal::KILL).unwrap();
        });
        wait_until("the end of the daemon", || daemons_of(Path::new(&store)).is_empty());
        round.check_errors(true);
        let checked = kvfs(&["check", &store]).ok();
        if !checked.starts_with("clean") {
            return Err(format!("kill {number}: {checked}"));
        }
        eprintln!("seed {seed} kill {number}: {}", round.summary());
        last = Some(round);
    }
    kvfs(&["umount", &dir]).ok();
    Ok(())
}

#[test]
fn what_remains_after_a_killed_daemon_is_a_prefix_with_all_that_was_synced() {
    if !can_mount("what_remains_after_a_killed_daemon_is_a_prefix_with_all_that_was_synced") {
        return;
    }
    let world = World::new();
    for seed in seeds(2) {
        if let Err(why) = live(&world, seed) {
            panic!("KVFS_POWER_SEED={seed}: {why}");
        }
    }
}
