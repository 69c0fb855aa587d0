//! One area at a time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvfs_fs::{
    AtimePolicy, Caller, FallocateMode, FileSystem, FsError, MkfsOptions, MountOptions, NodeId, RenameMode,
    SeekKind, SetAttr, SetTime, Timestamp, WriteFlags, XattrMode, check,
};
use kvfs_store::clock::ManualClock;
use kvfs_store::model::ModelStore;
use kvfs_store::{Batch, Durability, KeyspaceKind, Store};

use crate::setup::Setup;

const ROOT: NodeId = NodeId::ROOT;

#[test]
fn opening_tells_a_missing_file_system_from_one_that_exists() {
    let store: Arc<dyn Store> = Arc::new(ModelStore::new());
    let clock = Arc::new(ManualClock::default());
    let open =
        |store: &Arc<dyn Store>| FileSystem::open(Arc::clone(store), clock.clone(), MountOptions::default());
    assert!(matches!(open(&store), Err(FsError::Format(_))));
    FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).unwrap();
    assert!(matches!(FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()), Err(FsError::Exists)));
    assert!(open(&store).is_ok());
    let too_large = MkfsOptions { inline_len_max: 65537, ..MkfsOptions::default() };
    assert!(matches!(FileSystem::mkfs(&store, &*clock, &too_large), Err(FsError::Invalid(_))));
}

#[test]
fn names_have_limits() {
    let setup = Setup::new(4096);
    let make = |name: &[u8]| setup.create(&setup.caller, ROOT, name, 0o644, true).map(|_| ());
    assert!(make(&[b'x'; 255]).is_ok());
    assert!(make(b"\xff\xfe\x01 newline\n").is_ok());
    assert!(matches!(make(&[b'x'; 256]), Err(FsError::NameTooLong { len: 256, len_max: 255 })));
    assert!(matches!(setup.lookup(&setup.caller, ROOT, &[b'x'; 256]), Err(FsError::NameTooLong { .. })));
    assert!(matches!(make(b"a/b"), Err(FsError::Invalid(_))));
    assert!(matches!(make(b"."), Err(FsError::Exists)));
    let target = vec![b't'; 4096];
    let long = setup.symlink(&setup.caller, ROOT, b"long", &target);
    assert!(matches!(long, Err(FsError::NameTooLong { len: 4096, .. })));
    let link = setup.symlink(&setup.caller, ROOT, b"link", &target[..4095]).unwrap();
    assert_eq!(setup.readlink(&setup.caller, link.node).unwrap(), target[..4095]);
}

#[test]
fn unlinked_but_open_files_live_until_they_are_forgotten() {
    let mut setup = Setup::new(100);
    for size in [50, 10_000] {
        let file = setup.file(ROOT, "f");
        setup.write_at(file, 0, &vec![7; size]).unwrap();
        setup.setxattr(&setup.caller, file, b"user.a", b"v", XattrMode::Set).unwrap();
        setup.unlink(&setup.caller, ROOT, b"f").unwrap();
        assert_eq!(setup.getattr(&setup.caller, file).unwrap().nlink, 0);
        assert_eq!(setup.read_all(file), vec![7; size]);
        setup.write_at(file, size as u64, b"more").unwrap();
        assert_eq!(setup.getxattr(&setup.caller, file, b"user.a").unwrap(), &b"v"[..]);
        assert_eq!(check::check(&setup.store).unwrap().orphans, 1);
        setup.forget(file, 1);
        setup.housekeep().unwrap();
        let report = check::check(&setup.store).unwrap();
        assert_eq!((report.orphans, report.blocks, report.xattrs, report.files), (0, 0, 0, 0));
        assert!(matches!(setup.getattr(&setup.caller, file), Err(FsError::Stale(_))));
    }
    // What a crash leaves is reaped at the next mount.
    let file = setup.file(ROOT, "g");
    setup.write_at(file, 0, &[7; 10_000]).unwrap();
    setup.unlink(&setup.caller, ROOT, b"g").unwrap();
    setup.tmpfile(&setup.caller, ROOT, 0o600, true).unwrap();
    setup.reopen();
    let report = check::check(&setup.store).unwrap();
    assert_eq!((report.orphans, report.blocks), (0, 0));
    setup.assert_sound("after reaping");
}

