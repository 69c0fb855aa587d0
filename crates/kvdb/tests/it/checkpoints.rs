//! Checkpointed transactions: what a crash at any moment leaves of them, and that their space comes back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvfs_device::{CrashDevice, CrashMode, Device, Rng};
use kvfs_kvdb::Db;
use kvfs_store::{
    BLOCK_BYTES, Batch, Checkpoints, Durability, KeyRange, Keyspace, NamedSnapshots, Read, Records, Store,
    StoreError, Touch, Transactions, Txn, TxnId, TxnOptions, TxnOutcome,
};

use crate::basics::{Append, create, data, open, put, rows};

const ZONES: u64 = 300;
const ZONE_BYTES: u64 = 256 << 10;

/// Keys and values, and the first byte of each block.
pub(crate) type Content = (BTreeMap<String, String>, BTreeMap<u64, u8>);

fn keyspaces(db: &Db) -> (Keyspace, Keyspace) {
    (rows(db), data(db))
}

pub(crate) fn content(read: &dyn Read, (rows, data): (Keyspace, Keyspace)) -> Content {
    let mut content = Content::default();
    let mut cursor = read.cursor(rows, KeyRange::all()).expect("opens");
    cursor.first().expect("moves");
    while let Some((key, value)) = cursor.entry() {
        content.0.insert(String::from_utf8_lossy(key).into(), String::from_utf8_lossy(value).into());
        cursor.next().expect("moves");
    }
    let mut cursor = read.cursor(data, KeyRange::all()).expect("opens");
    cursor.first().expect("moves");
    while let Some((key, value)) = cursor.entry() {
        let block = key.last_chunk().map(|chunk| u64::from_be_bytes(*chunk)).expect("a block's key");
        content.1.insert(block, value[0]);
        cursor.next().expect("moves");
    }
    content
}

/// One random batch, and what it does to `content`.
pub(crate) fn change(rng: &mut Rng, (rows, data): (Keyspace, Keyspace), content: &mut Content) -> Batch {
    let mut batch = Batch::new();
    for _ in 0..rng.range(1, 5) {
        let key = format!("k{}", rng.below(12));
        match rng.below(4) {
            0 => {
                batch.delete(rows, key.clone());
                content.0.remove(&key);
            }
            1 => {
                let (first, fill) = (rng.below(8), rng.range(1, 250) as u8);
                batch.put_blocks(data, "f", first, vec![fill; 2 * BLOCK_BYTES]);
                content.1.extend([(first, fill), (first + 1, fill)]);
            }
            _ => {
                let value = format!("{}", rng.next_u64());
                batch.put(rows, key.clone(), value.clone());
                content.0.insert(key, value);
            }
        }
    }
    batch
}

/// What the manifest may hold for each transaction when so many events have happened: `None`: nothing.
#[derive(Clone, PartialEq, Debug)]
struct StallTimer {
    checkpoints: BTreeMap<TxnId, Content>,
    main: Content,
}

struct Step {
    began: usize,
    ended: usize,
    held: StallTimer,
}

struct Open {
    txn: Option<Arc<dyn Txn>>,
    id: TxnId,
    now: Content,
    saved: Option<Content>,
}

