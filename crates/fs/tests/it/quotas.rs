//! Quotas: usage is exact whatever is done, in transactions and over crashes; limits are heeded.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvfs_fs::{
    BeginOptions, Caller, FileSystem, FsError, GRACE_SECONDS, Limits, MountOptions, NodeId, Owner, Project,
    QuotaKind, Result, SetAttr, WriteFlags, check, settled,
};
use kvfs_kvdb::Background;
use kvfs_store::progress::{self, Step};
use kvfs_store::{Batch, Durability, Isolation, Store};

use crate::branches;
use crate::driver::Driver;
use crate::engine;
use crate::setup::{Random, Setup, patiently};
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;
const ANNA: (QuotaKind, u32) = (QuotaKind::User, 1000);
const STAFF: (QuotaKind, u32) = (QuotaKind::Group, 100);

fn on(setup: &Setup) {
    setup.fs.quotas().turn_on(&|_| {}).unwrap();
}

/// Bytes and inodes.
fn has(setup: &Setup, (kind, id): (QuotaKind, u32)) -> (i64, i64) {
    let usage = setup.fs.quotas().get(kind, id).unwrap().usage;
    (usage.bytes, usage.inodes)
}

fn report(setup: &Setup) -> BTreeMap<(QuotaKind, u32), (i64, i64)> {
    let lines = setup.fs.quotas().report().into_iter();
    lines.map(|line| ((line.kind, line.id), (line.usage.bytes, line.usage.inodes))).collect()
}

fn limit(setup: &Setup, (kind, id): (QuotaKind, u32), change: impl FnOnce(&mut Limits)) {
    let mut limits = Limits::default();
    change(&mut limits);
    setup.fs.quotas().set(kind, id, limits).unwrap();
}

fn as_root(setup: &Setup) -> Caller {
    Caller { uid: 0, gid: 0, ..setup.caller.clone() }
}

#[test]
fn turned_on_again_after_a_failure_they_count_again() {
    let setup = Setup::new(100);
    setup.file(ROOT, "f");
    let meta = setup.store.open_keyspace("meta", kvfs_store::KeyspaceKind::Tuple, None).unwrap();
    let stray = [&99_u64.to_be_bytes()[..], b"stray"].concat();
    let change = |fill: &dyn Fn(&mut Batch)| {
        let mut batch = Batch::new();
        fill(&mut batch);
        setup.store.apply(batch, Durability::Buffered).unwrap();
    };
    change(&|batch| batch.put(meta, stray.clone(), "no row"));
    setup.quotas().turn_on(&|_| {}).unwrap_err();
    assert!(!setup.quotas().are_on(), "nothing was counted");
    change(&|batch| batch.delete(meta, stray.clone()));
    on(&setup);
    assert_eq!(has(&setup, ANNA), (0, 1));
    setup.assert_sound("counted");
}

#[test]
fn changes_of_limits_at_the_same_time_all_count() {
    let setup = Setup::new(100);
    on(&setup);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let more = |limits: Limits| Limits { inodes_hard: limits.inodes_hard + 1, ..limits };
                    setup.fs.quotas().change(ANNA.0, ANNA.1, more).unwrap();
                }
            });
        }
    });
    let hard = |setup: &Setup| setup.quotas().get(ANNA.0, ANNA.1).unwrap().limits.inodes_hard;
    assert_eq!(hard(&setup), 800);
    let mut setup = setup;
    setup.reopen();
    assert_eq!(hard(&setup), 800, "as the table had it");
}