#[test]
fn removed_but_open_directories_are_empty_and_take_nothing() {
    let setup = Setup::new(4096);
    let dir = setup.dir(ROOT, "d");
    setup.rmdir(&setup.caller, ROOT, b"d").unwrap();
    let made = setup.create(&setup.caller, dir, b"x", 0o644, true);
    assert!(matches!(made, Err(FsError::NotFound)));
    setup.file(ROOT, "f");
    let moved = setup.rename(&setup.caller, ROOT, b"f", dir, b"f", RenameMode::Replace);
    assert!(matches!(moved, Err(FsError::NotFound)));
    assert!(setup.list(dir, 10, true).is_empty());
    assert_eq!(setup.getattr(&setup.caller, dir).unwrap().nlink, 0);
    assert!(matches!(setup.sync_target(dir), Ok(position) if position <= setup.store.position()));
    setup.forget(dir, 1);
    setup.housekeep().unwrap();
    setup.assert_sound("after rmdir");
}

#[test]
fn offsets_of_a_listing_stay_valid_while_entries_come_and_go() {
    let setup = Setup::new(4096);
    let names: Vec<String> = (0..100).map(|index| format!("f{index:03}")).collect();
    for name in &names {
        let file = setup.file(ROOT, name);
        setup.forget(file, 1);
    }
    let (mut seen, mut offset) = (Vec::new(), 0);
    loop {
        let reply = setup.list_once(ROOT, offset, 7, offset % 2 == 0).unwrap();
        let Some(last) = reply.last() else { break };
        offset = last.offset;
        // What was listed goes, as `rm -r` does, and others come before and after.
        for listed in reply.iter().filter(|listed| listed.name.starts_with(b"f")) {
            setup.unlink(&setup.caller, ROOT, &listed.name).unwrap();
            let fresh = [b"a-", &listed.name[..]].concat();
            setup.create(&setup.caller, ROOT, &fresh, 0o644, true).unwrap();
            seen.push(String::from_utf8(listed.name.clone()).unwrap());
        }
    }
    assert_eq!(seen, names, "each exactly once");
    let unknown = setup.list_once(ROOT, 1 << 60, 7, false);
    assert!(matches!(unknown, Err(FsError::Invalid(_))));
}

#[test]
fn every_offset_leads_back_to_its_place() {
    let setup = Setup::new(4096);
    for index in 0..300 {
        setup.file(ROOT, &format!("{index}"));
    }
    let listed = setup.list(ROOT, 11, true);
    assert_eq!(listed.len(), 302);
    let offsets: BTreeSet<u64> = listed.iter().map(|listed| listed.offset).collect();
    assert_eq!(offsets.len(), 302);
    for (index, entry) in listed.iter().enumerate() {
        let next = setup.list_once(ROOT, entry.offset, 1, false).unwrap();
        assert_eq!(next.first().map(|next| &next.name), listed.get(index + 1).map(|next| &next.name));
    }
}