/// A run of so many steps; after each one the main line is synced, so that a crash leaves what one of two
/// steps had made.
struct Run {
    crash: Arc<CrashDevice>,
    db: Arc<Db>,
    rng: Rng,
    main: Content,
    txns: Vec<Open>,
    steps: Vec<Step>,
    /// What the step that is under way may leave behind its first part.
    half: Option<StallTimer>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let crash = CrashDevice::in_memory(0, ZONES * ZONE_BYTES).with_log().expect("logs");
        let crash = Arc::new(crash);
        let device = Arc::clone(&crash) as Arc<dyn Device>;
        create(&device, ZONES);
        let db = Self::open(&device);
        keyspaces(&db);
        let mut run = Self {
            crash,
            db,
            rng: Rng::new(seed),
            main: Content::default(),
            txns: Vec::new(),
            steps: Vec::new(),
            half: None,
        };
        run.note(0);
        run
    }

    fn open(device: &Arc<dyn Device>) -> Arc<Db> {
        // Most batches are spilled at once.
        open(device, |options| {
            options.private_bytes = 1;
            options.memtable_bytes = 64 << 10;
        })
    }

    fn note(&mut self, began: usize) {
        self.db.sync(self.db.position()).expect("syncs");
        let ended = self.crash.events_len();
        let half = self.half.take();
        self.steps.extend(half.into_iter().chain([self.held()]).map(|held| Step { began, ended, held }));
    }

    fn held(&self) -> StallTimer {
        let saved = |open: &Open| open.saved.clone().map(|saved| (open.id, saved));
        let checkpoints = self.txns.iter().filter_map(saved).collect();
        StallTimer { checkpoints, main: self.main.clone() }
    }

    fn step(&mut self) {
        let began = self.crash.events_len();
        let spaces = keyspaces(&self.db);
        let at = self.rng.index(self.txns.len().max(1));
        match self.rng.below(16) {
            0 | 1 if self.txns.len() < 3 => {
                let txn = self.db.begin(TxnOptions::default()).expect("begins");
                let (id, now) = (txn.id(), self.main.clone());
                self.txns.push(Open { txn: Some(txn), id, now, saved: None });
            }
            2 | 3 => {
                let batch = change(&mut self.rng, spaces, &mut self.main);
                self.db.apply(batch, Durability::Buffered).expect("applies");
            }
            4 => self.db.flush().expect("flushes"),
            5 => self.db.compact().expect("merges"),
            6 => self.reopen(),
            14 | 15 => self.fork(at),
            _ if self.txns.is_empty() => {}
            choice => self.step_of(at, choice),
        }
        self.note(began);
    }

    /// A step of one transaction, which is resumed first if it has to be.
    fn step_of(&mut self, at: usize, choice: u64) {
        let spaces = keyspaces(&self.db);
        let Open { txn, id, now, saved } = &mut self.txns[at];
        let txn = txn.get_or_insert_with(|| self.db.resume(*id).expect("resumes"));
        assert_eq!(content(&**txn, spaces), *now, "transaction {id}");
        match choice {
            7 | 8 => {
                let batch = change(&mut self.rng, spaces, now);
                // Of one that was not resumed the first updater wins.
                if txn.apply(batch).is_err() {
                    *now = content(&**txn, spaces);
                }
            }
            9 | 10 => {
                txn.checkpoint(b"me").expect("is checkpointed");
                *saved = Some(now.clone());
            }
            11 => {
                txn.prepare().expect("prepares");
                if saved.is_some() {
                    *saved = Some(now.clone());
                }
            }
            12 if saved.is_some() => {
                self.txns[at].txn = None;
                self.txns[at].now = self.txns[at].saved.clone().expect("looked at");
            }
            12 => {
                txn.abort();
                self.txns.remove(at);
            }
            _ => self.end(at),
        }
    }

    /// Another transaction from the checkpoint of that one, if it has any, be it open or not.
    fn fork(&mut self, at: usize) {
        let from = self.txns.get(at).filter(|_| self.txns.len() < 5);
        let Some(Open { id, saved: Some(saved), .. }) = from else { return };
        let (id, saved) = (*id, saved.clone());
        let id = self.db.fork(id, &|_| "me".into()).expect("forks");
        self.txns.push(Open { txn: None, id, now: saved.clone(), saved: Some(saved) });
    }

    fn end(&mut self, at: usize) {
        let spaces = keyspaces(&self.db);
        let mut half = self.held();
        let Open { txn, id, now, saved } = self.txns.remove(at);
        let txn = txn.expect("is open");
        if self.rng.below(3) == 0 {
            txn.abort();
            assert_eq!(self.db.txn_outcome(id), TxnOutcome::Unknown);
        } else {
            // What is prepared for the commit is a newer checkpoint until the commit is durable.
            if saved.is_some() {
                half.checkpoints.insert(id, now);
                self.half = Some(half);
            }
            txn.commit(Durability::Buffered).expect("commits");
            self.main = content(&*self.db, spaces);
        }
    }

    fn reopen(&mut self) {
        self.txns.retain_mut(|open| {
            open.txn = None;
            if let Some(saved) = &open.saved {
                open.now = saved.clone();
            }
            open.saved.is_some()
        });
        self.db.close().expect("closes");
        let device = Arc::clone(&self.crash) as Arc<dyn Device>;
        self.db = Self::open(&device);
        let listed: Vec<_> = self.db.checkpointed().iter().map(|info| info.id).collect();
        let mut expected: Vec<_> = self.txns.iter().map(|open| open.id).collect();
        expected.sort_unstable();
        assert_eq!(listed, expected);
    }

    /// What a crash after `event` events leaves must be what one of the steps that it may have hit left.
    fn check(&self, event: usize, seed: u64, mode: CrashMode) {
        let place = format!("seed {seed}, event {event}, {mode:?}");
        let image: Arc<dyn Device> = Arc::new(self.crash.image_at(event, seed, mode).expect("an image"));
        let db = Self::open(&image);
        let spaces = keyspaces(&db);
        let newest = self.steps.iter().rposition(|step| step.ended <= event).unwrap_or(0);
        let allowed: Vec<&StallTimer> =
            self.steps[newest..].iter().filter(|step| step.began <= event).map(|step| &step.held).collect();
        let mut found = BTreeMap::new();
        for info in db.checkpointed() {
            assert_eq!(&info.owner[..], b"me", "{place}");
            let txn = db.resume(info.id).expect("resumes");
            found.insert(info.id, content(&*txn, spaces));
        }
        let main = content(&*db, spaces);
        // The main line and the manifest take their steps one after the other.
        assert!(allowed.iter().any(|held| held.checkpoints == found), "{place}: {found:?}, not {allowed:?}");
        assert!(allowed.iter().any(|held| held.main == main), "{place}: {main:?}");
        let checked = db.check().expect("checks");
        assert!(checked.findings.is_empty(), "{place}: {:?}", checked.findings);
        Self::check_goes_on(&db, spaces, &place, found);
    }

    /// Each checkpoint can be written to and committed or aborted, after which all its space is free.
    fn check_goes_on(db: &Db, spaces: (Keyspace, Keyspace), place: &str, found: BTreeMap<TxnId, Content>) {
        for (at, (id, mut expected)) in found.into_iter().enumerate() {
            let txn = db.resume(id).expect("resumes");
            txn.apply(change(&mut Rng::new(id.0), spaces, &mut expected)).expect("applies");
            txn.checkpoint(b"later").expect("is checkpointed");
            drop(txn);
            let txn = db.resume(id).expect("resumes");
            assert_eq!(content(&*txn, spaces), expected, "{place}");
            if at % 2 == 0 {
                txn.commit(Durability::Synced).expect("commits");
            } else {
                txn.abort();
            }
        }
        assert_eq!(db.checkpointed(), [], "{place}");
        db.flush().expect("flushes");
        let checked = db.check().expect("checks");
        assert!(checked.findings.is_empty(), "{place}: {:?}", checked.findings);
    }
}

