//! Pushing, pulling, verifying and pruning, over object storage that stops, loses and damages.

mod damage;
mod histories;
mod service;
mod standing;

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvfs_fs::transfer::{Begin, SendStream, StreamId, StreamReader};
use kvfs_fs::{
    Attr, BeginOptions, Caller, CloneRights, FileSystem, MkfsOptions, MountOptions, NodeId, WriteFlags,
    clone_tree,
};
use kvfs_store::Store;
use kvfs_store::clock::{Clock, ManualClock};
use kvfs_store::model::ModelStore;
use object_store::path::Path;

use crate::chunks::ChunkStore;
use crate::config::Passphrase;
use crate::error::{RepositoryError, Result};
use crate::layout::manifest_object;
use crate::manifest::{Manifest, Summary};
use crate::policy::Policy;
use crate::pull::Pull;
use crate::push::{Push, Pushed};
use crate::remote::Remote;
use crate::repository::{Repository, pick_newest};
use service::Service;

/// Those of root.
struct All;

impl CloneRights for All {
    fn is_everything(&self) -> bool {
        true
    }

    fn check_source(&self, _: NodeId, _: &Attr) -> kvfs_fs::Result<()> {
        Ok(())
    }

    fn owner_of(&self, attr: &Attr) -> (u32, u32) {
        (attr.uid, attr.gid)
    }

    fn is_alone(&self) -> bool {
        true
    }
}

/// A store whose snapshots are pushed.
struct Source {
    store: Arc<dyn Store>,
    clock: Arc<ManualClock>,
    fs: Arc<FileSystem>,
    caller: Caller,
}

impl Source {
    fn new(uuid: u8) -> Self {
        let store: Arc<dyn Store> = Arc::new(ModelStore::with_uuid([uuid; 16]));
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_700_000_000)));
        let mkfs = MkfsOptions { inline_len_max: 300, ..MkfsOptions::default() };
        FileSystem::mkfs(&store, &*clock, &mkfs).unwrap();
        let opened = FileSystem::open(Arc::clone(&store), clock.clone(), MountOptions::default());
        let caller = Caller { uid: 1000, gid: 100, ..Caller::default() };
        Self { store, clock, fs: Arc::new(opened.unwrap()), caller }
    }

    fn file(&self, name: &str) -> NodeId {
        if let Ok(found) = self.fs.lookup(&self.caller, NodeId::ROOT, name.as_bytes()) {
            return found.node;
        }
        self.fs.create(&self.caller, NodeId::ROOT, name.as_bytes(), 0o644, true).unwrap().0.node
    }

    fn write(&self, name: &str, offset: u64, content: &[u8]) {
        let node = self.file(name);
        for (part, at) in content.chunks(8 << 20).zip((offset..).step_by(8 << 20)) {
            self.fs.write(&self.caller, node, at, part.to_vec().into(), WriteFlags::default()).unwrap();
        }
    }

    fn snapshot(&self, name: &str) {
        self.clock.advance(Duration::from_mins(1));
        self.store.create_snapshot(name).unwrap();
    }

    fn send(&self, name: &str) -> SendStream {
        let info = self.store.named_snapshots().into_iter().find(|info| info.name == name).unwrap();
        SendStream::new(&self.fs, None, &self.fs.snapshots().id(&info).unwrap()).unwrap()
    }

    /// All bytes that `kvfs snapshot send` writes, and what they begin with.
    fn stream(&self, name: &str) -> (Begin, Vec<u8>) {
        let mut send = self.send(name);
        let mut bytes = Vec::new();
        while let Some(frame) = send.next_frame().unwrap() {
            bytes.extend_from_slice(&frame);
        }
        (send.begin().clone(), bytes)
    }

    fn push(&self, repository: &Repository, name: &str) -> Result<Pushed> {
        let (begin, bytes) = self.stream(name);
        let clock: Arc<dyn Clock> = self.clock.clone();
        let mut push = Push::new(repository, &begin, &clock)?;
        let (mut reader, mut source) = (StreamReader::new(begin.stream()), &bytes[..]);
        while let Some(frame) = reader.next(&mut source).unwrap() {
            push.frame(frame)?;
        }
        push.finish()
    }

    /// Clones a file of the root directory.
    fn clone(&self, from: &str, to: &str) {
        let view = self.fs.begin(&BeginOptions::default()).unwrap();
        let [from, to] = [from, to].map(|name| (NodeId::ROOT, name.as_bytes()));
        clone_tree(&view, &self.caller, from, to, &All).unwrap();
        drop(view.expect_txn().unwrap().freeze().unwrap().plan().unwrap().commit(|| ()).unwrap());
    }

    /// Small files, one of several chunks, one that is mostly a hole, clones, and keys.
    fn fill(&self, seed: u64) {
        for number in 0..40 {
            self.write(&format!("small {number}"), 0, &noise(seed + number, 100 * number as usize));
        }
        self.write("large", 0, &noise(seed + 100, 9 << 20));
        self.write("sparse", 5_000_000_000, &noise(seed + 200, 300 << 10));
        self.write("zeros", 0, &vec![0; 3 << 20]);
        for (number, from) in ["large", "clone 0", "sparse", "large"].into_iter().enumerate() {
            let to = format!("clone {number}");
            self.clone(from, &to);
            self.write(&to, 40_000 * number as u64, &noise(seed + 300, 20_000 * number));
        }
    }
}