#[test]
fn offsets_after_thousands_of_seeks_and_changes_lead_to_their_places() {
    let setup = Setup::new(4096);
    let names: Vec<String> = (0..3000).map(|index| format!("f{index:04}")).collect();
    for name in &names {
        let file = setup.file(ROOT, name);
        setup.forget(file, 1);
    }
    let listed = setup.list(ROOT, 100, true);
    // Backwards, so that each seek begins a listing of its own; every second entry is gone by then, and
    // others have come.
    let mut left: BTreeSet<Vec<u8>> = names.iter().map(|name| name.clone().into_bytes()).collect();
    for round in 0..2 {
        for (index, entry) in listed.iter().enumerate().skip(2).rev() {
            let next = setup.list_once(ROOT, entry.offset, 50, index % 3 == 0).unwrap();
            let expected = left.range(entry.name.clone()..).find(|name| **name > entry.name);
            assert_eq!(next.first().map(|next| &next.name), expected, "{round} {index}");
            if index % 2 == 0 && round == 0 {
                setup.unlink(&setup.caller, ROOT, &entry.name).unwrap();
                let fresh = [&entry.name[..], b"-new"].concat();
                let (made, _) = setup.create(&setup.caller, ROOT, &fresh, 0o644, true).unwrap();
                setup.forget(made.node, 1);
                left.remove(&entry.name);
                left.insert(fresh);
            }
        }
    }
    let from_start: Vec<Vec<u8>> = setup.list(ROOT, 100, false).into_iter().map(|entry| entry.name).collect();
    assert!(from_start[2..].iter().eq(left.iter()), "rewinddir");
}

#[test]
fn rename_with_whiteout_leaves_a_device_under_the_old_name() {
    let mut setup = Setup::new(4096);
    let (file, dir) = (setup.file(ROOT, "f"), setup.dir(ROOT, "d"));
    let (target, below) = (setup.dir(ROOT, "t"), setup.dir(dir, "below"));
    setup.file(target, "f");
    let rename = |from: &[u8], to: &[u8], mode| setup.rename(&setup.caller, ROOT, from, target, to, mode);
    assert!(matches!(rename(b"f", b"f", RenameMode::WhiteoutNoReplace), Err(FsError::Exists)));
    rename(b"f", b"f", RenameMode::Whiteout).unwrap();
    rename(b"d", b"d", RenameMode::WhiteoutNoReplace).unwrap();
    for name in [&b"f"[..], b"d"] {
        let left = setup.lookup(&setup.caller, ROOT, name).unwrap();
        assert_eq!((left.attr.st_mode(), left.attr.rdev, left.attr.nlink), (0o020_000, 0, 1));
        assert_eq!(left.attr.uid, setup.caller.uid);
        assert_ne!(left.node, file);
        setup.forget(left.node, 1);
    }
    assert_eq!(setup.lookup(&setup.caller, target, b"f").unwrap().node, file);
    assert_eq!(setup.lookup(&setup.caller, dir, b"below").unwrap().node, below);
    let links = |node| setup.getattr(&setup.caller, node).unwrap().nlink;
    assert_eq!((links(ROOT), links(target)), (3, 3));
    // A whiteout is a file like any other, and goes like one.
    setup.rename(&setup.caller, ROOT, b"f", ROOT, b"d", RenameMode::Replace).unwrap();
    setup.unlink(&setup.caller, ROOT, b"d").unwrap();
    setup.reopen();
    setup.assert_sound("after whiteouts");
    assert_eq!(setup.list(ROOT, 10, true).len(), 3);
}

#[test]
fn set_group_id_directories_pass_on_their_group() {
    let setup = Setup::new(4096);
    let dir = setup.dir(ROOT, "d");
    let changes = SetAttr { mode: Some(0o2775), gid: Some(77), ..SetAttr::default() };
    setup.setattr(&setup.caller, dir, &changes).unwrap();
    let below = setup.mkdir(&setup.caller, dir, b"sub", 0o755).unwrap().attr;
    assert_eq!((below.gid, below.mode), (77, 0o2755));
    let (file, _) = setup.create(&setup.caller, dir, b"f", 0o644, true).unwrap();
    assert_eq!((file.attr.gid, file.attr.mode, file.attr.uid), (77, 0o644, 1000));
}