/// The promise of checkpoints: a crash leaves the former one or the new one, wholly, and the transaction goes
/// on from it.
#[test]
fn a_crash_at_any_event_leaves_the_former_checkpoint_or_the_new_one() {
    for seed in 0..6 {
        let mut run = Run::new(seed);
        for _ in 0..40 {
            run.step();
        }
        let first = run.steps[0].ended;
        let events = run.crash.events_len();
        for event in first..=events {
            let mode = [CrashMode::DropAll, CrashMode::KeepAll, CrashMode::Any][event % 3];
            run.check(event, seed, mode);
        }
    }
}

fn on_crash_device() -> (Arc<CrashDevice>, Arc<Db>) {
    let crash = Arc::new(CrashDevice::in_memory(0, ZONES * ZONE_BYTES));
    let device = Arc::clone(&crash) as Arc<dyn Device>;
    create(&device, ZONES);
    let db = Run::open(&device);
    (crash, db)
}

/// A number that was reserved on the main line before the checkpoint is not given again after a crash.
#[test]
fn what_was_written_beside_a_checkpoint_survives_with_it() {
    let (crash, db) = on_crash_device();
    let (rows, _) = keyspaces(&db);
    let txn = db.begin(TxnOptions::default()).expect("begins");
    put(&db, rows, "reserved", "100");
    let mut batch = Batch::new();
    batch.put(rows, "uses", "99");
    txn.apply(batch).expect("applies");
    txn.checkpoint(b"").expect("is checkpointed");
    put(&db, rows, "later", "1");
    let image: Arc<dyn Device> = Arc::new(crash.crash_image(1, CrashMode::DropAll).expect("an image"));
    let after = Run::open(&image);
    let (rows, _) = keyspaces(&after);
    assert_eq!(crate::basics::get(&after, rows, "reserved").as_deref(), Some("100"));
    assert_eq!(crate::basics::get(&after, rows, "later"), None);
    let txn = after.resume(txn.id()).expect("resumes");
    assert_eq!(txn.get(rows, b"uses").expect("reads").as_deref(), Some(&b"99"[..]));
    assert_eq!(txn.get(rows, b"reserved").expect("reads"), None, "behind its snapshot");
}