/// Bytes that don't compress, the same for a seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

fn remote(service: &Arc<Service>) -> Remote {
    Remote::over(service.clone(), Path::from("backups/one"), "test://one").unwrap()
}

fn open(service: &Arc<Service>, passphrase: Option<&Passphrase>) -> Result<Repository> {
    Repository::reach_at(remote(service))?.open(passphrase)
}

fn repository(service: &Arc<Service>) -> Repository {
    match open(service, None) {
        Err(RepositoryError::NoRepository(_)) => Repository::create_at(remote(service), None).unwrap(),
        opened => opened.unwrap(),
    }
}

fn pull(repository: &Repository, begin: &Begin, behind: &StreamReader) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let pull = Pull::new(repository, begin.stream(), behind);
    let read = pull.map_err(|error| error.to_string())?.read_to_end(&mut bytes);
    read.map(|_| bytes).map_err(|error| error.to_string())
}

/// The snapshot comes back as `kvfs snapshot send` writes it.
#[track_caller]
fn assert_whole(repository: &Repository, source: &Source, name: &str) {
    let (begin, bytes) = source.stream(name);
    let pulled = pull(repository, &begin, &StreamReader::new(begin.stream())).unwrap();
    assert!(pulled == bytes, "\"{name}\" is not what was sent: {} and {} bytes", pulled.len(), bytes.len());
}

#[test]
fn a_snapshot_comes_back_byte_for_byte_encrypted_or_not() {
    let source = Source::new(1);
    source.fill(1);
    source.snapshot("one");
    for passphrase in [None, Some(Passphrase::new(b"a good one".to_vec()))] {
        let service = Service::new();
        drop(Repository::create_at(remote(&service), passphrase.as_ref()).unwrap());
        let repository = open(&service, passphrase.as_ref()).unwrap();
        let pushed = source.push(&repository, "one").unwrap();
        assert!(pushed.bytes > 12 << 20 && pushed.objects_new > 5, "{pushed:?}");
        assert_whole(&repository, &source, "one");
        let again = source.push(&repository, "one");
        assert!(matches!(&again, Err(RepositoryError::Present(name)) if name == "one"), "{again:?}");
        let verified = repository.verify(true, &mut |_, _| {}).unwrap();
        assert!(verified.findings.is_empty() && verified.bytes_read > 9 << 20, "{verified:?}");
        let secret = noise(101, 64);
        let shows = |name: &Path| service.content(name).windows(64).any(|window| window == secret);
        assert_eq!(service.names().iter().any(shows), passphrase.is_none(), "content in clear");
    }
}