#[test]
fn set_id_bits_go_when_the_owner_or_the_content_changes() {
    let setup = Setup::new(4096);
    let file = setup.file(ROOT, "f");
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let set = |changes: &SetAttr| setup.setattr(&setup.caller, file, changes).unwrap().mode;
    assert_eq!(set(&mode(0o6755)), 0o6755);
    assert_eq!(set(&SetAttr { uid: Some(5), ..SetAttr::default() }), 0o755);
    set(&mode(0o6745));
    assert_eq!(
        set(&SetAttr { gid: Some(5), ..SetAttr::default() }),
        0o2745,
        "without group execution it stays"
    );
    set(&mode(0o6755));
    let flags = WriteFlags { kill_suidgid: true, ..WriteFlags::default() };
    setup.write(&setup.caller, file, 0, Bytes::from_static(b"x"), flags).unwrap();
    assert_eq!(setup.getattr(&setup.caller, file).unwrap().mode, 0o755);
    set(&mode(0o4755));
    assert_eq!(set(&SetAttr { size: Some(0), kill_suidgid: true, ..SetAttr::default() }), 0o755);
}

#[test]
fn times_are_kept_to_the_nanosecond_and_beyond_2038() {
    let mut setup = Setup::new(4096);
    let file = setup.file(ROOT, "f");
    let (past, future) =
        (Timestamp { seconds: -1, nanos: 999_999_999 }, Timestamp { seconds: 1 << 40, nanos: 1 });
    let changes =
        SetAttr { atime: Some(SetTime::At(past)), mtime: Some(SetTime::At(future)), ..SetAttr::default() };
    setup.setattr(&setup.caller, file, &changes).unwrap();
    setup.reopen();
    let attr = setup.lookup(&setup.caller, ROOT, b"f").unwrap().attr;
    assert_eq!((attr.atime, attr.mtime), (past, future));
    assert_eq!(attr.btime.seconds, 1_000_000_000);
}

#[test]
fn noatime_and_strict_do_as_they_say() {
    for (policy, expected) in
        [(AtimePolicy::Noatime, 0), (AtimePolicy::Strict, 2), (AtimePolicy::Relatime, 1)]
    {
        let options = MountOptions { atime: policy, ..MountOptions::default() };
        let setup = Setup::with(Arc::new(ModelStore::new()), 4096, options);
        let file = setup.file(ROOT, "f");
        setup.write_at(file, 0, b"content").unwrap();
        let mut changes = 0;
        let mut before = setup.getattr(&setup.caller, file).unwrap().atime;
        for _ in 0..2 {
            setup.clock.advance(Duration::from_secs(1));
            setup.read_all(file);
            let atime = setup.getattr(&setup.caller, file).unwrap().atime;
            changes += u32::from(atime != before);
            before = atime;
        }
        assert_eq!(changes, expected, "{policy:?}");
    }
}

/// The access time that a mount after a crash of this one would show.
fn atime_in_the_store(setup: &Setup, name: &[u8]) -> Timestamp {
    let fs =
        FileSystem::open(Arc::clone(&setup.store), setup.clock.clone(), MountOptions::default()).unwrap();
    fs.lookup(&setup.caller, ROOT, name).unwrap().attr.atime
}

#[test]
fn lazy_access_times_are_written_with_the_next_change_a_sync_or_after_a_day() {
    let options = MountOptions { lazytime: true, atime: AtimePolicy::Strict, ..MountOptions::default() };
    let setup = Setup::with(Arc::new(ModelStore::new()), 4096, options);
    let file = setup.file(ROOT, "f");
    setup.write_at(file, 0, b"content").unwrap();
    let read = || {
        setup.clock.advance(Duration::from_secs(10));
        setup.read_all(file);
        setup.getattr(&setup.caller, file).unwrap().atime
    };
    let stored = || atime_in_the_store(&setup, b"f");

    // Kept in memory, for less than a day.
    let first = stored();
    let seen = read();
    setup.clock.advance(Duration::from_hours(23));
    setup.housekeep().unwrap();
    assert!(first < seen && stored() == first, "it was not kept back");
    setup.clock.advance(Duration::from_hours(1));
    setup.housekeep().unwrap();
    assert_eq!(stored(), seen, "after a day");

    // With the next change of the inode, whatever it is.
    let seen = read();
    setup.write_at(file, 0, b"C").unwrap();
    assert_eq!(stored(), seen, "with a write");
    let seen = read();
    let changes = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    setup.setattr(&setup.caller, file, &changes).unwrap();
    assert_eq!(stored(), seen, "with a chmod");

    // At an fsync of the file, and a sync of everything.
    let seen = read();
    let before = setup.store.position();
    assert!(setup.sync_target(file).unwrap() > before, "an fsync waits for it");
    assert_eq!(stored(), seen, "at an fsync");
    let seen = read();
    setup.sync_target_all().unwrap();
    assert_eq!(stored(), seen, "at a sync");

    // A time that a caller sets is not undone by one that waited.
    read();
    let past = Timestamp { seconds: 5, nanos: 0 };
    let changes = SetAttr { atime: Some(SetTime::At(past)), ..SetAttr::default() };
    setup.setattr(&setup.caller, file, &changes).unwrap();
    setup.sync_target_all().unwrap();
    assert_eq!((stored(), setup.getattr(&setup.caller, file).unwrap().atime), (past, past));
}

