//! Clones in streams: what they share is sent once, and their receiver shares it again.

use std::sync::Arc;

use kvfs_fs::transfer::{BlockReference, Frame, Prologue, SendStream};
use kvfs_fs::{Caller, FileType, MountOptions, NodeId, SetAttr};
use kvfs_kvdb::{Background, Db};
use kvfs_store::BLOCK_BYTES;

use crate::branches;
use crate::clones::clone;
use crate::engine;
use crate::setup::{Random, Setup};
use crate::snapshots::restore;
use crate::transfer::{begin_of, id_of, main_content, model, pass_on, snapshot_content, stream};
use crate::undo::{look, mess, txn};

const ROOT: NodeId = NodeId::ROOT;
const MIB: usize = 1 << 20;

/// Over an engine of its own, which has room for 64 MiB.
fn over_engine(uuid: u8) -> (Setup, Arc<Db>) {
    let device = Arc::new(kvfs_device::MemoryDevice::growable(0, engine::CAPACITY_BYTES));
    engine::create_on(&device, [uuid; 16]);
    let db = engine::open(&device, 64 << 10, Background::Manual);
    (Setup::with(Arc::clone(&db) as _, 200, MountOptions::default()), db)
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len / 8).flat_map(|_| random.next().to_le_bytes()).collect()
}

fn write(setup: &Setup, node: NodeId, offset: u64, content: &[u8]) {
    for (part, at) in content.chunks(MIB).zip((offset..).step_by(MIB)) {
        setup.write_at(node, at, part).unwrap();
    }
}

fn file(setup: &Setup, name: &str, content: &[u8]) -> NodeId {
    let node = setup.file(ROOT, name);
    write(setup, node, 0, content);
    node
}

/// Clones a name of the root directory, in a transaction of its own.
fn clone_name(setup: &Setup, from: &str, to: &str) {
    txn(setup, |view| assert!(clone(view, (ROOT, from), (ROOT, to)).is_ok(), "{from} to {to}"));
}

fn remove(setup: &Setup, name: &str) {
    let node = look(setup, ROOT, name);
    setup.unlink(&setup.caller, ROOT, name.as_bytes()).unwrap();
    setup.forget(node, u64::MAX);
    setup.housekeep().unwrap();
}

fn content_of(setup: &Setup, name: &str) -> Vec<u8> {
    setup.read_all(look(setup, ROOT, name))
}

/// What a stream says without content: bytes of blocks that it carries, and what it refers to.
fn told(source: &Setup, from: Option<&str>, to: &str) -> (usize, Vec<BlockReference>) {
    let frames = stream(source, from, to);
    let (begin, mut reader) = begin_of(&frames, source, from, to);
    let (mut carried, mut all) = (0, Vec::new());
    for frame in &frames {
        match reader.next(&mut &frame[..]).unwrap() {
            Some(Frame::Records { keyspace: 1, batch, .. }) => carried += batch.payload_bytes(),
            Some(Frame::References { references, .. }) => all.extend(references),
            _ => {}
        }
    }
    assert!(begin.has_clones || all.is_empty());
    (carried / BLOCK_BYTES * BLOCK_BYTES, all)
}

/// Sends and receives; the receiver has what was sent, and would send the same snapshot.
fn pass(source: &Setup, from: Option<&str>, to: &str, target: &mut Setup) {
    pass_on(source, from, to, target, false).unwrap();
    assert!(snapshot_content(source, to) == main_content(target), "{to} is not what was sent");
    assert!(stream(source, None, to) == stream(target, None, to), "the receiver sends another {to}");
    target.assert_sound(to);
}

fn used(setup: &Setup) -> u64 {
    setup.store.space().used_bytes
}