#[test]
fn another_passphrase_opens_what_was_pushed_before_and_the_former_one_nothing() {
    let (source, service) = (Source::new(1), Service::new());
    source.fill(1);
    source.snapshot("one");
    let [first, second, wrong] = ["first", "second", "wrong"].map(|text| Passphrase::new(text.into()));
    let repository = Repository::create_at(remote(&service), Some(&first)).unwrap();
    source.push(&repository, "one").unwrap();
    let change = |former: &Passphrase, passphrase: &Passphrase| {
        Repository::reach_at(remote(&service)).unwrap().change_passphrase(former, passphrase)
    };
    assert!(matches!(change(&wrong, &second), Err(RepositoryError::WrongPassphrase)));
    drop(open(&service, Some(&first)).unwrap());
    let names = service.names();
    change(&first, &second).unwrap();
    assert_eq!(service.names(), names);
    assert!(matches!(open(&service, Some(&first)), Err(RepositoryError::WrongPassphrase)));
    assert_whole(&open(&service, Some(&second)).unwrap(), &source, "one");
    // A process that had it open goes on.
    source.write("new", 0, b"later");
    source.snapshot("two");
    source.push(&repository, "two").unwrap();
    assert_whole(&open(&service, Some(&second)).unwrap(), &source, "two");
    let plain = Service::new();
    drop(Repository::create_at(remote(&plain), None).unwrap());
    let refused = Repository::reach_at(remote(&plain)).unwrap().change_passphrase(&first, &second);
    assert!(matches!(refused, Err(RepositoryError::NotEncrypted)));
}

#[test]
fn what_snapshots_share_is_written_once() {
    let (source, service) = (Source::new(1), Service::new());
    source.fill(1);
    source.snapshot("one");
    let repository = repository(&service);
    let first = source.push(&repository, "one").unwrap();
    source.write("large", 3_000_000, b"changed");
    source.write("small 3", 0, b"changed, too");
    source.snapshot("two");
    let second = source.push(&repository, "two").unwrap();
    assert!(second.bytes_new < first.bytes_new / 3, "{second:?} after {first:?}");
    // The same content under another name, in another store.
    let other = Source::new(2);
    other.write("before", 0, &noise(5, 20_000));
    other.write("copy", 0, &noise(101, 9 << 20));
    other.snapshot("one");
    let third = other.push(&repository, "one").unwrap();
    assert!(third.bytes_new < 400 << 10, "{third:?}");
    for (source, name) in [(&source, "one"), (&source, "two"), (&other, "one")] {
        assert_whole(&repository, source, name);
    }
    let found = repository.find(Some("two")).unwrap();
    assert_eq!(repository.find(Some(&found.id.to_string()[..10])).unwrap(), found);
    assert!(matches!(repository.find(Some("one")), Err(RepositoryError::Ambiguous { .. })));
    assert!(matches!(repository.find(None), Err(RepositoryError::Ambiguous { .. })), "of two stores");
    assert!(matches!(repository.find(Some("three")), Err(RepositoryError::NoSnapshot(_))));
}

#[test]
fn a_push_that_is_broken_off_leaves_no_snapshot_and_is_gone_on_with() {
    let source = Source::new(1);
    source.fill(1);
    source.snapshot("one");
    let whole = source.push(&repository(&Service::new()), "one").unwrap();
    for stop in 0..whole.objects_new as i64 {
        let service = Service::new();
        let repository = repository(&service);
        service.stop_after(Some(stop));
        let broken = source.push(&repository, "one");
        assert!(matches!(broken, Err(RepositoryError::Objects { .. })), "after {stop}: {broken:?}");
        assert!(repository.snapshots().unwrap().snapshots.is_empty());
        service.stop_after(None);
        let there = service.names().iter().filter(|name| name.as_ref().contains("/chunks/")).count() as u64;
        let rest = source.push(&repository, "one").unwrap();
        // Recipes say which push wrote a chunk, so a few of them come again.
        assert!(
            rest.objects_new + there <= whole.objects_new + 3,
            "after {stop}: {rest:?}, {there} were there"
        );
        assert_whole(&repository, &source, "one");
    }
}

