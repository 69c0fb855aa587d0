//! Orphans without a row: nothing of them is on the device until an operation changes them after all.

use kvfs_fs::{
    AclKind, AtimePolicy, FallocateMode, FsError, MountOptions, NodeId, Project, QuotaKind, RenameMode,
    SetAttr, XattrMode, check,
};
use kvfs_store::Isolation;

use crate::setup::{Setup, patiently};
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;
const ANNA: (QuotaKind, u32) = (QuotaKind::User, 1000);

fn orphans(setup: &Setup) -> u64 {
    let report = check::check(&setup.store).unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
    report.orphans
}

/// A file with content in its row that has lost its name, and that is still open.
fn unlinked(setup: &Setup, len: usize) -> NodeId {
    let file = setup.file(ROOT, "f");
    setup.write_at(file, 0, &vec![7; len]).unwrap();
    setup.unlink(&setup.caller, ROOT, b"f").unwrap();
    file
}

/// The last handle is closed, and the kernel forgets the node.
fn close(setup: &Setup, file: NodeId) {
    setup.forget(file, 1);
    setup.housekeep().unwrap();
    assert!(matches!(setup.getattr(&setup.caller, file), Err(FsError::Stale(_))));
    assert_eq!(orphans(setup), 0);
    assert_eq!(setup.nodes().stats().nodes, 1, "only the root is left");
}

#[test]
fn what_has_nothing_but_its_row_leaves_none_when_it_is_unlinked() {
    let mut setup = Setup::new(100);
    for len in [0, 50] {
        let file = unlinked(&setup, len);
        assert_eq!(orphans(&setup), 0);
        let attr = setup.getattr(&setup.caller, file).unwrap();
        assert_eq!((attr.nlink, attr.size), (0, len as u64));
        for _ in 0..2 {
            assert_eq!(setup.read_all(file), vec![7; len], "however often it is read");
        }
        assert!(matches!(setup.lookup(&setup.caller, ROOT, b"f"), Err(FsError::NotFound)));
        let linked = setup.link(&setup.caller, file, ROOT, b"g");
        assert!(matches!(linked, Err(FsError::NotFound)));
        assert!(setup.sync_target(file).unwrap() <= setup.store.position());
        close(&setup, file);
    }
    // A link, a device, a directory, a file that had another name, one that was replaced.
    let link = setup.symlink(&setup.caller, ROOT, b"l", b"target").unwrap().node;
    setup.unlink(&setup.caller, ROOT, b"l").unwrap();
    assert_eq!(setup.readlink(&setup.caller, link).unwrap(), &b"target"[..]);
    setup.forget(link, 1);
    let dir = setup.dir(ROOT, "d");
    setup.rmdir(&setup.caller, ROOT, b"d").unwrap();
    assert!(setup.list(dir, 10, true).is_empty());
    setup.forget(dir, 1);
    let file = setup.file(ROOT, "f");
    setup.link(&setup.caller, file, ROOT, b"g").unwrap();
    setup.unlink(&setup.caller, ROOT, b"f").unwrap();
    setup.file(ROOT, "h");
    setup.rename(&setup.caller, ROOT, b"h", ROOT, b"g", RenameMode::Replace).unwrap();
    assert_eq!(setup.getattr(&setup.caller, file).unwrap().nlink, 0);
    setup.unlink(&setup.caller, ROOT, b"g").unwrap();
    assert_eq!(orphans(&setup), 0);
    // A crash while it is open.
    unlinked(&setup, 50);
    setup.reopen();
    setup.assert_sound("after a crash");
    assert_eq!(check::check(&setup.store).unwrap().files, 0);
}