#[test]
fn usage_follows_content_owners_and_the_end_of_files() {
    let setup = Setup::new(100);
    on(&setup);
    let file = setup.file(ROOT, "f");
    assert_eq!((has(&setup, ANNA), has(&setup, STAFF)), ((0, 1), (0, 1)));
    setup.write_at(file, 0, &[1; 50]).unwrap();
    assert_eq!(has(&setup, ANNA), (50, 1), "content in the row");
    setup.write_at(file, 0, &[1; 5000]).unwrap();
    assert_eq!(has(&setup, ANNA), (8192, 1), "blocks");
    setup.write_at(file, 100 << 20, b"x").unwrap();
    assert_eq!(has(&setup, ANNA), (12288, 1), "holes are free");
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    setup.setattr(&setup.caller, file, &size(4096)).unwrap();
    assert_eq!(has(&setup, ANNA), (4096, 1));
    let owner = SetAttr { uid: Some(7), ..SetAttr::default() };
    setup.setattr(&as_root(&setup), file, &owner).unwrap();
    assert_eq!((has(&setup, ANNA), has(&setup, (QuotaKind::User, 7))), ((0, 0), (4096, 1)));
    assert_eq!(has(&setup, STAFF), (4096, 1));
    setup.symlink(&setup.caller, ROOT, b"l", b"target").unwrap();
    setup.link(&setup.caller, file, ROOT, b"g").unwrap();
    setup.dir(ROOT, "d");
    assert_eq!((has(&setup, ANNA), has(&setup, STAFF)), ((6, 2), (4102, 3)));
    setup.unlink(&setup.caller, ROOT, b"f").unwrap();
    setup.unlink(&setup.caller, ROOT, b"g").unwrap();
    assert_eq!(has(&setup, STAFF), (4102, 3), "it is still open");
    setup.write_at(file, 4096, &[1; 4096]).unwrap();
    assert_eq!(has(&setup, (QuotaKind::User, 7)), (8192, 1));
    setup.forget(file, 3);
    setup.housekeep().unwrap();
    assert_eq!((has(&setup, (QuotaKind::User, 7)), has(&setup, STAFF)), ((0, 0), (6, 2)));
    let unnamed = setup.tmpfile(&setup.caller, ROOT, 0o600, true).unwrap().node;
    assert_eq!(has(&setup, ANNA), (6, 3));
    setup.forget(unnamed, 1);
    setup.housekeep().unwrap();
    assert_eq!(has(&setup, ANNA), (6, 2));
    setup.assert_sound("counted");
}

#[test]
fn hard_limits_refuse_and_leave_no_trace() {
    let setup = Setup::new(100);
    let file = setup.file(ROOT, "f");
    on(&setup);
    limit(&setup, ANNA, |limits| (limits.bytes_hard, limits.inodes_hard) = (8192, 2));
    assert!(matches!(setup.write_at(file, 0, &[1; 8193]), Err(FsError::QuotaExceeded)));
    assert_eq!((setup.getattr(&setup.caller, file).unwrap().size, has(&setup, ANNA)), (0, (0, 1)));
    setup.write_at(file, 0, &[1; 8192]).unwrap();
    setup.write_at(file, 0, &[2; 8192]).unwrap();
    assert_eq!(setup.write_at(file, 8192, b"x").unwrap_err().errno(), 122);
    let other = setup.file(ROOT, "g");
    let refused = setup.create(&setup.caller, ROOT, b"h", 0o644, true).map(drop);
    assert!(matches!(refused, Err(FsError::QuotaExceeded)));
    assert!(matches!(setup.write_at(other, 0, b"x"), Err(FsError::QuotaExceeded)), "also in the row");
    // A group's limit counts as well; none holds for root.
    limit(&setup, ANNA, |_| {});
    limit(&setup, STAFF, |limits| limits.inodes_hard = 2);
    assert!(matches!(setup.mkdir(&setup.caller, ROOT, b"d", 0o755), Err(FsError::QuotaExceeded)));
    let data = Bytes::from(vec![3; 1 << 20]);
    setup.write(&as_root(&setup), other, 0, data, WriteFlags::default()).unwrap();
    // Giving files away is a change of both.
    limit(&setup, (QuotaKind::User, 7), |limits| limits.bytes_hard = 4096);
    let owner = SetAttr { uid: Some(7), ..SetAttr::default() };
    assert!(matches!(setup.setattr(&setup.caller, file, &owner), Err(FsError::QuotaExceeded)));
    setup.setattr(&as_root(&setup), file, &owner).unwrap();
    // Less is always allowed.
    setup.setattr(&setup.caller, file, &SetAttr { size: Some(4097), ..SetAttr::default() }).unwrap();
    setup.unlink(&setup.caller, ROOT, b"f").unwrap();
    setup.assert_sound("limited");
}

#[test]
fn a_refused_unnamed_file_is_not_counted_at_its_end() {
    let setup = Setup::new(100);
    on(&setup);
    setup.file(ROOT, "f");
    limit(&setup, ANNA, |limits| limits.inodes_hard = 1);
    let refused = setup.tmpfile(&setup.caller, ROOT, 0o600, true).map(drop);
    assert!(matches!(refused, Err(FsError::QuotaExceeded)), "{refused:?}");
    setup.housekeep().unwrap();
    assert_eq!(has(&setup, ANNA), (0, 1));
    setup.assert_sound("refused");
}