#[test]
fn lazy_access_times_are_written_with_changes_that_quotas_count() {
    let options = MountOptions { lazytime: true, atime: AtimePolicy::Strict, ..MountOptions::default() };
    let setup = Setup::with(Arc::new(ModelStore::new()), 4096, options);
    setup.quotas().turn_on(&|_| {}).unwrap();
    let file = setup.file(ROOT, "f");
    setup.write_at(file, 0, b"content").unwrap();
    setup.clock.advance(Duration::from_secs(10));
    setup.read_all(file);
    let seen = setup.getattr(&setup.caller, file).unwrap().atime;
    assert!(atime_in_the_store(&setup, b"f") < seen, "it is kept back");
    setup.write_at(file, 0, b"longer content").unwrap();
    assert_eq!(atime_in_the_store(&setup, b"f"), seen);
}

#[test]
fn access_times_that_could_not_be_written_are_written_later() {
    let bytes_max = 100_000;
    let store: Arc<dyn Store> = Arc::new(ModelStore::with_capacity_bytes(bytes_max));
    let options = MountOptions { atime: AtimePolicy::Strict, ..MountOptions::default() };
    let setup = Setup::with(Arc::clone(&store), 4096, options);
    let file = setup.file(ROOT, "f");
    setup.write_at(file, 0, b"content").unwrap();
    let filler = store.open_keyspace("filler", KeyspaceKind::Tuple, None).unwrap();
    let mut batch = Batch::new();
    batch.put(filler, "k", vec![1; store.space().available_bytes as usize - 1]);
    store.apply(batch, Durability::Buffered).unwrap();
    setup.clock.advance(Duration::from_secs(10));
    setup.read_all(file);
    let seen = setup.getattr(&setup.caller, file).unwrap().atime;
    assert!(matches!(setup.housekeep(), Err(FsError::NoSpace)), "there is no room for the time");
    setup.sync_target_all().expect("which keeps nothing else from becoming durable");
    let mut batch = Batch::new();
    batch.delete(filler, "k");
    store.apply(batch, Durability::Buffered).unwrap();
    assert!(atime_in_the_store(&setup, b"f") < seen);
    setup.housekeep().unwrap();
    assert_eq!(atime_in_the_store(&setup, b"f"), seen);
    // It is out of the queue: nothing keeps the node any more.
    setup.forget(file, 1);
    assert_eq!(setup.nodes().stats().nodes, 1, "only the root");
}

#[test]
fn lazy_access_times_wait_in_bounded_memory() {
    let options = MountOptions {
        lazytime: true,
        atime: AtimePolicy::Strict,
        node_bytes_max: 2048 * 600,
        ..MountOptions::default()
    };
    let setup = Setup::with(Arc::new(ModelStore::new()), 4096, options);
    let files: Vec<_> = (0..601).map(|n| setup.file(ROOT, &format!("f{n}"))).collect();
    setup.clock.advance(Duration::from_secs(10));
    for file in &files[..599] {
        setup.write_at(*file, 0, b"x").unwrap();
        setup.clock.advance(Duration::from_nanos(1));
        setup.read_all(*file);
    }
    let first = atime_in_the_store(&setup, b"f0");
    for file in &files[599..] {
        setup.write_at(*file, 0, b"x").unwrap();
        setup.clock.advance(Duration::from_nanos(1));
        setup.read_all(*file);
    }
    assert!(first < atime_in_the_store(&setup, b"f0"), "the first ones are still kept back");
}