#[test]
fn the_space_of_an_aborted_checkpoint_comes_back() {
    let (crash, db) = on_crash_device();
    let (rows, _) = keyspaces(&db);
    put(&db, rows, "before", "1");
    db.flush().expect("flushes");
    let space = db.space();
    let txn = db.begin(TxnOptions::default()).expect("begins");
    for key in 0..20 {
        let mut batch = Batch::new();
        batch.put(rows, format!("k{key}"), vec![key; 100_000]);
        txn.apply(batch).expect("applies");
    }
    txn.checkpoint(b"").expect("is checkpointed");
    let id = txn.id();
    drop(txn);
    assert!(db.space().used_bytes > space.used_bytes + 2_000_000);
    let image: Arc<dyn Device> = Arc::new(crash.crash_image(1, CrashMode::DropAll).expect("an image"));
    for db in [Run::open(&image), db] {
        db.resume(id).expect("resumes").abort();
        assert!(db.space().used_bytes <= space.used_bytes, "{:?} of {space:?}", db.space());
        assert_eq!(db.checkpointed(), []);
    }
    assert_eq!(Run::open(&image).checkpointed(), [], "and for good");
}

/// What only the snapshot of a checkpoint sees is kept for it, through merges and openings.
#[test]
fn merges_keep_what_a_checkpoint_sees() {
    let (crash, db) = on_crash_device();
    let (rows, _) = keyspaces(&db);
    put(&db, rows, "key", "old");
    let txn = db.begin(TxnOptions::default()).expect("begins");
    txn.checkpoint(b"").expect("is checkpointed");
    let id = txn.id();
    drop(txn);
    let device = Arc::clone(&crash) as Arc<dyn Device>;
    let mut db = db;
    for round in 0..4 {
        put(&db, rows, "key", &format!("new {round}"));
        db.flush().expect("flushes");
        db.reclaim().expect("merges");
        if round == 1 {
            db.close().expect("closes");
            db = Run::open(&device);
        }
        let txn = db.resume(id).expect("resumes");
        assert_eq!(txn.get(rows, b"key").expect("reads").as_deref(), Some(&b"old"[..]));
    }
}

#[test]
fn a_commit_that_a_crash_takes_back_leaves_the_checkpoint_with_its_snapshot() {
    let crash = Arc::new(CrashDevice::in_memory(0, ZONES * ZONE_BYTES));
    let device = Arc::clone(&crash) as Arc<dyn Device>;
    create(&device, ZONES);
    let db = open(&device, |options| options.merge.class_runs = 2);
    let (rows, _) = keyspaces(&db);
    put(&db, rows, "changed", "old");
    put(&db, rows, "gone", "old");
    db.flush().expect("flushes");
    let txn = db.begin(TxnOptions::default()).expect("begins");
    let mut batch = Batch::new();
    batch.put(rows, "own", "1");
    txn.apply(batch).expect("applies");
    txn.checkpoint(b"").expect("is checkpointed");
    put(&db, rows, "changed", "new");
    let mut batch = Batch::new();
    batch.delete(rows, "gone");
    db.apply(batch, Durability::Synced).expect("applies");
    db.flush().expect("flushes");
    // Not durable, and then everything that could lose the snapshot.
    txn.commit(Durability::Buffered).expect("commits");
    db.compact().expect("merges");
    let image: Arc<dyn Device> = Arc::new(crash.crash_image(1, CrashMode::DropAll).expect("an image"));
    let db = open(&image, |_| {});
    let (rows, _) = keyspaces(&db);
    let txn = db.resume(txn.id()).expect("the commit is lost, and the checkpoint is not");
    for (key, value) in [("changed", "old"), ("gone", "old"), ("own", "1")] {
        assert_eq!(txn.get(rows, key.as_bytes()).expect("reads").as_deref(), Some(value.as_bytes()), "{key}");
    }
    let gone = [Records::Key { key: "gone".into(), touch: Touch::ALL }];
    assert!(txn.changed_since_snapshot(rows, &gone).expect("looks").is_some());
}