#[test]
fn a_pull_goes_on_behind_what_has_arrived_and_does_not_read_it_again() {
    let (source, service) = (Source::new(1), Service::new());
    source.fill(1);
    source.write("larger", 0, &noise(7, 30 << 20));
    source.snapshot("one");
    let repository = repository(&service);
    source.push(&repository, "one").unwrap();
    let (begin, bytes) = source.stream("one");
    let mut reader = StreamReader::new(begin.stream());
    let mut arrived = &bytes[..];
    let mut costs = Vec::new();
    loop {
        let before = service.bytes_read.load(Ordering::SeqCst);
        let rest = pull(&repository, &begin, &reader).unwrap();
        assert!(rest == bytes[reader.position() as usize..], "from {}", reader.position());
        costs.push(service.bytes_read.load(Ordering::SeqCst) - before);
        for _ in 0..9 {
            reader.next(&mut arrived).unwrap();
        }
        if reader.position() == bytes.len() as u64 {
            break;
        }
    }
    let (first, last) = (costs[0], costs[costs.len() - 1]);
    assert!(last < first / 3, "{costs:?}");
}

#[test]
fn damage_is_found_and_never_handed_out() {
    for passphrase in [None, Some(Passphrase::new(b"a good one".to_vec()))] {
        let (source, service) = (Source::new(1), Service::new());
        source.write("small", 0, &noise(1, 200));
        // Three parts at least, whatever the key makes of it.
        source.write("large", 0, &noise(2, 9 << 20));
        source.snapshot("one");
        let repository = Repository::create_at(remote(&service), passphrase.as_ref()).unwrap();
        source.push(&repository, "one").unwrap();
        let (begin, bytes) = source.stream("one");
        let lists = repository.manifest(begin.stream()).unwrap().contents;
        let names = service.names();
        let chunks: Vec<_> = names.iter().filter(|name| name.as_ref().contains("/chunks/")).collect();
        assert!(chunks.len() > 3);
        for (number, name) in chunks.iter().enumerate() {
            let object = name.as_ref().strip_prefix("backups/one/").unwrap();
            let is_list = lists.iter().any(|list| list.id.object() == object);
            let good = service.content(name);
            let mut bad = good.clone();
            bad[number * 7919 % good.len()] ^= 0x10;
            let other = service.content(chunks[(number + 1) % chunks.len()]);
            for content in [None, Some(bad), Some(good[..good.len() / 2].to_vec()), Some(other)] {
                let is_missing = content.is_none();
                service.replace(name, content);
                let verify = |all| repository.verify(all, &mut |_, _| {}).unwrap().findings;
                let says = |lines: &[String]| {
                    lines.iter().any(|line| line.contains(object) && line.contains("\"one\""))
                };
                assert!(says(&verify(true)), "{name}");
                assert_eq!(says(&verify(false)), is_missing || is_list, "{name}");
                match pull(&repository, &begin, &StreamReader::new(begin.stream())) {
                    // Lists of chunks are for `prune` and `verify` alone.
                    Ok(pulled) => assert!(is_list && pulled == bytes, "{name}"),
                    Err(error) => assert!(error.contains(object), "{name}: {error}"),
                }
                assert!(repository.prune(&Policy::default(), true, true).is_err() == is_list, "{name}");
            }
            service.replace(name, Some(good));
        }
        assert_whole(&repository, &source, "one");
    }
}