#[test]
fn holes_are_found_and_punched() {
    let setup = Setup::new(100);
    let file = setup.file(ROOT, "f");
    setup.write_at(file, 5 * 4096, &[1; 4096]).unwrap();
    let seek = |offset, kind| setup.seek(&setup.caller, file, offset, kind).ok();
    assert_eq!((seek(0, SeekKind::Data), seek(0, SeekKind::Hole)), (Some(5 * 4096), Some(0)));
    assert_eq!(
        (seek(5 * 4096 + 5, SeekKind::Data), seek(5 * 4096, SeekKind::Hole)),
        (Some(5 * 4096 + 5), Some(6 * 4096))
    );
    assert_eq!(seek(6 * 4096, SeekKind::Data), None);
    assert_eq!(setup.getattr(&setup.caller, file).unwrap().blocks, 8);
    setup.write_at(file, 0, &[2; 4 * 4096]).unwrap();
    setup.fallocate(&setup.caller, file, 4000, 5000, FallocateMode::PunchHole).unwrap();
    assert_eq!(setup.getattr(&setup.caller, file).unwrap().blocks, 32);
    assert_eq!((seek(0, SeekKind::Hole), seek(4096, SeekKind::Data)), (Some(4096), Some(8192)));
    let content = setup.read_all(file);
    assert!(content[4000..9000].iter().all(|&byte| byte == 0) && content[3999] == 2 && content[9000] == 2);
    setup.assert_sound("after punching");
}

#[test]
fn sizes_reach_to_the_limit_and_not_beyond() {
    let setup = Setup::new(4096);
    let file = setup.file(ROOT, "f");
    let max = i64::MAX as u64;
    setup.write_at(file, max - 10, b"0123456789").unwrap();
    assert_eq!(setup.getattr(&setup.caller, file).unwrap().size, max);
    assert!(matches!(setup.write_at(file, max - 9, b"0123456789"), Err(FsError::FileTooLarge)));
    let resize =
        |size| setup.setattr(&setup.caller, file, &SetAttr { size: Some(size), ..SetAttr::default() });
    assert!(matches!(resize(max + 1), Err(FsError::FileTooLarge)));
    let mut buffer = [0; 20];
    assert_eq!(setup.read(&setup.caller, file, max - 5, &mut buffer).unwrap(), 5);
    assert_eq!(&buffer[..5], b"56789");
    resize(3).unwrap();
    assert_eq!(setup.read_all(file), [0; 3]);
    setup.assert_sound("after shrinking");
}

#[test]
fn copies_ranges() {
    let setup = Setup::new(100);
    let (source, target) = (setup.file(ROOT, "a"), setup.file(ROOT, "b"));
    setup.write_at(source, 0, &[5; 10_000]).unwrap();
    let copy = |from, to, length| setup.copy_file_range(&setup.caller, source, from, target, to, length);
    assert_eq!(copy(1000, 10, 20_000).unwrap().bytes, 9000);
    assert_eq!(setup.read_all(target)[10..], [5; 9000]);
    assert_eq!(copy(10_000, 0, 10).unwrap().bytes, 0);
    let overlapping = setup.copy_file_range(&setup.caller, source, 0, source, 10, 20);
    assert!(matches!(overlapping, Err(FsError::Invalid(_))));
}

