//! Many lives of one journal, each ended by a crash at a random event: what is replayed is always a
//! prefix of what was appended, and holds everything that had been synced.

use kvfs_device::{CrashDevice, CrashMode};

use super::*;

/// What a life did, with the number of device events before and after each step that matters.
#[derive(Default)]
struct Life {
    /// (events when sync returned, seqno).
    synced: Vec<(usize, Seqno)>,
    /// (events from which on the manifest may say so, and must say so, tail, flushed seqno).
    tails: Vec<(usize, usize, Lsn, Seqno)>,
}

/// What a store knows apart from the journal.
#[derive(Clone)]
struct Outside {
    tail: Lsn,
    flushed: Seqno,
    /// Everything in the current history, by seqno of the batch's first operation.
    history: Vec<(Seqno, Batch)>,
}

struct World {
    seed: u64,
    rng: Rng,
    batches: u64,
}

impl World {
    /// Appends, syncs, and retires at random.
    fn live(&mut self, device: &Arc<CrashDevice>, journal: &Journal, outside: &mut Outside) -> Life {
        let mut life = Life { synced: vec![], tails: vec![(0, 0, outside.tail, outside.flushed)] };
        let mut next = outside.history.last().map_or(1, |(base, batch)| base + batch.len() as u64);
        next = next.max(outside.flushed + 1);
        // Where batches began whose seqnos are not in runs, by seqno.
        let mut starts: Vec<(Seqno, Lsn)> = Vec::new();
        for _ in 0..self.rng.range(5, 60) {
            match self.rng.below(10) {
                0..=5 => {
                    self.batches += 1;
                    let value_len_max = if self.rng.chance(1, 4) { 20_000 } else { 300 };
                    let batch = random_batch(self.seed << 32 | self.batches, value_len_max);
                    match journal.append(next, plain(&batch)) {
                        Ok(appended) => starts.push((next, appended.lsn)),
                        Err(AppendError::AreaFull(_)) => {
                            Self::retire_all(device, journal, &mut life, next);
                            starts.clear();
                            continue;
                        }
                        Err(error) => panic!("{error}"),
                    }
                    next += batch.len() as u64;
                    outside.history.push((next - batch.len() as u64, batch));
                }
                6 | 7 => {
                    journal.sync(next - 1).unwrap();
                    life.synced.push((device.events_len(), next - 1));
                }
                8 => journal.write_out().unwrap(),
                _ if self.rng.chance(1, 3) => {
                    Self::retire_all(device, journal, &mut life, next);
                    starts.clear();
                }
                _ if !starts.is_empty() => {
                    // Everything before one of the batches goes into runs.
                    let at = self.rng.index(starts.len());
                    let (seqno, lsn) = starts[at];
                    Self::retire(device, journal, &mut life, lsn, seqno - 1);
                    starts.drain(..at);
                }
                _ => {}
            }
        }
        life
    }

    fn retire_all(device: &CrashDevice, journal: &Journal, life: &mut Life, next: Seqno) {
        // The open group can still be in memory: its batches are then in runs alone.
        Self::retire(device, journal, life, journal.head(), next - 1);
    }

    /// As the flush of a memtable: runs and the manifest's new tail reach the device, then the
    /// journal may use the space again.
    fn retire(device: &CrashDevice, journal: &Journal, life: &mut Life, tail: Lsn, flushed: Seqno) {
        let may_from = device.events_len();
        device.flush().unwrap();
        life.tails.push((may_from, device.events_len(), tail, flushed));
        journal.retire(tail);
    }

    /// What the manifest says after a crash at `event`.
    fn tail_at(&mut self, life: &Life, event: usize) -> (Lsn, Seqno) {
        let (_, _, tail, flushed) =
            *life.tails.iter().rfind(|&&(_, must_from, ..)| must_from <= event).unwrap();
        let maybe = life.tails.iter().rfind(|&&(may_from, ..)| may_from <= event);
        match maybe {
            Some(&(_, _, tail, flushed)) if self.rng.chance(1, 2) => (tail, flushed),
            _ => (tail, flushed),
        }
    }