#[test]
fn a_damaged_manifest_is_in_the_way_of_no_other_snapshot() {
    let (source, service) = (Source::new(1), Service::new());
    let repository = repository(&service);
    for name in ["one", "two"] {
        source.write(name, 0, b"content");
        source.snapshot(name);
        source.push(&repository, name).unwrap();
    }
    let id = repository.find(Some("one")).unwrap().id.to_string();
    let object = format!("snapshots/{id}");
    let name = Path::from(format!("backups/one/{object}"));
    let mut content = service.content(&name);
    content[7] ^= 1;
    service.replace(&name, Some(content));
    let listed = repository.snapshots().unwrap();
    assert!(listed.snapshots.len() == 1 && listed.damaged.len() == 1 && listed.snapshots[0].name == "two");
    assert_eq!(repository.find(Some("two")).unwrap(), listed.snapshots[0]);
    assert_whole(&repository, &source, "two");
    let verified = repository.verify(true, &mut |_, _| {}).unwrap();
    assert!(
        verified.snapshots == 2 && verified.findings.len() == 1 && verified.findings[0].contains(&object)
    );
    // It may be the newest one, and what it needs is not known.
    assert!(matches!(repository.find(None), Err(RepositoryError::NewestUnknown(_))));
    assert!(matches!(
        repository.prune(&Policy::default(), true, false),
        Err(RepositoryError::Damaged { .. })
    ));
    for meant in [&id[..], &id[..9]] {
        assert!(matches!(repository.find(Some(meant)), Err(RepositoryError::Damaged { .. })), "{meant}");
        assert_eq!(repository.find_each(&[meant.to_owned()]).unwrap()[0].to_string(), id);
    }
    let both = repository.find_each(&["two".to_owned(), id]).unwrap();
    repository.delete(both[1]).unwrap();
    assert_eq!(repository.find(None).unwrap().id, both[0]);
    repository.prune(&Policy::default(), true, false).unwrap();
    assert_whole(&repository, &source, "two");
}

#[test]
fn a_prune_removes_no_snapshot_where_one_that_stays_is_damaged() {
    let (source, service) = (Source::new(1), Service::new());
    let repository = repository(&service);
    for (number, name) in (1..).zip(["one", "two"]) {
        source.write(name, 0, &noise(number, 3 << 20));
        source.snapshot(name);
        source.push(&repository, name).unwrap();
    }
    let newest = Policy { last: 1, ..Policy::default() };
    let mut manifests = Vec::new();
    repository
        .each_manifest(|_, manifest| {
            manifests.push(manifest.unwrap());
            Ok(())
        })
        .unwrap();
    let goes = newest.goes(&manifests.iter().map(Manifest::summary).collect::<Vec<_>>());
    let stays = manifests.iter().find(|manifest| manifest.summary().id != goes[0].id).unwrap();
    for chunk in &stays.contents {
        service.replace(&Path::from(format!("backups/one/{}", chunk.id.object())), None);
    }
    for only_tells in [true, false] {
        let refused = repository.prune(&newest, true, only_tells);
        assert!(matches!(refused, Err(RepositoryError::Missing(_))), "{refused:?}");
    }
    assert_whole(&repository, &source, &goes[0].name);
}

#[test]
fn what_is_found_damaged_and_marked_is_written_anew_by_the_next_push() {
    let (source, service) = (Source::new(1), Service::new());
    let repository = repository(&service);
    source.write("large", 0, &noise(1, 5 << 20));
    source.snapshot("one");
    source.push(&repository, "one").unwrap();
    let names = service.names().into_iter().filter(|name| name.as_ref().contains("/chunks/"));
    let chunk = names.max_by_key(|name| service.content(name).len()).unwrap();
    let mut content = service.content(&chunk);
    content[1000] ^= 1;
    service.replace(&chunk, Some(content));
    let verify = || repository.verify(true, &mut |_, _| {}).unwrap();
    let found = verify();
    assert_eq!((found.findings.len(), repository.mark_damaged(&found).unwrap()), (1, 1));
    source.write("small", 0, b"more");
    source.snapshot("two");
    source.push(&repository, "two").unwrap();
    assert_whole(&repository, &source, "two");
    // It is needed as before, and still not relied on.
    service.pass(25);
    repository.prune(&Policy::default(), false, false).unwrap();
    assert_eq!(verify().findings, found.findings);
    source.write("small", 0, b"and more");
    source.snapshot("three");
    source.push(&repository, "three").unwrap();
    assert_whole(&repository, &source, "three");
    repository.delete(repository.find(Some("one")).unwrap().id).unwrap();
    assert!(repository.prune(&Policy::default(), false, false).unwrap().removed == 1);
    assert!(verify().findings.is_empty() && !service.names().contains(&chunk));
}