#[test]
fn a_soft_limit_may_be_overstepped_for_the_grace_time() {
    let mut setup = Setup::new(100);
    let file = setup.file(ROOT, "f");
    on(&setup);
    limit(&setup, ANNA, |limits| (limits.bytes_soft, limits.grace_seconds) = (4096, 100));
    let begun = setup.time().seconds as u64;
    setup.write_at(file, 0, &[1; 8192]).unwrap();
    let until = |setup: &Setup| setup.fs.quotas().get(ANNA.0, ANNA.1).unwrap().bytes_until;
    assert_eq!(until(&setup), Some(begun + 100));
    setup.clock.advance(Duration::from_mins(1));
    setup.housekeep().unwrap();
    setup.reopen();
    let file = setup.lookup(&setup.caller, ROOT, b"f").unwrap().node;
    assert_eq!(until(&setup), Some(begun + 100), "an opening does not begin it anew");
    setup.write_at(file, 8192, &[1; 4096]).unwrap();
    setup.clock.advance(Duration::from_secs(41));
    assert!(matches!(setup.write_at(file, 12288, &[1; 1]), Err(FsError::QuotaExceeded)));
    setup.write_at(file, 0, &[2; 8192]).unwrap();
    setup.setattr(&setup.caller, file, &SetAttr { size: Some(4096), ..SetAttr::default() }).unwrap();
    assert_eq!(until(&setup), None);
    setup.write_at(file, 4096, &[1; 4096]).unwrap();
    assert_eq!(until(&setup), Some(begun + 201));
    assert_eq!(GRACE_SECONDS, 604_800);
}

#[test]
fn a_transactions_usage_counts_at_its_commit() {
    let main = Setup::new(100);
    let kept = main.file(ROOT, "kept");
    main.write_at(kept, 0, &[1; 4096]).unwrap();
    on(&main);
    limit(&main, ANNA, |limits| limits.bytes_hard = 16384);
    let view = begin(&main, Isolation::Snapshot);
    let before = report(&main);
    let file = view.file(ROOT, "f");
    view.write_at(file, 0, &[1; 12288]).unwrap();
    assert!(matches!(view.write_at(file, 12288, &[1; 1]), Err(FsError::QuotaExceeded)), "with its own");
    assert_eq!(report(&main), before, "no other view sees it");
    // The main line takes what the transaction would need.
    main.write_at(kept, 4096, &[1; 4096]).unwrap();
    let refused = commit(&view.fs).map(drop);
    assert!(matches!(refused, Err(FsError::QuotaExceeded)), "{refused:?}");
    view.setattr(&view.caller, file, &SetAttr { size: Some(8192), ..SetAttr::default() }).unwrap();
    commit(&view.fs).unwrap();
    assert_eq!((has(&main, ANNA), has(&main, STAFF)), ((16384, 2), (16384, 2)));
    // An aborted one never counts; a removal counts when the file ends.
    let view = begin(&main, Isolation::Snapshot);
    view.unlink(&view.caller, ROOT, b"f").unwrap();
    view.dir(ROOT, "d");
    view.fs.txn().unwrap().abort();
    assert_eq!(has(&main, ANNA), (16384, 2));
    let view = begin(&main, Isolation::Serializable);
    view.unlink(&view.caller, ROOT, b"f").unwrap();
    commit(&view.fs).unwrap();
    main.housekeep().unwrap();
    assert_eq!(has(&main, ANNA), (8192, 1));
    main.assert_sound("committed");
}

#[test]
fn files_that_ended_in_a_transaction_are_counted_off_once_though_it_is_committed_meanwhile() {
    let main = Setup::new(100);
    on(&main);
    let before = report(&main);
    let view = begin(&main, Isolation::Snapshot);
    let file = view.file(ROOT, "temporary");
    view.write_at(file, 0, &[1; 12288]).unwrap();
    view.unlink(&view.caller, ROOT, b"temporary").unwrap();
    view.forget(file, 1);
    let queued = || view.nodes().stats().orphans_queued;
    assert_eq!(queued(), 1);
    let frozen = view.expect_txn().unwrap().freeze().unwrap();
    view.housekeep().unwrap();
    assert_eq!(queued(), 1, "it goes to the main line");
    drop(frozen.plan().unwrap().commit(|| ()).unwrap());
    main.housekeep().unwrap();
    assert_eq!(report(&main), before);
    main.assert_sound("committed");
}