#[test]
fn backlog_of_orphans_is_left_to_housekeeping_by_what_the_kernel_forgets() {
    let setup = Setup::new(100);
    let files: Vec<NodeId> = (0..400).map(|number| setup.file(ROOT, &number.to_string())).collect();
    let open = setup.file(ROOT, "open");
    for file in files {
        setup.forget(file, 1);
    }
    let view = begin(&setup, Isolation::Snapshot);
    for number in 0..400 {
        view.unlink(&view.caller, ROOT, number.to_string().as_bytes()).unwrap();
    }
    commit(&view.fs).unwrap();
    let queued = || setup.nodes().stats().orphans_queued;
    assert_eq!(queued(), 400);
    setup.forget(open, 1);
    assert_eq!(queued(), 400, "it has ended nothing");
    // Those that it ends itself are paid for as they come.
    for number in 0..256 {
        let file = setup.file(ROOT, "ends");
        setup.write_at(file, 0, &[number as u8; 200]).unwrap();
        setup.unlink(&setup.caller, ROOT, b"ends").unwrap();
        setup.forget(file, 1);
    }
    assert_eq!(queued(), 400);
    setup.housekeep().unwrap();
    assert_eq!((queued(), orphans(&setup)), (0, 0));
}

#[test]
fn every_first_change_of_an_orphan_without_a_row_is_kept() {
    let setup = Setup::new(100);
    let attr = |file| setup.getattr(&setup.caller, file).unwrap();
    let set = |file, changes: SetAttr| setup.setattr(&setup.caller, file, &changes).unwrap();
    let changes: [(&str, &dyn Fn(NodeId)); 11] = [
        ("mode", &|file| {
            set(file, SetAttr { mode: Some(0o600), ..SetAttr::default() });
            assert_eq!((attr(file).mode & 0o7777, setup.read_all(file)), (0o600, vec![7; 50]));
        }),
        ("owner", &|file| {
            set(file, SetAttr { uid: Some(5), ..SetAttr::default() });
            assert_eq!(attr(file).uid, 5);
        }),
        ("smaller", &|file| {
            set(file, SetAttr { size: Some(20), ..SetAttr::default() });
            assert_eq!(setup.read_all(file), [7; 20]);
        }),
        ("larger than a row", &|file| {
            set(file, SetAttr { size: Some(5000), ..SetAttr::default() });
            assert_eq!(setup.read_all(file), [vec![7; 50], vec![0; 4950]].concat());
        }),
        ("write", &|file| {
            setup.write_at(file, 10, b"more").unwrap();
            assert_eq!(setup.read_all(file), [&[7; 10][..], b"more", &[7; 36]].concat());
        }),
        ("write of blocks", &|file| {
            setup.write_at(file, 50, &[8; 9000]).unwrap();
            assert_eq!(setup.read_all(file), [vec![7; 50], vec![8; 9000]].concat());
        }),
        ("allocation", &|file| {
            let mode = FallocateMode::Allocate { keep_size: false };
            setup.fallocate(&setup.caller, file, 0, 60, mode).unwrap();
            assert_eq!(setup.read_all(file), [vec![7; 50], vec![0; 10]].concat());
        }),
        ("attribute", &|file| {
            setup.setxattr(&setup.caller, file, b"user.a", b"v", XattrMode::Set).unwrap();
            assert_eq!(setup.getxattr(&setup.caller, file, b"user.a").unwrap(), &b"v"[..]);
        }),
        ("list", &|file| {
            let list = [&2_u32.to_le_bytes()[..], &acl_entries()].concat();
            setup.set_acl(&setup.caller, file, AclKind::Access, &list, false).unwrap();
            assert_eq!(setup.getxattr(&setup.caller, file, AclKind::Access.name()).unwrap(), list);
        }),
        ("project", &|file| {
            let project = Project { id: 9, hands_down: false };
            setup.set_project(&setup.caller, file, project).unwrap();
            assert_eq!(setup.project(&setup.caller, file).unwrap(), project);
        }),
        ("copy", &|file| {
            let copied = setup.copy_file_range(&setup.caller, file, 0, file, 50, 50).unwrap();
            assert_eq!((copied.bytes, setup.read_all(file)), (50, vec![7; 100]));
        }),
    ];
    for (what, change) in changes {
        let file = unlinked(&setup, 50);
        assert_eq!(orphans(&setup), 0, "{what}");
        change(file);
        assert_eq!(orphans(&setup), 1, "{what}: what was changed has a row");
        set(file, SetAttr { mode: Some(0o640), ..SetAttr::default() });
        assert_eq!((attr(file).mode & 0o7777, attr(file).nlink), (0o640, 0), "{what}");
        close(&setup, file);
        let report = check::check(&setup.store).unwrap();
        assert_eq!((report.blocks, report.xattrs), (0, 0), "{what}");
    }
}