#[test]
fn what_nothing_needs_is_marked_after_a_week_and_goes_a_day_later() {
    let (source, service) = (Source::new(1), Service::new());
    let repository = repository(&service);
    for (number, name) in ["one", "two", "three"].iter().enumerate() {
        source.write("large", 0, &noise(number as u64, 6 << 20));
        source.snapshot(name);
        source.push(&repository, name).unwrap();
    }
    let chunks = || service.names().iter().filter(|name| name.as_ref().contains("/chunks/")).count() as u64;
    let before = chunks();
    let policy = Policy { last: 1, ..Policy::default() };
    let young = repository.prune(&policy, false, true).unwrap();
    assert!(young.young > 4 && young.marked == 0, "{young:?}");
    service.pass(7 * 24);
    let told = repository.prune(&policy, false, true).unwrap();
    assert_eq!((told.young, told.marked), (0, young.young));
    assert!(
        told.snapshots.len() == 2 && told.marked > 4 && repository.snapshots().unwrap().snapshots.len() == 3
    );
    let pruned = repository.prune(&policy, false, false).unwrap();
    assert_eq!((&pruned.snapshots, pruned.marked, pruned.removed), (&told.snapshots, told.marked, 0));
    assert_eq!(repository.snapshots().unwrap().snapshots.len(), 1);
    service.pass(23);
    let pruned = repository.prune(&policy, false, false).unwrap();
    assert_eq!((pruned.marked, pruned.removed, chunks()), (told.marked, 0, before));
    service.pass(2);
    let pruned = repository.prune(&policy, false, false).unwrap();
    assert_eq!((pruned.marked, pruned.removed, chunks()), (0, told.marked, before - told.marked));
    // The model makes all snapshots at one time: which one is the last is not told by its name.
    let last = repository.snapshots().unwrap().snapshots.pop().unwrap();
    assert_whole(&repository, &source, &last.name);
    // Where nothing is pushed, at once.
    repository.delete(last.id).unwrap();
    let pruned = repository.prune(&Policy::default(), true, false).unwrap();
    assert_eq!((pruned.removed, chunks()), (before - told.marked, 0));
    let left = service.names();
    assert_eq!(left, [Path::from("backups/one/kvfs-repository")], "nothing else is left");
}

#[test]
fn a_repository_is_made_where_nothing_is_and_opened_where_one_is() {
    let service = Service::new();
    assert!(matches!(open(&service, None), Err(RepositoryError::NoRepository(_))));
    service.replace(&Path::from("backups/one/some/file"), Some(b"x".to_vec()));
    let occupied = Repository::create_at(remote(&service), None);
    assert!(matches!(&occupied, Err(RepositoryError::Occupied { found, .. }) if found == "some/file"));
    service.replace(&Path::from("backups/one/some/file"), None);
    drop(Repository::create_at(remote(&service), None).unwrap());
    assert!(matches!(Repository::create_at(remote(&service), None), Err(RepositoryError::Occupied { .. })));
}

#[test]
fn the_newest_one_is_not_guessed_where_a_clock_was_wrong() {
    let summary = |position: u64, created: u64| Summary {
        id: StreamId([position as u8; 16]),
        name: format!("at {position}"),
        store: "a".to_owned(),
        position,
        created: Duration::from_secs(created),
        pushed: Duration::ZERO,
        records: 0,
        bytes: 0,
    };
    let newest = |all: &[(u64, u64)]| {
        let all: Vec<_> = all.iter().map(|&(position, created)| summary(position, created)).collect();
        let entries: Vec<_> = all.into_iter().map(|summary| (summary.id, Ok(summary))).collect();
        pick_newest(&entries).map(|found| found.map(|(id, _)| id.0[0]))
    };
    assert_eq!(newest(&[]).unwrap(), None);
    assert_eq!(newest(&[(1, 10), (2, 20), (3, 30)]).unwrap(), Some(3));
    assert_eq!(newest(&[(2, 10), (1, 20), (3, 30)]).unwrap(), Some(3), "what was wrong once is past");
    let unknown = newest(&[(2, 20), (3, 30), (1, 1000)]).unwrap_err().to_string();
    assert!(unknown.contains("\"at 1\"") && unknown.contains("\"at 3\""), "{unknown}");
}