#[test]
fn what_a_branch_has_used_counts_whenever_it_is_opened() {
    let main = Setup::new(100);
    on(&main);
    limit(&main, ANNA, |limits| limits.bytes_hard = 16384);
    main.fs.branches().create("b", main.caller.uid).unwrap();
    for (round, fits) in [(0, true), (1, true), (2, false)] {
        let view = branches::open(&main, "b");
        let file = view.file(ROOT, &format!("f{round}"));
        let written = view.write_at(file, 0, &[1; 8192]);
        assert_eq!(written.is_ok(), fits, "{round}: {written:?}");
        view.branches().checkpoint().unwrap();
    }
    // What was freed in it before is room.
    let view = branches::open(&main, "b");
    let file = view.lookup(&view.caller, ROOT, b"f0").unwrap().node;
    view.setattr(&view.caller, file, &SetAttr { size: Some(4096), ..SetAttr::default() }).unwrap();
    view.branches().checkpoint().unwrap();
    drop(view);
    let view = branches::open(&main, "b");
    let file = view.lookup(&view.caller, ROOT, b"f2").unwrap().node;
    view.write_at(file, 0, &[1; 4096]).unwrap();
    assert!(matches!(view.write_at(file, 4096, &[1]), Err(FsError::QuotaExceeded)));
    branches::finish(&main, view, "b").unwrap();
    assert_eq!(has(&main, ANNA).0, 16384);
    main.assert_sound("merged");
}

#[test]
fn a_change_of_owner_and_a_change_of_space_exclude_each_other() {
    let main = Setup::new(100);
    let file = main.file(ROOT, "f");
    main.write_at(file, 0, &[1; 4096]).unwrap();
    on(&main);
    let give = |on: &Setup, node| {
        let owner = SetAttr { uid: Some(7), ..SetAttr::default() };
        on.setattr(&as_root(on), node, &owner)
    };
    for main_gives in [true, false] {
        let view = begin(&main, Isolation::Snapshot);
        let same = view.lookup(&view.caller, ROOT, b"f").unwrap().node;
        let done = if main_gives {
            give(&main, file).unwrap();
            view.write_at(same, 1 << 20, b"x").map(drop)
        } else {
            main.write_at(file, 2 << 20, b"x").unwrap();
            give(&view, same).map(drop)
        };
        assert!(matches!(done, Err(FsError::Canceled(_))), "{done:?}");
    }
    // Two that write other parts of it don't mind each other.
    let (one, other) = (begin(&main, Isolation::Snapshot), begin(&main, Isolation::Snapshot));
    for (view, offset) in [(&one, 10 << 20), (&other, 20 << 20)] {
        let same = view.lookup(&view.caller, ROOT, b"f").unwrap().node;
        view.write_at(same, offset, b"x").unwrap();
    }
    commit(&one.fs).unwrap();
    commit(&other.fs).unwrap();
    assert_eq!(has(&main, (QuotaKind::User, 7)), (16384, 1));
    main.assert_sound("attributed");
}

#[test]
fn counting_waits_for_transactions_and_begins_anew_after_it_was_off() {
    let mut main = Setup::new(100);
    let view = begin(&main, Isolation::Snapshot);
    assert!(matches!(main.fs.quotas().turn_on(&|_| {}), Err(FsError::Busy(_))));
    view.fs.txn().unwrap().abort();
    on(&main);
    main.file(ROOT, "f");
    limit(&main, ANNA, |limits| limits.inodes_hard = 10);
    main.fs.quotas().turn_off().unwrap();
    assert!(main.fs.quotas().report().is_empty() && !main.fs.quotas().are_on());
    assert!(matches!(main.fs.quotas().set(ANNA.0, ANNA.1, Limits::default()), Err(FsError::Invalid(_))));
    main.file(ROOT, "g");
    main.reopen();
    assert!(!main.fs.quotas().are_on());
    on(&main);
    assert_eq!(has(&main, ANNA), (0, 2));
    assert_eq!(main.fs.quotas().get(ANNA.0, ANNA.1).unwrap().limits.inodes_hard, 10, "limits were kept");
    main.reopen();
    assert_eq!(has(&main, ANNA), (0, 2));
    main.assert_sound("counted again");
}