/// Owner, user 5, group, mask, others.
fn acl_entries() -> Vec<u8> {
    let undefined = u32::MAX;
    let entries =
        [(1_u16, 6_u16, undefined), (2, 6, 5), (4, 4, undefined), (16, 6, undefined), (32, 4, undefined)];
    let bytes = entries.map(|(tag, permissions, id)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    });
    bytes.concat()
}

#[test]
fn a_crash_takes_an_orphan_that_got_its_row_back() {
    let mut setup = Setup::new(100);
    let file = unlinked(&setup, 50);
    setup.write_at(file, 50, &[8; 9000]).unwrap();
    assert_eq!(orphans(&setup), 1);
    setup.reopen();
    let report = check::check(&setup.store).unwrap();
    assert_eq!((report.files, report.orphans, report.blocks), (0, 0, 0));
}

#[test]
fn access_times_of_orphans_without_a_row_are_written_nowhere() {
    for lazytime in [false, true] {
        let mut setup = Setup::new(100);
        (setup.options.atime, setup.options.lazytime) = (AtimePolicy::Strict, lazytime);
        setup.reopen();
        let file = setup.file(ROOT, "f");
        setup.write_at(file, 0, &[7; 50]).unwrap();
        setup.clock.advance(std::time::Duration::from_secs(1));
        setup.read_all(file);
        setup.unlink(&setup.caller, ROOT, b"f").unwrap();
        let before = setup.sync_target(file).unwrap();
        setup.clock.advance(std::time::Duration::from_secs(1));
        setup.read_all(file);
        let atime = setup.getattr(&setup.caller, file).unwrap().atime;
        assert_eq!(atime, setup.time());
        setup.housekeep().unwrap();
        assert_eq!(setup.sync_target(file).unwrap(), before);
        assert_eq!(orphans(&setup), 0);
        setup.setattr(&setup.caller, file, &SetAttr { mode: Some(0), ..SetAttr::default() }).unwrap();
        assert_eq!(setup.getattr(&setup.caller, file).unwrap().atime, atime);
        setup.sync_target_all().unwrap();
        close(&setup, file);
    }
}

#[test]
fn memory_of_orphans_without_a_row_is_bounded() {
    let options = MountOptions { node_bytes_max: 64 << 10, ..MountOptions::default() };
    let setup = Setup::with(std::sync::Arc::new(kvfs_store::model::ModelStore::new()), 4096, options);
    let files: Vec<NodeId> = (0..100)
        .map(|index| {
            let name = format!("f{index}");
            let file = setup.file(ROOT, &name);
            setup.write_at(file, 0, &[7; 4000]).unwrap();
            setup.unlink(&setup.caller, ROOT, name.as_bytes()).unwrap();
            file
        })
        .collect();
    let bytes = setup.nodes().stats().bytes;
    assert!(bytes < 100 << 10, "{bytes}");
    assert!((80..100).contains(&orphans(&setup)), "those for which there was no room have a row");
    for file in files {
        assert_eq!(setup.read_all(file), [7; 4000]);
        setup.forget(file, 1);
    }
    setup.housekeep().unwrap();
    assert_eq!((orphans(&setup), setup.nodes().stats().nodes), (0, 1));
}

#[test]
fn orphans_without_a_row_are_counted_from_when_they_get_one() {
    let setup = Setup::new(100);
    let usage = || {
        let usage = setup.quotas().get(ANNA.0, ANNA.1).unwrap().usage;
        (usage.bytes, usage.inodes)
    };
    let (a, b) = (unlinked(&setup, 50), unlinked(&setup, 50));
    setup.quotas().turn_on(&|_| {}).unwrap();
    assert_eq!(usage(), (0, 0));
    setup.write_at(a, 50, b"more").unwrap();
    assert_eq!(usage(), (54, 1));
    setup.setxattr(&setup.caller, b, b"user.a", b"v", XattrMode::Set).unwrap();
    assert_eq!(usage(), (104, 2));
    let c = unlinked(&setup, 50);
    assert_eq!((usage(), orphans(&setup)), ((154, 3), 3), "what is counted has a row until its end");
    for file in [a, b, c] {
        setup.forget(file, 1);
    }
    setup.housekeep().unwrap();
    assert_eq!((usage(), orphans(&setup)), ((0, 0), 0));
}