#[test]
fn what_claims_to_be_longer_than_it_may_be_is_not_read() {
    let (source, service) = (Source::new(1), Service::new());
    let repository = repository(&service);
    source.write("small", 0, b"content");
    source.snapshot("one");
    source.push(&repository, "one").unwrap();
    let id = repository.find(Some("one")).unwrap().id;
    let chunk = repository.manifest(id).unwrap().recipe[0].id.object();
    service.replace(&Path::from(format!("backups/one/{chunk}")), Some(vec![0; (4 << 20) + 1000]));
    service.replace(&Path::from("backups/one/kvfs-repository"), Some(vec![b' '; 100 << 10]));
    for object in [&chunk[..], "kvfs-repository"] {
        let read = repository.remote().get(object);
        assert!(
            matches!(&read, Err(RepositoryError::Damaged { object: of, .. }) if of == object),
            "{read:?}"
        );
    }
    let (begin, _) = source.stream("one");
    assert!(pull(&repository, &begin, &StreamReader::new(begin.stream())).unwrap_err().contains(&chunk));
    assert!(open(&service, None).is_err());
    let findings = repository.verify(true, &mut |_, _| {}).unwrap().findings;
    assert!(findings.len() == 1 && findings[0].contains(&chunk), "{findings:?}");
}

#[test]
fn no_recipe_makes_a_pull_panic() {
    let (source, service) = (Source::new(1), Service::new());
    source.write("small", 0, &noise(1, 200));
    source.write("middle", 8 << 20, &noise(2, 5000));
    source.write("large", 0, &noise(3, 300 << 10));
    source.snapshot("one");
    let repository = repository(&service);
    source.push(&repository, "one").unwrap();
    let (begin, _) = source.stream("one");
    let manifest = repository.manifest(begin.stream()).unwrap();
    let object = manifest_object(begin.stream());
    let [chunk] = manifest.recipe[..] else { panic!("{} chunks", manifest.recipe.len()) };
    let sealed = repository.remote().get(&chunk.id.object()).unwrap();
    let recipe = chunk.open(repository.sealer(), sealed.as_ref()).unwrap();
    let mut outcomes = [0, 0];
    for round in 0..300_u64 {
        let chance = noise(round, 16);
        let mut bad = recipe.to_vec();
        for at in chance.chunks(4) {
            let at = u32::from_le_bytes(at.try_into().unwrap()) as usize;
            // Lengths and numbers are in the first bytes as often as anywhere.
            let at = if round % 2 == 0 { at % 400 } else { at } % bad.len();
            bad[at] = chance[at % 16].wrapping_mul(if round % 3 == 0 { 255 } else { 1 });
        }
        let mut chunks = ChunkStore::new(repository.remote(), repository.sealer()).unwrap();
        let mut other = manifest.clone();
        other.recipe = vec![chunks.put(bad.into()).unwrap().0];
        chunks.finish().unwrap();
        let other = repository.sealer().seal(&object, &other.encode().unwrap()).unwrap();
        service.replace(&Path::from(format!("backups/one/{object}")), Some(other));
        let reader = StreamReader::new(begin.stream());
        let Ok(bytes) = pull(&repository, &begin, &reader) else {
            outcomes[0] += 1;
            continue;
        };
        // What comes out is looked through as every stream is.
        let (mut reader, mut rest) = (reader, &bytes[..]);
        while let Ok(Some(_)) = reader.next(&mut rest) {}
        outcomes[1] += 1;
    }
    assert!(outcomes.iter().all(|count| *count > 10), "{outcomes:?}");
}