    /// Checks what a crash at `event` leaves, and gives what the store knows then.
    fn check(
        &mut self,
        image: &Arc<MemoryDevice>,
        epoch: u64,
        life: &Life,
        event: usize,
        now: &Outside,
    ) -> Outside {
        let place = format!("seed {}, epoch {epoch}, event {event}", self.seed);
        let (tail, flushed) = self.tail_at(life, event);
        let (_, replayed) = open(image, epoch, tail).unwrap_or_else(|error| panic!("{place}: {error}"));
        let found: Vec<_> = replayed
            .into_iter()
            .filter(|found| found.base > flushed)
            .map(|found| (found.base, found.batch))
            .collect();
        let first = now.history.partition_point(|(base, _)| *base <= flushed);
        let rest = &now.history[first..];
        assert!(found.len() <= rest.len(), "{place}: more batches than were appended");
        for (got, want) in found.iter().zip(rest) {
            assert!(got == want, "{place}: seqno {} instead of {}, or other content", got.0, want.0);
        }
        let last = found.last().map_or(flushed, |(base, batch)| base + batch.len() as u64 - 1);
        let synced = life.synced.iter().rfind(|&&(at, _)| at <= event).map_or(0, |&(_, seqno)| seqno);
        assert!(last >= synced, "{place}: {synced} was synced, {last} is the last one found");
        Outside { tail, flushed, history: now.history[..first + found.len()].to_vec() }
    }
}

#[test]
fn after_any_crash_a_prefix_with_all_that_was_synced_is_replayed() {
    for seed in 0..200 {
        let mut world = World { seed, rng: Rng::new(seed), batches: 0 };
        let mut image = new_device();
        let mut outside = Outside { tail: Lsn(0), flushed: 0, history: vec![] };
        for life_index in 0..6 {
            let epoch = life_index + 1;
            let device = Arc::new(CrashDevice::over(image).with_log().unwrap());
            let journal =
                Journal::open(device.clone(), AREA, epoch, (outside.tail, 0), still(), &mut |_| Ok(()))
                    .unwrap();
            let life = world.live(&device, &journal, &mut outside);
            // The events of opening itself come first: crash there too.
            for _ in 0..8 {
                let event = world.rng.index(device.events_len() + 1);
                let crashed = device.image_at(event, world.rng.next_u64(), CrashMode::Any).unwrap();
                world.check(&Arc::new(crashed), epoch + 1, &life, event, &outside);
            }
            let event = world.rng.index(device.events_len() + 1);
            let crashed = Arc::new(device.image_at(event, world.rng.next_u64(), CrashMode::Any).unwrap());
            image = Arc::new(crashed.fork());
            outside = world.check(&crashed, epoch + 1, &life, event, &outside);
        }
    }
}

#[test]
fn what_an_opening_replayed_survives_a_power_cut() {
    let device = Arc::new(CrashDevice::over(new_device()));
    let journal = Journal::open(device.clone(), AREA, 1, (Lsn(0), 0), still(), &mut |_| Ok(())).unwrap();
    let lsns = append_groups(&journal, 1, 4);
    // The process dies, the machine does not; one group was never written.
    drop(journal);
    device.write_at(&[0; 4096], AREA.addr + lsns[2].0).unwrap();
    let journal = Journal::open(device.clone(), AREA, 2, (Lsn(0), 0), still(), &mut |_| Ok(())).unwrap();
    assert_eq!(journal.durable_seqno(), 2);
    let image = Arc::new(device.crash_image(0, CrashMode::DropAll).unwrap());
    let (_, replayed) = open(&image, 2, Lsn(0)).unwrap();
    assert_eq!(seqnos(&replayed), [1, 2]);
    let (_, remains) = open(&image, 3, lsns[3]).unwrap();
    assert_eq!(seqnos(&remains), [0_u64; 0], "the wiping of remains is durable as well");
}
