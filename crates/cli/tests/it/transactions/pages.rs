//! Commits that wait for dirty pages of their views, which wait for another transaction's lock.
//!
//! A process with dirty pages waits for them wherever it closes the file, and so does a command that is run
//! meanwhile with a copy of its number. So a process of its own has them, which runs nothing.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use kvfs_rpc::client::blocking::{Store, Transaction};
use kvfs_rpc::client::{BeginOptions, Client, ClientError};
use kvfs_rpc::server::Limits;

use super::limits::is_open;
use crate::crash::mapped::{Mapping, PAGE_BYTES};
use crate::world::{PATIENCE, World, can_mount, daemon_of, daemons_of, kvfs, run, wait_until};

const IN_USE: i32 = 3;
const MAPPED_FILES: &str = "KVFS_TEST_MAPPED_FILES";

/// Not a test of its own: has a dirty page of each file until its input ends. Started by the tests below.
#[test]
fn mapping_process() {
    let Some(paths) = env::var_os(MAPPED_FILES) else { return };
    let map = |path| {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut mapping = Mapping::new(&file, PAGE_BYTES).unwrap();
        // As long as the page is clean.
        drop(file);
        mapping.write(0, b"mine");
        mapping
    };
    let mappings: Vec<Mapping> = env::split_paths(&paths).map(map).collect();
    println!("dirty");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    drop(mappings);
}

/// Transactions with a dirty page each of the file `paged`.
#[derive(Default)]
struct Paged {
    txns: Vec<Transaction>,
    process: Option<Child>,
}

impl Paged {
    fn begin(&mut self, client: &mut Store, count: usize) {
        self.txns.extend((0..count).map(|_| begin(client)));
        let paths = self.txns.iter_mut().map(|txn| txn.path("/paged").unwrap());
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["--exact", "transactions::pages::mapping_process", "--nocapture"])
            .env(MAPPED_FILES, env::join_paths(paths).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        self.process = Some(process);
        assert!(lines.map(Result::unwrap).any(|line| line.ends_with("dirty")));
    }
}

impl Drop for Paged {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// No call takes longer, also where a test fails.
fn connect(dir: &str) -> Store {
    Store::connect(Path::new(dir)).unwrap().map(|client| client.within(PATIENCE / 2))
}

fn begin(client: &mut Store) -> Transaction {
    client.begin(BeginOptions::default()).unwrap()
}

/// A mount on which `holder` has the lock of a page that those of `paged` have dirty.
struct Held {
    // Where a test fails, the world goes first, and ends the connections.
    world: World,
    dir: String,
    holder: Transaction,
    paged: Paged,
}

impl Held {
    fn new(paged_count: usize) -> Self {
        let mut paged = Paged::default();
        let world = World::new();
        let (_, dir) = world.mounted();
        fs::write(format!("{dir}/paged"), [b'0'; PAGE_BYTES]).unwrap();
        let mut client = connect(&dir);
        let mut holder = begin(&mut client);
        let file = File::options().write(true).open(holder.path("/paged").unwrap()).unwrap();
        file.write_all_at(b"held", 0).unwrap();
        drop(file);
        paged.begin(&mut client, paged_count);
        Self { world, dir, holder, paged }
    }

    /// The page is `content` at the end, and what is mounted can be unmounted.
    fn end(self, content: [u8; 4]) {
        assert_eq!(fs::read(format!("{}/paged", self.dir)).unwrap()[..4], content);
        let Self { world: _world, dir, paged, .. } = self;
        drop(paged);
        kvfs(&["umount", &dir]).ok();
    }
}

/// How many transactions are being committed.
fn committing_count(dir: &str) -> usize {
    let list = kvfs(&["txn", "-s", dir, "list", "--json"]).ok();
    let list: Vec<serde_json::Value> = serde_json::from_str(&list).unwrap();
    list.iter().filter(|line| line["state"] == "committing").count()
}

#[test]
fn transaction_is_committed_beside_commits_of_its_user_whose_pages_wait_for_it() {
    if !can_mount("transaction_is_committed_beside_commits_of_its_user_whose_pages_wait_for_it") {
        return;
    }
    // As many as one user has threads.
    let mut held = Held::new(Limits::default().threads - 2);
    let commit = |id: u64| {
        let dir = held.dir.clone();
        thread::spawn(move || {
            let mut inside = connect(&dir).map(|client| client.in_txn(id));
            inside.call(Client::commit)
        })
    };
    let commits: Vec<_> = held.paged.txns.iter().map(|txn| commit(txn.id())).collect();
    wait_until("all commits", || committing_count(&held.dir) == commits.len());
    assert!(commits.iter().all(|commit| !commit.is_finished()));
    held.holder.commit().unwrap();
    for commit in commits {
        let refused = commit.join().unwrap().unwrap_err();
        assert!(matches!(refused, ClientError::Conflict(_)), "{refused}");
    }
    held.end(*b"held");
}

#[test]
fn umount_that_keeps_transactions_is_refused_while_pages_of_one_wait_for_another() {
    if !can_mount("umount_that_keeps_transactions_is_refused_while_pages_of_one_wait_for_another") {
        return;
    }
    let mut held = Held::new(1);
    let Held { dir, holder, paged, .. } = &mut held;
    let kept = &mut paged.txns[0];
    kvfs(&["umount", "--checkpoint-open", dir]).fails(
        IN_USE,
        &[
            &format!("transaction {} can't be kept as a branch", kept.id()),
            "dirty pages wait for another transaction's lock",
            "all are open as before",
        ],
    );
    assert!([&*holder, &*kept].iter().all(|txn| is_open(dir, &txn.id().to_string())));
    holder.abort().unwrap();
    kept.commit().unwrap();
    held.end(*b"mine");
}

#[test]
fn commit_whose_pages_wait_goes_on_when_the_mount_has_gone() {
    if !can_mount("commit_whose_pages_wait_goes_on_when_the_mount_has_gone") {
        return;
    }
    let held = Held::new(1);
    let (dir, id) = (held.dir.clone(), held.paged.txns[0].id());
    let store = held.world.text("store");
    let commit = thread::spawn({
        let dir = dir.clone();
        move || connect(&dir).map(|client| client.in_txn(id)).call(Client::commit)
    });
    wait_until("the commit", || committing_count(&dir) == 1);
    let daemon = daemon_of(&store);
    run(Command::new("umount").arg(&dir)).ok();
    wait_until("the end of the daemon", || !daemons_of(Path::new(&store)).contains(&daemon));
    // Whether it is told depends on which comes first, the answer or the end of its connection.
    let _ = commit.join().unwrap();
    let log = fs::read_to_string(format!("{store}/kvfs.log")).unwrap();
    assert!(!log.contains("key-value requests are being worked on still"), "{log}");
    kvfs(&["mount", &store, &dir]).ok();
    held.end(*b"mine");
}