#[test]
fn extended_attributes_have_namespaces_and_limits() {
    let setup = Setup::new(4096);
    let file = setup.file(ROOT, "f");
    let set = |name: &[u8], len| setup.setxattr(&setup.caller, file, name, &vec![1; len], XattrMode::Set);
    assert!(set(b"user.x", 65536).is_ok());
    assert!(matches!(set(b"user.x", 65537), Err(FsError::AttributeTooLarge { .. })));
    assert!(matches!(set(b"system.posix_acl_access", 4), Err(FsError::NotSupported(_))));
    assert!(matches!(set(b"nonsense", 4), Err(FsError::NotSupported(_))));
    assert!(matches!(set(&[b"user.", &[b'x'; 251][..]].concat(), 4), Err(FsError::NameTooLong { .. })));
    assert!(set(b"security.selinux", 4).is_ok());
    assert_eq!(setup.listxattr(&setup.caller, file).unwrap(), b"security.selinux\0user.x\0");
}

#[test]
fn trusted_attributes_are_listed_for_root_alone() {
    let setup = Setup::new(4096);
    let file = setup.file(ROOT, "f");
    for name in [&b"trusted.overlay.opaque"[..], b"user.x"] {
        setup.setxattr(&setup.caller, file, name, b"y", XattrMode::Set).unwrap();
    }
    assert_eq!(setup.listxattr(&setup.caller, file).unwrap(), b"user.x\0");
    assert_eq!(setup.listxattr(&Caller::default(), file).unwrap(), b"trusted.overlay.opaque\0user.x\0");
}

#[test]
fn a_full_store_refuses_writes_and_lets_delete() {
    let store: Arc<dyn Store> = Arc::new(ModelStore::with_capacity_bytes(400_000));
    let setup = Setup::with(store, 4096, MountOptions::default());
    let mut nodes = Vec::new();
    let error = loop {
        let name = format!("f{}", nodes.len());
        let file = match setup.create(&setup.caller, ROOT, name.as_bytes(), 0o644, true) {
            Ok((entry, _)) => entry.node,
            Err(error) => break error,
        };
        nodes.push(file);
        if let Err(error) = setup.write_at(file, 0, &[3; 9000]) {
            assert_eq!(setup.getattr(&setup.caller, file).unwrap().size, 0, "it left no trace");
            break error;
        }
    };
    assert!(matches!(error, FsError::NoSpace), "{error:?}");
    assert_eq!(error.errno(), 28);
    for (index, node) in nodes.into_iter().enumerate() {
        setup.unlink(&setup.caller, ROOT, format!("f{index}").as_bytes()).unwrap();
        setup.forget(node, 1);
    }
    setup.housekeep().unwrap();
    let file = setup.file(ROOT, "again");
    setup.write_at(file, 0, &[3; 9000]).unwrap();
    setup.assert_sound("after a full store");
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let mut setup = Setup::new(4096);
    let file = setup.file(ROOT, "f");
    setup.write_at(file, 0, b"content").unwrap();
    setup.options.read_only = true;
    let position = setup.store.position();
    setup.reopen();
    let file = setup.lookup(&setup.caller, ROOT, b"f").unwrap().node;
    assert_eq!(setup.read_all(file), b"content");
    assert!(matches!(setup.write_at(file, 0, b"x"), Err(FsError::ReadOnly)));
    let made = setup.create(&setup.caller, ROOT, b"g", 0o644, true);
    assert!(matches!(made, Err(FsError::ReadOnly)));
    assert!(matches!(setup.unlink(&setup.caller, ROOT, b"f"), Err(FsError::ReadOnly)));
    setup.housekeep().unwrap();
    setup.sync_target_all().unwrap();
    assert_eq!(setup.store.position(), position);
}

#[test]
fn the_node_table_names_idle_nodes_above_its_bound() {
    let options = MountOptions { node_bytes_max: 100_000, ..MountOptions::default() };
    let setup = Setup::with(Arc::new(ModelStore::new()), 4096, options);
    let dir = setup.dir(ROOT, "d");
    for index in 0..2000 {
        setup.file(dir, &format!("file-{index}"));
        // As a kernel with prune notifications does.
        for candidate in setup.nodes().prune_candidates(64) {
            assert_ne!(candidate.node, dir, "it has children");
            assert!(candidate.link.is_some());
            setup.forget(candidate.node, 1);
        }
    }
    let stats = setup.nodes().stats();
    assert!(stats.bytes < 200_000, "{stats:?}");
    assert!(setup.nodes().prune_candidates(64).is_empty());
}