#[test]
fn received_clones_share_space_with_their_source_in_whole_streams_and_in_differences() {
    let ((source, _), (mut target, _)) = (over_engine(1), over_engine(2));
    let empty = used(&target);
    let content = noise(1, 8 * MIB);
    file(&source, "a", &content);
    // Ten times as large than what there is room for.
    for number in 0..10 {
        clone_name(&source, "a", &format!("clone {number}"));
    }
    source.store.create_snapshot("one").unwrap();
    let (carried, _) = told(&source, None, "one");
    assert_eq!(carried, content.len());
    pass(&source, None, "one", &mut target);
    let taken = used(&target) - empty;
    assert!(taken < content.len() as u64 * 5 / 4, "{taken} bytes");
    assert!(content_of(&target, "clone 7") == content);
    // One that is made of what the receiver has by now.
    let before = used(&target);
    clone_name(&source, "a", "later");
    source.store.create_snapshot("two").unwrap();
    let frames = stream(&source, Some("one"), "two");
    assert!(frames.concat().len() < 4096, "{} bytes", frames.concat().len());
    pass(&source, Some("one"), "two", &mut target);
    assert!(used(&target) < before + 2 * MIB as u64, "{} and {before} bytes", used(&target));
    assert!(content_of(&target, "later") == content);
    // Each goes its own way.
    target.write_at(look(&target, ROOT, "later"), 0, b"changed").unwrap();
    assert!(content_of(&target, "a") == content);
}

#[test]
fn what_differs_from_the_source_of_a_clone_is_sent_as_content() {
    let (source, mut target) = (model(1), model(2));
    let content = noise(2, 100 * BLOCK_BYTES);
    let a = file(&source, "a", &content);
    clone_name(&source, "a", "b");
    let b = look(&source, ROOT, "b");
    write(&source, a, 10 * BLOCK_BYTES as u64, &noise(3, 2 * BLOCK_BYTES));
    write(&source, b, 20 * BLOCK_BYTES as u64, &noise(4, BLOCK_BYTES));
    // Behind what was cloned.
    write(&source, b, 100 * BLOCK_BYTES as u64, &noise(5, BLOCK_BYTES));
    source.store.create_snapshot("one").unwrap();
    let (carried, references) = told(&source, None, "one");
    assert_eq!(carried, (100 + 2 + 1 + 1) * BLOCK_BYTES);
    let of = |first, count| BlockReference { inode: b.0, first, source: a.0, source_first: first, count };
    assert_eq!(references, [of(0, 10), of(12, 8), of(21, 79)]);
    pass(&source, None, "one", &mut target);
    // What becomes the same again is referred to; what is left of a clone whose source is gone is content.
    write(&source, b, 20 * BLOCK_BYTES as u64, &content[20 * BLOCK_BYTES..][..BLOCK_BYTES]);
    source.store.create_snapshot("two").unwrap();
    assert_eq!(told(&source, Some("one"), "two"), (0, vec![of(20, 1)]));
    pass(&source, Some("one"), "two", &mut target);
    clone_name(&source, "a", "c");
    remove(&source, "a");
    source.store.create_snapshot("three").unwrap();
    assert_eq!(told(&source, Some("two"), "three"), (100 * BLOCK_BYTES, Vec::new()));
    pass(&source, Some("two"), "three", &mut target);
}

#[test]
fn clone_of_a_clone_refers_to_that_one() {
    let ((source, _), (mut target, _)) = (over_engine(1), over_engine(2));
    let empty = used(&target);
    let content = noise(6, 4 * MIB);
    let a = file(&source, "a", &content);
    clone_name(&source, "a", "b");
    clone_name(&source, "b", "c");
    let (b, c) = (look(&source, ROOT, "b"), look(&source, ROOT, "c"));
    let changed = noise(7, MIB);
    write(&source, a, 0, &changed);
    source.store.create_snapshot("one").unwrap();
    let (carried, references) = told(&source, None, "one");
    assert_eq!(carried, content.len() + changed.len());
    let blocks = (content.len() / BLOCK_BYTES) as u64;
    let of = |inode: NodeId, source: NodeId, first, count| BlockReference {
        inode: inode.0,
        first,
        source: source.0,
        source_first: first,
        count,
    };
    assert_eq!(references, [of(b, a, 256, blocks - 256), of(c, b, 0, blocks)]);
    pass(&source, None, "one", &mut target);
    let taken = used(&target) - empty;
    assert!(taken < carried as u64 * 5 / 4, "{taken} bytes");
    // The one between them goes.
    remove(&source, "b");
    source.store.create_snapshot("two").unwrap();
    pass(&source, Some("one"), "two", &mut target);
    assert!(content_of(&target, "c") == content);
}

