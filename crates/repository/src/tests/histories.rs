//! Pushes, prunes and removals of several machines in any order, over days: nothing that a snapshot needs is
//! ever lost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::transfer::{SendStream, StreamReader};
use kvfs_store::clock::Clock;

use super::service::Service;
use super::{Source, noise, pull, repository};
use crate::error::RepositoryError;
use crate::policy::Policy;
use crate::push::Push;
use crate::repository::Repository;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A push under way.
pub(super) struct UnderWay<'r> {
    name: String,
    send: SendStream,
    reader: StreamReader,
    push: Push<'r>,
}

impl<'r> UnderWay<'r> {
    pub(super) fn begin(source: &Source, repository: &'r Repository, name: &str) -> Option<Self> {
        let send = source.send(name);
        let clock: Arc<dyn Clock> = source.clock.clone();
        let push = match Push::new(repository, send.begin(), &clock) {
            Err(RepositoryError::Present(_)) => return None,
            begun => begun.unwrap(),
        };
        Some(Self { name: name.to_owned(), reader: StreamReader::new(send.stream()), send, push })
    }

    /// Pushes a frame; `false`: there is none left.
    pub(super) fn step(&mut self) -> bool {
        let Some(frame) = self.send.next_frame().unwrap() else { return false };
        self.push.frame(self.reader.next(&mut &frame[..]).unwrap().unwrap()).unwrap();
        true
    }

    pub(super) fn finish(mut self) -> Result<String, RepositoryError> {
        while self.step() {}
        self.push.finish().map(|_| self.name)
    }
}

fn run(seed: u64) {
    let mut random = Random(seed);
    let (source, service) = (Source::new(1), Service::new());
    for name in ["a", "b", "c", "d", "e"] {
        // Some of it comes back later.
        for file in ["x", "y"] {
            source.write(file, 0, &noise(random.below(3), 600 << 10));
        }
        source.snapshot(name);
    }
    let names = ["a", "b", "c", "d", "e"];
    let machines: Vec<_> = (0..2).map(|_| repository(&service)).collect();
    let mut under_way: Vec<UnderWay<'_>> = Vec::new();
    let mut slow = 0;
    let mut there: BTreeSet<String> = BTreeSet::new();
    for step in 0..120 {
        let context = format!("seed {seed}, step {step}");
        match random.below(8) {
            0 | 1 if under_way.len() < 3 => {
                let name = names[random.below(5) as usize];
                let machine = &machines[random.below(2) as usize];
                under_way.extend(UnderWay::begin(&source, machine, name));
            }
            2 if !under_way.is_empty() => {
                let at = random.below(under_way.len() as u64) as usize;
                under_way[at].step();
            }
            3 if !under_way.is_empty() => {
                let at = random.below(under_way.len() as u64) as usize;
                match under_way.swap_remove(at).finish() {
                    Ok(name) => _ = there.insert(name),
                    Err(RepositoryError::TooSlow) => slow += 1,
                    Err(RepositoryError::Present(_)) => {}
                    Err(error) => panic!("{context}: {error}"),
                }
            }
            // One is switched off.
            4 if random.below(4) == 0 => drop(under_way.pop()),
            4 => {
                let name = names[random.below(5) as usize];
                if let Ok(found) = machines[0].find(Some(name)) {
                    machines[0].delete(found.id).unwrap();
                    there.remove(name);
                }
            }
            5 | 6 => drop(machines[1].prune(&Policy::default(), false, false).unwrap()),
            _ => {
                let hours = [1, 5, 11, 26, 200][random.below(5) as usize];
                service.pass(hours);
                source.clock.advance(Duration::from_secs(hours as u64 * 3600));
            }
        }
        let verified = machines[0].verify(false, &mut |_, _| {}).unwrap();
        assert!(verified.findings.is_empty(), "{context}: {:?}", verified.findings);
        let listed: Vec<_> =
            machines[1].snapshots().unwrap().snapshots.into_iter().map(|found| found.name).collect();
        assert_eq!(listed.len(), there.len(), "{context}");
    }
    for name in &there {
        let (begin, bytes) = source.stream(name);
        let pulled = pull(&machines[1], &begin, &StreamReader::new(begin.stream())).unwrap();
        assert!(pulled == bytes, "seed {seed}, \"{name}\"");
    }
    drop(under_way);
    // All that is of no use goes in the end, and nothing else.
    for hours in [200, 25] {
        service.pass(hours);
        machines[0].prune(&Policy::default(), false, false).unwrap();
    }
    service.pass(25);
    machines[0].prune(&Policy::default(), false, false).unwrap();
    let needed = machines[0].verify(true, &mut |_, _| {}).unwrap();
    let chunks = service.names().iter().filter(|name| name.as_ref().contains("/chunks/")).count() as u64;
    assert!(
        needed.findings.is_empty() && needed.chunks == chunks,
        "seed {seed}: {needed:?}, {chunks} are there ({slow})"
    );
}

#[test]
fn whatever_is_pushed_removed_and_pruned_meanwhile_snapshots_stay_whole() {
    for seed in 1..=12 {
        run(seed);
    }
}