#[test]
fn what_is_done_during_the_count_is_counted_once() {
    let main = Setup::new(100);
    for number in 0..30_000 {
        let (entry, _) =
            main.create(&main.caller, ROOT, format!("f{number}").as_bytes(), 0o644, true).unwrap();
        main.forget(entry.node, 1);
    }
    let mut number = 0;
    let during = std::cell::Cell::new(0);
    let work = |_| {
        during.set(during.get() + 1);
        let name = format!("during{}", during.get());
        main.file(ROOT, &name);
        main.unlink(&main.caller, ROOT, format!("f{}", during.get()).as_bytes()).unwrap();
        main.housekeep().unwrap();
    };
    let steps = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&steps);
    let watcher = move |step: Step| seen.borrow_mut().push((step.stage, step.done));
    progress::watched(watcher, || main.fs.quotas().turn_on(&work)).unwrap();
    assert_eq!(steps.borrow()[..4], [0, 10_000, 20_000, 30_000].map(|done| ("counting", done)));
    number += during.get();
    assert!(number >= 3, "{number}");
    assert_eq!(has(&main, ANNA), (0, 30_000));
    main.assert_sound("counted");
}

#[test]
fn second_call_that_turns_quotas_on_is_refused_during_the_count_and_not_undone_by_the_first_one() {
    let main = Setup::new(100);
    for number in 0..10_001 {
        let (entry, _) =
            main.create(&main.caller, ROOT, format!("f{number}").as_bytes(), 0o644, true).unwrap();
        main.forget(entry.node, 1);
    }
    let quotas = main.fs.quotas();
    let wanted = Rc::new(std::cell::Cell::new(true));
    let during = |_| {
        let second = quotas.turn_on(&|_| {});
        assert!(matches!(second, Err(FsError::Busy(_))), "{second:?}");
        let exclusive = quotas.tell_exclusive(&mut []);
        assert!(matches!(exclusive, Err(FsError::Busy(_))), "{exclusive:?}");
        quotas.turn_off().unwrap();
        quotas.turn_on(&|_| {}).unwrap();
        wanted.set(false);
    };
    let is_wanted = Rc::clone(&wanted);
    let first = progress::while_wanted(move || is_wanted.get(), || quotas.turn_on(&during));
    assert!(first.is_err(), "was given up");
    assert!(quotas.are_on(), "by the other call");
    assert_eq!(has(&main, ANNA), (0, 10_001));
    quotas.turn_on(&|_| {}).expect("are on already");
    main.assert_sound("counted");
}

#[test]
fn the_checker_finds_wrong_counts() {
    let setup = Setup::new(100);
    on(&setup);
    let file = setup.file(ROOT, "f");
    let meta = setup.store.open_keyspace("meta", kvfs_store::KeyspaceKind::Tuple, None).unwrap();
    let mut batch = Batch::new();
    batch.delete(meta, [&ROOT.0.to_be_bytes()[..], &[0], b"f"].concat());
    setup.store.apply(batch, Durability::Buffered).unwrap();
    let report = check::check(&setup.store).unwrap();
    let text = report.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(
        text.contains(
            "quota of user 1000: what is counted differs from what there is by 0 bytes and 1 inodes"
        ),
        "{text}"
    );
    setup.forget(file, 1);
}

/// Everything the driver does, counted exactly: the checker compares.
fn stays_exact(mut driver: Driver, seed: u64) {
    driver.run(100);
    on(&driver.setup);
    for round in 0..4 {
        driver.run(150);
        driver.setup.assert_sound(&format!("seed {seed}, round {round}"));
    }
    let shown = report(&driver.setup);
    driver.setup.fs.quotas().turn_off().unwrap();
    on(&driver.setup);
    assert_eq!(report(&driver.setup), shown, "seed {seed}: counted again");
}

#[test]
fn usage_is_exact_whatever_is_done() {
    for seed in 1..=10 {
        stays_exact(Driver::new(Setup::new(100), seed, 20_000), seed);
    }
}

#[test]
fn usage_is_exact_over_the_engine_and_after_openings() {
    for seed in 11..=13 {
        let mut setup = engine::setup([seed as u8; 16], 1 << 14, 200);
        setup.reopen();
        stays_exact(Driver::new(setup, seed, 20_000), seed);
    }
}

/// Threads that write, give away, make and remove, on the main line and in transactions.
#[test]
fn usage_is_exact_among_threads_and_transactions() {
    let main = Setup::new(100);
    on(&main);
    let files: Vec<NodeId> = (0..4).map(|number| main.file(ROOT, &format!("f{number}"))).collect();
    let (fs, options) = (&main.fs, owned());
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (files, options) = (&files, &options);
            scope.spawn(move || {
                let mut random = Random::new(100 + thread);
                for round in 0..60 {
                    let view = random.one_in(2).then(|| fs.begin(options).unwrap());
                    let done =
                        some_changes(view.as_ref().unwrap_or(fs), files, &mut random, thread * 1000 + round);
                    if let Some(view) = &view {
                        match done {
                            Ok(()) => drop(commit(view)),
                            Err(_) => view.txn().unwrap().abort(),
                        }
                    }
                }
            });
        }
    });
    main.housekeep().unwrap();
    main.assert_sound("after the threads (seeds 100 to 103)");
    let shown = report(&main);
    main.fs.quotas().turn_off().unwrap();
    on(&main);
    assert_eq!(report(&main), shown);
}

