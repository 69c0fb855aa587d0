//! Writers that take a store over from one another, again and again: from dead ones, from such as were held
//! up, and from such as are alive.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use kvfs_device::Rng;
use kvfs_store::{EngineStore, StoreError};
use tempfile::TempDir;

use super::*;

/// Set for a child: the directory of the store, the number of its round, whether it takes over from whatever
/// is alive.
const WRITER: &str = "KVFS_SLATEDB_WRITER";

/// How often the store is taken over; a few times unless this says otherwise.
const ROUNDS: &str = "KVFS_SLATEDB_TAKE_OVERS";
const ROUNDS_SHORT: u64 = 6;

/// From the start of a writer, the end of the lease included, to its first batch that is durable.
const FIRST_SYNC_MAX: Duration = Duration::from_secs(10);

/// Batches that a writer lives for, at most.
const BATCHES_MAX: u64 = 60;

fn key(round: u64, number: u64) -> Vec<u8> {
    [round.to_be_bytes(), number.to_be_bytes()].concat()
}

/// Not a test by itself: a writer. It tells what it has opened, each batch that is durable, and why it ends.
#[test]
fn writer() {
    let Ok(asked) = std::env::var(WRITER) else { return };
    let mut words = asked.splitn(3, ' ');
    let round: u64 = words.next().unwrap().parse().unwrap();
    let takes_over = words.next().unwrap() == "true";
    let path = Path::new(words.next().unwrap());
    let claimant = Claimant { takes_over, name: format!("writer {round}"), ..options().claimant };
    let store = SlateStore::open(&place(path), &SlateOptions { claimant, ..options() }).unwrap();
    let plain = store.open_keyspace("plain", KeyspaceKind::Tuple, None).unwrap();
    println!("\nopened");
    for number in 0_u64.. {
        let mut batch = Batch::new();
        // Enough for tables now and then, so that there is something to compact.
        batch.put(plain, key(round, number), vec![round as u8; 20_000]);
        match store.apply(batch, Durability::Synced) {
            Ok(_) => println!("\nacknowledged {number}"),
            Err(error) => {
                println!("\nended {error}");
                return;
            }
        }
    }
}

struct Writer {
    child: Child,
    lines: Receiver<String>,
    /// The last batch that it has told of.
    acknowledged: Option<u64>,
    ended: Option<String>,
}

impl Writer {
    fn start(path: &Path, round: u64, takes_over: bool) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "slatedb::taking_over::writer", "--nocapture"])
            .env(WRITER, format!("{round} {takes_over} {}", path.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (told, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in out.lines().map_while(std::result::Result::ok) {
                if told.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines, acknowledged: None, ended: None }
    }

    /// Takes the next thing that it tells; false: it is gone.
    fn hear(&mut self) -> bool {
        let Ok(line) = self.lines.recv() else { return false };
        if let Some(number) = line.strip_prefix("acknowledged ") {
            self.acknowledged = Some(number.parse().unwrap());
        }
        if let Some(why) = line.strip_prefix("ended ") {
            self.ended = Some(why.to_owned());
        }
        true
    }

    /// Returns when so many batches are acknowledged.
    fn wait_for(&mut self, count: u64) {
        while self.acknowledged.is_none_or(|last| last + 1 < count) {
            assert!(self.hear(), "it has ended: {:?}", self.ended);
        }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.child.id())]).status();
        assert!(sent.unwrap().success());
    }

    /// Returns the last batch that it has acknowledged, when it has gone.
    fn end(mut self) -> (Option<u64>, Option<String>) {
        while self.hear() {}
        self.child.wait().unwrap();
        (self.acknowledged, self.ended)
    }

    fn kill(mut self) -> Option<u64> {
        self.child.kill().unwrap();
        self.end().0
    }
}

/// Each writer's batches are there up to the last one that it acknowledged, or one behind it, without a hole.
fn assert_kept(path: &Path, acknowledged: &BTreeMap<u64, Option<u64>>) {
    let store = open(path);
    let plain = store.open_keyspace("plain", KeyspaceKind::Tuple, None).unwrap();
    for (round, last) in acknowledged {
        let is_there = |number| store.get(plain, &key(*round, number)).unwrap().is_some();
        let count = last.map_or(0, |last| last + 1);
        for number in 0..count {
            assert!(
                is_there(number),
                "batch {number} of writer {round} is lost, which acknowledged {last:?}"
            );
        }
        assert!(!is_there(count + 1), "writer {round} has written more than it told of");
    }
    assert!(store.verify().unwrap().findings.is_empty());
    store.close().unwrap();
}