#[test]
fn a_checkpoint_after_one_that_failed_holds_what_came_in_between() {
    let device = crate::basics::make(ZONES);
    let db = open(&device, |_| {});
    let append = Append::refusing();
    let rows = append.rows(&db);
    let txn = db.begin(TxnOptions::default()).expect("begins");
    let mut batch = Batch::new();
    batch.put(rows, "first", "a");
    batch.merge(rows, "first", "b");
    txn.apply(batch).expect("applies");
    txn.checkpoint(b"").expect_err("can't be written");
    let mut batch = Batch::new();
    batch.put(rows, "later", "c");
    txn.apply(batch).expect("applies");
    append.refuses.store(false, Ordering::Relaxed);
    txn.checkpoint(b"").expect("is checkpointed");
    let id = txn.id();
    drop(txn);
    let txn = db.resume(id).expect("resumes");
    for (key, value) in [("first", "ab"), ("later", "c")] {
        assert_eq!(txn.get(rows, key.as_bytes()).expect("reads").as_deref(), Some(value.as_bytes()), "{key}");
    }
}

#[test]
fn transaction_at_a_named_snapshot_sees_it_and_meets_what_was_committed_since() {
    let (_crash, db) = on_crash_device();
    let (rows, _) = keyspaces(&db);
    for key in ["same", "changed", "removed"] {
        put(&db, rows, key, "then");
    }
    db.create_snapshot("then").expect("is made");
    // Through memory, runs and merges.
    for round in ["a", "b", "c"] {
        put(&db, rows, "changed", round);
        put(&db, rows, "new", round);
        db.flush().expect("flushes");
        db.compact().expect("merges");
    }
    let mut batch = Batch::new();
    batch.delete(rows, "removed");
    db.apply(batch, Durability::Buffered).expect("applies");
    db.flush().expect("flushes");
    db.compact().expect("merges");
    assert!(matches!(db.begin_at("none"), Err(StoreError::NoSnapshot(_))));
    let txn = db.begin_at("then").expect("begins");
    db.delete_snapshot("then").expect("is deleted");
    db.compact().expect("merges");
    let seen = |key: &str| txn.get(rows, key.as_bytes()).expect("reads");
    for key in ["same", "changed", "removed"] {
        assert_eq!(seen(key).as_deref(), Some(&b"then"[..]), "{key}");
    }
    assert_eq!(seen("new"), None);
    let write = |key: &'static str| {
        let mut batch = Batch::new();
        batch.put(rows, key, "txn");
        txn.apply(batch)
    };
    write("same").expect("is as it was");
    for key in ["changed", "removed", "new"] {
        assert!(matches!(write(key), Err(StoreError::Conflict { .. })), "{key}");
    }
    txn.checkpoint(b"").expect("is checkpointed");
    let id = txn.id();
    drop(txn);
    let txn = db.resume(id).expect("resumes");
    assert_eq!(txn.get(rows, b"changed").expect("reads").as_deref(), Some(&b"then"[..]));
    txn.commit(Durability::Synced).expect("commits");
    assert_eq!(crate::basics::get(&db, rows, "same").as_deref(), Some("txn"));
    assert_eq!(crate::basics::get(&db, rows, "changed").as_deref(), Some("c"));
    assert!(db.check().expect("checks").findings.is_empty());
}