#[test]
fn large_copy_is_sent_by_reference_also_at_another_place() {
    let (source, mut target) = (over_engine(1).0, model(2));
    let content = noise(8, 18 * MIB);
    let a = file(&source, "a", &content);
    let b = source.file(ROOT, "b");
    let user = Caller::default();
    let (from, to) = (MIB as u64, 3 * BLOCK_BYTES as u64);
    let copied = source.copy_file_range(&user, a, from, b, to, 17 << 20).unwrap();
    assert_eq!(copied.bytes, 17 << 20);
    source.store.create_snapshot("one").unwrap();
    let (carried, references) = told(&source, None, "one");
    assert_eq!(carried, content.len());
    let only = BlockReference { inode: b.0, first: 3, source: a.0, source_first: 256, count: 17 * 256 };
    assert_eq!(references, [only]);
    pass(&source, None, "one", &mut target);
    // Nothing of it is left with its blocks.
    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
    source.setattr(&user, b, &empty).unwrap();
    source.store.create_snapshot("two").unwrap();
    pass(&source, Some("one"), "two", &mut target);
    assert!(!begin_of(&stream(&source, None, "two"), &source, None, "two").0.has_clones);
}

#[test]
fn stream_of_clones_is_the_same_after_merges_and_goes_on_at_any_frame() {
    let (source, db) = over_engine(1);
    let a = file(&source, "a", &noise(9, 2 * MIB));
    source.store.create_snapshot("one").unwrap();
    for number in 0..4 {
        let name = format!("clone {number}");
        clone_name(&source, "a", &name);
        let node = look(&source, ROOT, &name);
        write(&source, node, number * 100_000, &noise(number, 200_000));
    }
    write(&source, a, MIB as u64, &noise(10, MIB));
    source.store.create_snapshot("two").unwrap();
    for from in [None, Some("one")] {
        let first = stream(&source, from, "two");
        for number in 0..4 {
            write(&source, a, 0, &noise(number, MIB));
            remove(&source, &format!("clone {number}"));
            db.compact().unwrap();
            db.reclaim().unwrap();
            clone_name(&source, "a", &format!("clone {number}"));
        }
        assert!(stream(&source, from, "two") == first, "another stream from {from:?}");
        let from_id = from.map(|name| id_of(&source, name));
        let mut offset = 0;
        for frame in &first {
            let mut again = SendStream::new(&source.fs, from_id.as_ref(), &id_of(&source, "two")).unwrap();
            again.skip_to(offset).unwrap();
            assert_eq!(again.next_frame().unwrap().as_ref(), Some(frame), "at byte {offset}");
            offset += frame.len() as u64;
        }
    }
}

#[test]
fn stream_of_clones_has_another_version_and_one_without_them_has_not() {
    let version = |setup: &Setup, from: Option<&str>, to: &str| {
        let from = from.map(|name| id_of(setup, name));
        let prologue = SendStream::new(&setup.fs, from.as_ref(), &id_of(setup, to)).unwrap().prologue(0);
        let bytes = prologue.encode();
        assert_eq!(Prologue::decode(&bytes).unwrap(), prologue);
        bytes[8]
    };
    let source = model(1);
    file(&source, "a", &noise(11, 9000));
    source.store.create_snapshot("none").unwrap();
    clone_name(&source, "a", "b");
    source.store.create_snapshot("one").unwrap();
    // Open without a name: in no stream.
    let b = look(&source, ROOT, "b");
    source.unlink(&source.caller, ROOT, b"b").unwrap();
    source.store.create_snapshot("open").unwrap();
    source.forget(b, u64::MAX);
    source.housekeep().unwrap();
    source.store.create_snapshot("gone").unwrap();
    let versions = [(None, "none"), (None, "one"), (None, "open"), (None, "gone"), (Some("one"), "open")]
        .map(|(from, to)| version(&source, from, to));
    assert_eq!(versions, [1, 2, 1, 1, 2]);
    let mut target = model(2);
    for (from, to) in [(None, "one"), (Some("one"), "open"), (Some("open"), "gone")] {
        pass(&source, from, to, &mut target);
    }
}