#[test]
fn offsets_of_listings_count_as_memory_of_the_directory() {
    let setup = Setup::new(4096);
    let dir = setup.dir(ROOT, "d");
    for index in 0..1000 {
        let file = setup.file(dir, &format!("{index:0>200}"));
        setup.forget(file, 1);
    }
    let before = setup.nodes().stats().bytes;
    // A listing that is never finished keeps its names.
    setup.list_once(dir, 0, 900, false).unwrap();
    let listed = setup.nodes().stats().bytes;
    assert!(listed >= before + 900 * 200, "{before} {listed}");
    setup.list(dir, 100, false);
    setup.forget(dir, 1);
    let forgotten = setup.nodes().stats();
    assert_eq!(forgotten.nodes, 1, "only the root is left");
    assert!(forgotten.bytes < before, "{before} {forgotten:?}");
}

#[test]
fn small_files_are_read_from_what_the_listing_saw() {
    let mut setup = Setup::new(4096);
    for index in 0..50 {
        let file = setup.file(ROOT, &format!("{index}"));
        setup.write_at(file, 0, &[index; 1000]).unwrap();
    }
    setup.reopen();
    let mut nodes = Vec::new();
    setup
        .readdirplus(&setup.caller, ROOT, 0, &mut |entry| {
            nodes.extend(entry.entry.map(|entry| entry.node));
            kvfs_fs::Fill::Taken
        })
        .unwrap();
    assert_eq!(setup.nodes().stats().content_bytes, 50_000);
    for node in nodes {
        assert_eq!(setup.read_all(node).len(), 1000);
    }
    assert_eq!(setup.nodes().stats().content_bytes, 0, "the reader keeps it");
}

#[test]
fn a_kernels_listing_counts_its_lookups_where_names_are_kept() {
    let setup = Setup::new(4096);
    let file = setup.file(ROOT, "f");
    setup.nodes().keep_names();
    for _ in 0..3 {
        // Forgotten as often as it was listed.
        assert_eq!(setup.list(ROOT, 100, true).len(), 3);
    }
    setup.nodes().forget_names();
    assert!(setup.nodes().knows(file), "the lookup that is left keeps it");
    setup.forget(file, 1);
    assert!(!setup.nodes().knows(file));
}

#[test]
fn the_checker_finds_damage() {
    let setup = Setup::new(100);
    let dir = setup.dir(ROOT, "d");
    let file = setup.file(dir, "f");
    setup.write_at(file, 0, &[1; 5000]).unwrap();
    setup.link(&setup.caller, file, ROOT, b"other").unwrap();
    let keyspace = |name| setup.store.open_keyspace(name, KeyspaceKind::Tuple, None);
    let meta = keyspace("meta").unwrap();
    let problems = |batch: Batch| {
        setup.store.apply(batch, Durability::Buffered).unwrap();
        check::check(&setup.store)
            .unwrap()
            .problems
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n")
    };
    let row = |inode: u64, name: &[u8]| [&inode.to_be_bytes()[..], &[0], name].concat();
    let mut batch = Batch::new();
    batch.delete(meta, row(1, b"other"));
    let text = problems(batch);
    assert!(text.contains("link count 2, but 1 names"), "{text}");
    assert!(text.contains("/: it counts 2 entries and has 1"), "{text}");
    let mut batch = Batch::new();
    batch.delete(meta, row(file.0, b""));
    let text = problems(batch);
    assert!(text.contains("/d/f: it refers to inode"), "{text}");
    assert!(text.contains("no file owns it"), "{text}");
    let mut batch = Batch::new();
    batch.delete(meta, row(1, b"d"));
    assert!(
        problems(batch).contains("is not below the root") || problems(Batch::new()).contains("has 0 names")
    );
}