fn owned() -> BeginOptions {
    BeginOptions { owner: Owner { uid: 1000, pid: 1, name: "thread".into() }, ..BeginOptions::default() }
}

fn some_changes(fs: &Arc<FileSystem>, files: &[NodeId], random: &mut Random, number: u64) -> Result<()> {
    for (index, &file) in files.iter().enumerate() {
        if fs.txn().is_some() {
            settled(|caller| fs.lookup(caller, ROOT, format!("f{index}").as_bytes()))?;
        }
        match random.below(5) {
            4 => {
                let project = Project { id: random.below(3) as u32, hands_down: false };
                settled(|caller| fs.set_project(caller, file, project))?;
            }
            0 => {
                let change = SetAttr { uid: Some(random.below(3) as u32), ..SetAttr::default() };
                settled(|caller| fs.setattr(caller, file, &change))?;
            }
            1 => {
                let change = SetAttr { size: Some(random.below(50_000)), ..SetAttr::default() };
                settled(|caller| fs.setattr(caller, file, &change))?;
            }
            2 => {
                let data = Bytes::from(vec![1; random.below(9000) as usize + 1]);
                let offset = random.below(40_000);
                let caller = Caller { uid: 5, ..Caller::default() };
                patiently(&caller, |caller| {
                    fs.write(caller, file, offset, data.clone(), WriteFlags::default())
                })?;
            }
            _ => {
                let name = format!("n{number}-{index}");
                let made = settled(|caller| fs.mkdir(caller, ROOT, name.as_bytes(), 0o755))?;
                fs.forget(made.node, 1);
                if random.one_in(2) {
                    settled(|caller| fs.rmdir(caller, ROOT, name.as_bytes()))?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn superblock_of_a_store_with_quotas_has_version_2() {
    let db = engine::open(&engine::create(), 1 << 20, Background::Manual);
    let setup = Setup::with(Arc::clone(&db) as Arc<dyn Store>, 200, MountOptions::default());
    let version = || {
        let meta = db.open_keyspace("meta", kvfs_store::KeyspaceKind::Tuple, None).unwrap();
        let key = [&[0; 9][..], b"superblock"].concat();
        let record = kvfs_store::Read::get(&*db, meta, &key).unwrap().unwrap();
        u32::from_le_bytes(record[8..12].try_into().unwrap())
    };
    assert_eq!(version(), 1);
    on(&setup);
    assert_eq!(version(), 2);
    // Also when more inode numbers are reserved.
    for number in 0..5000 {
        let name = format!("d{number}");
        let made = setup.mkdir(&setup.caller, ROOT, name.as_bytes(), 0o755).unwrap();
        setup.forget(made.node, 1);
    }
    assert_eq!(version(), 2);
}

#[test]
fn a_store_that_can_only_be_read_shows_what_was_not_counted_to_the_end() {
    let mut setup = Setup::new(100);
    on(&setup);
    let file = setup.file(ROOT, "f");
    setup.write_at(file, 0, &[1; 50]).unwrap();
    let quotas = setup.store.open_keyspace("\u{1}quota", kvfs_store::KeyspaceKind::Tuple, None).unwrap();
    let mut batch = Batch::new();
    batch.put(quotas, &b"state"[..], [1, 0, 0, 0, 0, 0, 0, 0].to_vec());
    setup.store.apply(batch, Durability::Buffered).unwrap();
    for read_only in [true, false] {
        setup.options.read_only = read_only;
        setup.reopen();
        assert_eq!(has(&setup, ANNA), (50, 1), "read-only: {read_only}");
        let exclusive = setup.fs.quotas().tell_exclusive(&mut []);
        let refused = exclusive.err().map(|error| error.to_string());
        let words = "invalid argument: what the files have is not counted to the end; mount the store writable, which \
                     counts it";
        assert_eq!(refused.as_deref(), read_only.then_some(words));
    }
    setup.assert_sound("counted again");
}