#[test]
fn first_changes_of_an_orphan_without_a_row_at_the_same_time_are_all_kept() {
    let setup = Setup::new(100);
    for round in 0..300_u32 {
        let file = unlinked(&setup, 50);
        std::thread::scope(|scope| {
            let (fs, caller) = (&setup.fs, &setup.caller);
            scope.spawn(move || {
                let changes = SetAttr { mode: Some(0o600 + round % 64), ..SetAttr::default() };
                patiently(caller, |caller| fs.setattr(caller, file, &changes)).unwrap();
            });
            scope.spawn(move || {
                let flags = kvfs_fs::WriteFlags::default();
                let data = bytes::Bytes::from(vec![8; 50]);
                patiently(caller, |caller| fs.write(caller, file, 50, data.clone(), flags)).unwrap();
            });
        });
        let attr = setup.getattr(&setup.caller, file).unwrap();
        assert_eq!(attr.mode & 0o7777, 0o600 + round % 64);
        assert_eq!(setup.read_all(file), [[7; 50], [8; 50]].concat());
        // What a crash would find is what the node says.
        assert_eq!(orphans(&setup), 1);
        close(&setup, file);
    }
}

#[test]
fn a_transaction_has_rows_for_its_orphans_and_yields_to_one_without() {
    let setup = Setup::new(100);
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        // It unlinks what the main line has open.
        let file = setup.file(ROOT, "f");
        setup.write_at(file, 0, &[7; 50]).unwrap();
        let txn = begin(&setup, isolation);
        txn.unlink(&txn.caller, ROOT, b"f").unwrap();
        commit(&txn).unwrap();
        assert_eq!(
            (setup.getattr(&setup.caller, file).unwrap().nlink, setup.read_all(file)),
            (0, vec![7; 50])
        );
        setup.write_at(file, 50, b"more").unwrap();
        assert_eq!(orphans(&setup), 1);
        close(&setup, file);
    }
    // The main line unlinks what the transaction has read, and then wants to change.
    let file = setup.file(ROOT, "f");
    let txn = begin(&setup, Isolation::Snapshot);
    let same = txn.lookup(&txn.caller, ROOT, b"f").unwrap().node;
    setup.unlink(&setup.caller, ROOT, b"f").unwrap();
    assert_eq!(orphans(&setup), 0);
    let changed = txn.setattr(&txn.caller, same, &SetAttr { mode: Some(0o600), ..SetAttr::default() });
    assert!(matches!(changed, Err(FsError::Canceled(_))), "{changed:?}");
    txn.txn().unwrap().abort();
    close(&setup, file);
}

/// None of the files has a node on the main line but some, which are open there.
#[test]
fn files_that_a_transaction_has_removed_end_with_their_last_user() {
    let setup = Setup::new(100);
    let files: Vec<NodeId> = (0..300)
        .map(|index| {
            let file = setup.file(ROOT, &format!("f{index}"));
            setup.write_at(file, 0, &[7; 9000]).unwrap();
            file
        })
        .collect();
    let is_open = |index: usize| index.is_multiple_of(7);
    for (index, file) in files.iter().enumerate().filter(|(index, _)| !is_open(*index)) {
        setup.forget(*file, u64::MAX);
        assert!(!setup.nodes().knows(files[index]));
    }
    let view = begin(&setup, Isolation::Snapshot);
    for index in 0..300 {
        view.unlink(&view.caller, ROOT, format!("f{index}").as_bytes()).unwrap();
    }
    commit(&view).unwrap();
    let open = files.iter().enumerate().filter(|(index, _)| is_open(*index));
    assert_eq!(setup.nodes().stats().orphans_queued, 300 - open.clone().count() as u64);
    setup.housekeep().unwrap();
    assert_eq!(setup.nodes().stats().orphans_queued, 0);
    assert_eq!(orphans(&setup), open.clone().count() as u64, "those that are open");
    for (_, file) in open {
        assert_eq!(setup.read_all(*file), [7; 9000]);
        setup.forget(*file, u64::MAX);
    }
    setup.housekeep().unwrap();
    let report = check::check(&setup.store).unwrap();
    assert_eq!((report.files, report.orphans, report.blocks), (0, 0, 0));
}