#[test]
fn restored_and_merged_clones_are_sent_by_reference() {
    let (source, mut target) = (model(1), model(2));
    let content = noise(12, 50 * BLOCK_BYTES);
    file(&source, "a", &content);
    source.fs.branches().create("branch", 1000).unwrap();
    let branch = branches::open(&source, "branch");
    assert!(clone(&branch, (ROOT, "a"), (ROOT, "b")).is_ok());
    branches::finish(&source, branch, "branch").unwrap();
    source.store.create_snapshot("one").unwrap();
    assert_eq!(told(&source, None, "one").0, content.len());
    pass(&source, None, "one", &mut target);
    remove(&source, "b");
    source.store.create_snapshot("two").unwrap();
    pass(&source, Some("one"), "two", &mut target);
    restore(&source, "one").unwrap();
    source.store.create_snapshot("three").unwrap();
    assert_eq!(told(&source, Some("two"), "three").0, 0, "it comes by reference");
    pass(&source, Some("two"), "three", &mut target);
    assert!(content_of(&target, "b") == content);
}

/// Trees and files are made, changed, cloned and removed.
fn change(setup: &Setup, random: &mut Random, step: u64) {
    let names: Vec<_> = setup.list(ROOT, 100, false).into_iter().filter(|it| it.name[0] != b'.').collect();
    let any = |random: &mut Random| {
        let listed = &names[random.below(names.len() as u64) as usize];
        (String::from_utf8(listed.name.clone()).unwrap(), listed.kind)
    };
    let new = format!("{step}");
    match random.below(8) {
        0 | 1 => drop(file(setup, &new, &noise(random.next(), random.below(60) as usize * 1000))),
        2 => {
            let top = setup.dir(ROOT, &new);
            mess(setup, random, top, "n", 30);
        }
        3..=5 if !names.is_empty() => clone_name(setup, &any(random).0, &new),
        6 if !names.is_empty() => match any(random) {
            (name, FileType::Regular) => {
                let node = look(setup, ROOT, &name);
                write(setup, node, random.below(70_000), &noise(random.next(), 9000));
            }
            (name, _) => mess(setup, random, look(setup, ROOT, &name), "n", 10),
        },
        _ if !names.is_empty() => match any(random) {
            (name, FileType::Regular) => remove(setup, &name),
            (name, _) => _ = txn(setup, |view| mess(view, random, look(view, ROOT, &name), "n", 20)),
        },
        _ => {}
    }
}

/// Returns how many references there were.
fn passes_on_random_clones(source: &mut Setup, target: &mut Setup, seed: u64) -> usize {
    let mut random = Random::new(seed);
    let mut step = 0;
    let mut before: Option<String> = None;
    let mut references = 0;
    for round in 0..5 {
        for _ in 0..12 {
            step += 1;
            change(source, &mut random, step);
        }
        if random.one_in(3) {
            source.reopen();
        }
        let name = format!("seed {seed} round {round}");
        source.store.create_snapshot(&name).unwrap();
        references += told(source, before.as_deref(), &name).1.len();
        pass(source, before.as_deref(), &name, target);
        before = Some(name);
    }
    references
}

#[test]
fn random_clones_arrive_as_they_are() {
    let all: usize = (1..=12).map(|seed| passes_on_random_clones(&mut model(1), &mut model(2), seed)).sum();
    assert!(all > 200, "{all} references");
}

#[test]
fn random_clones_arrive_as_they_are_over_the_engine() {
    for seed in 21..=24 {
        let memtable_bytes = if seed % 2 == 0 { 16 << 10 } else { 1 << 20 };
        let mut source = engine::setup([1; 16], memtable_bytes, 200);
        let mut target = engine::setup([2; 16], 64 << 10, 4096);
        passes_on_random_clones(&mut source, &mut target, seed);
    }
}