#[test]
fn store_that_is_taken_over_again_and_again_loses_nothing_that_was_acknowledged() {
    let rounds = std::env::var(ROUNDS).map_or(ROUNDS_SHORT, |text| text.parse().unwrap());
    let seed = std::env::var("KVFS_SEED").map_or(0x7a6e_0ff5, |text| text.parse().unwrap());
    eprintln!("{rounds} rounds, KVFS_SEED={seed}");
    let mut rng = Rng::new(seed);
    let dir = TempDir::new().unwrap();
    create(dir.path());
    let clock = SystemClock::new();
    let (mut acknowledged, mut slowest) = (BTreeMap::new(), Duration::ZERO);
    let mut alive: Option<(u64, Writer)> = None;
    for round in 0..rounds {
        let begun = clock.monotonic();
        let mut writer = Writer::start(dir.path(), round, alive.is_some());
        writer.wait_for(1);
        let took = clock.monotonic().saturating_sub(begun);
        assert!(took <= FIRST_SYNC_MAX, "seed {seed}, round {round}: the first sync took {took:?}");
        slowest = slowest.max(took);
        if let Some((of, fenced)) = alive.take() {
            let (last, why) = fenced.end();
            let why = why.unwrap_or_default();
            assert!(why.contains("taken this store over"), "seed {seed}, writer {of}: {why}");
            acknowledged.insert(of, last);
        }
        writer.wait_for(1 + rng.below(BATCHES_MAX));
        if rng.chance(1, 2) {
            acknowledged.insert(round, writer.kill());
        } else {
            alive = Some((round, writer));
        }
    }
    if let Some((of, writer)) = alive {
        acknowledged.insert(of, writer.kill());
    }
    assert_eq!(acknowledged.len() as u64, rounds);
    assert_kept(dir.path(), &acknowledged);
    let batches: u64 = acknowledged.values().flatten().map(|last| last + 1).sum();
    eprintln!("{batches} batches were acknowledged, and are there; the slowest first sync took {slowest:?}");
}

#[test]
fn writer_that_was_held_up_for_longer_than_its_lease_acknowledges_nothing_that_the_next_one_lacks() {
    let dir = TempDir::new().unwrap();
    create(dir.path());
    let mut held_up = Writer::start(dir.path(), 0, false);
    held_up.wait_for(10);
    held_up.signal("STOP");
    // It is dead to the others after its lease, not asked, and goes on when the next one has the store.
    let mut next = Writer::start(dir.path(), 1, false);
    next.wait_for(5);
    held_up.signal("CONT");
    let (last, why) = held_up.end();
    assert!(why.is_some_and(|why| why.contains("taken this store over")));
    next.wait_for(10);
    let acknowledged = BTreeMap::from([(0, last), (1, next.kill())]);
    assert_kept(dir.path(), &acknowledged);
}

#[test]
fn mount_that_was_taken_over_leaves_the_record_of_the_next_one_when_it_is_closed() {
    let dir = TempDir::new().unwrap();
    create(dir.path());
    let record = || std::fs::read_to_string(dir.path().join("kvfs-holder")).unwrap_or_default();
    let with = |name: &str, lease: Duration, takes_over: bool| {
        let claimant = Claimant { name: name.to_owned(), lease, takes_over, ..options().claimant };
        SlateStore::open(&place(dir.path()), &SlateOptions { claimant, ..options() })
    };
    // Neither writes its record again before the end of the test.
    let old = with("host a", Duration::from_mins(10), false).unwrap();
    wait_until("it says so", || record().starts_with("host a\n"));
    old.sync(old.position()).unwrap();
    let new = with("host b", Duration::from_secs(8), true).unwrap();
    wait_until("it says so", || record().starts_with("host b\n"));
    // It may have noticed or not.
    drop(old.close());
    assert!(record().starts_with("host b\n"), "{}", record());
    let refused = with("host c", Duration::from_secs(8), false).err().unwrap();
    assert!(refused.to_string().contains("alive: host b"), "{refused}");
    assert_eq!(new.failure(), None);
    new.close().unwrap();
    assert_eq!(record(), "");
}

#[test]
fn lease_that_counts_is_that_of_the_holder() {
    let dir = TempDir::new().unwrap();
    create(dir.path());
    let with = |lease: Duration| {
        let claimant = Claimant { lease, ..options().claimant };
        SlateStore::open(&place(dir.path()), &SlateOptions { claimant, ..options() })
    };
    // It writes its record each quarter of an hour, and is alive to one that would give it a moment.
    let holder = with(Duration::from_hours(1)).unwrap();
    wait_until("it says so", || dir.path().join("kvfs-holder").exists());
    let record = std::fs::read_to_string(dir.path().join("kvfs-holder")).unwrap();
    assert_eq!(record.lines().nth(3), Some("3600000"));
    holder.close().unwrap();
    // A dead one's record with a short lease is waited for no longer than that.
    std::fs::write(dir.path().join("kvfs-holder"), "host a\n1\n7\n200\n").unwrap();
    let clock = SystemClock::new();
    let begun = clock.monotonic();
    with(Duration::from_mins(10)).unwrap().close().unwrap();
    assert!(clock.monotonic().saturating_sub(begun) < Duration::from_mins(1));
    // One that is alive is found so within it.
    let holder = with(Duration::from_millis(800)).unwrap();
    wait_until("it says so", || dir.path().join("kvfs-holder").exists());
    let refused = with(Duration::from_hours(1)).err().unwrap();
    assert!(matches!(&refused, StoreError::Io { .. }) && refused.to_string().contains("alive"), "{refused}");
    holder.close().unwrap();
}
