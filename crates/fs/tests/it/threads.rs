//! Several threads: every operation by patient callers, and the tree is sound afterwards.

use std::thread;

use bytes::Bytes;
use kvfs_fs::{Append, Caller, FileSystem, FsError, NodeId, RenameMode, Result, SetAttr, WriteFlags};

use crate::setup::{Random, Setup, patiently};

const THREADS: u64 = 4;

/// Runs `work` on some threads with a seed each.
fn in_parallel(setup: &Setup, work: impl Fn(&FileSystem, &Caller, Random) + Sync) {
    thread::scope(|scope| {
        for seed in 1..=THREADS {
            let work = &work;
            let caller = setup.caller.clone();
            let fs = &setup.fs;
            scope.spawn(move || work(fs, &caller, Random::new(seed)));
        }
    });
}

/// What racing operations may fail with.
fn is_race<T>(result: &Result<T>) -> bool {
    matches!(
        result,
        Ok(_)
            | Err(FsError::NotFound
                | FsError::Exists
                | FsError::NotEmpty
                | FsError::IsDirectory
                | FsError::NotDirectory
                | FsError::NotPermitted(_)
                | FsError::Invalid(_))
    )
}

#[track_caller]
fn assert_race<T: std::fmt::Debug>(result: &Result<T>) {
    assert!(is_race(result), "{result:?}");
}

/// Looks up, works on the node, forgets.
fn with_node<T>(
    fs: &FileSystem,
    caller: &Caller,
    parent: NodeId,
    name: &[u8],
    work: impl FnOnce(NodeId) -> T,
) -> Option<T> {
    let entry = fs.lookup(caller, parent, name);
    assert_race(&entry);
    let node = entry.ok()?.node;
    let result = work(node);
    fs.forget(node, 1);
    Some(result)
}

fn one_step(fs: &FileSystem, caller: &Caller, random: &mut Random) {
    let root = NodeId::ROOT;
    let names: Vec<Vec<u8>> = (0..2).map(|_| format!("n{}", random.below(5)).into_bytes()).collect();
    let (a, b) = (&names[0][..], &names[1][..]);
    match random.below(10) {
        0 | 1 => {
            let made = patiently(caller, |caller| fs.create(caller, root, a, 0o644, random.below(2) == 0));
            assert_race(&made);
            if let Ok((entry, _)) = made {
                fs.forget(entry.node, 1);
            }
        }
        2 => {
            let made = patiently(caller, |caller| fs.mkdir(caller, root, a, 0o755));
            assert_race(&made);
            if let Ok(entry) = made {
                fs.forget(entry.node, 1);
            }
        }
        3 => assert_race(&patiently(caller, |caller| fs.unlink(caller, root, a))),
        4 => assert_race(&patiently(caller, |caller| fs.rmdir(caller, root, a))),
        5 | 6 => {
            let mode =
                [RenameMode::Replace, RenameMode::Exchange, RenameMode::NoReplace, RenameMode::Whiteout]
                    [random.below(4) as usize];
            assert_race(&patiently(caller, |caller| fs.rename(caller, root, a, root, b, mode)));
        }
        7 => {
            with_node(fs, caller, root, a, |node| {
                let linked = patiently(caller, |caller| fs.link(caller, node, root, b));
                assert_race(&linked);
                if let Ok(entry) = linked {
                    fs.forget(entry.node, 1);
                }
            });
        }
        8 => {
            let data = Bytes::from(vec![random.below(256) as u8; random.below(9000) as usize]);
            let size = random.one_in(3).then(|| random.below(9000));
            with_node(fs, caller, root, a, |node| {
                let flags = WriteFlags::default();
                let written = patiently(caller, |caller| fs.write(caller, node, 100, data.clone(), flags));
                assert_race(&written);
                let changes = SetAttr { size, mode: Some(0o600), ..SetAttr::default() };
                assert_race(&patiently(caller, |caller| fs.setattr(caller, node, &changes)));
            });
        }
        _ => {
            let mut nodes = Vec::new();
            fs.readdirplus(caller, root, 0, &mut |entry| {
                nodes.extend(entry.entry.map(|entry| entry.node));
                kvfs_fs::Fill::Taken
            })
            .unwrap();
            for node in nodes {
                let mut buffer = [0; 8192];
                assert_race(&patiently(caller, |caller| fs.read(caller, node, 0, &mut buffer)));
                fs.forget(node, 1);
            }
        }
    }
}

#[test]
fn threads_in_one_directory_leave_a_sound_tree_and_no_nodes() {
    work_in_one_directory(&Setup::new(4096));
}

pub(crate) fn work_in_one_directory(setup: &Setup) {
    in_parallel(setup, |fs, caller, mut random| {
        for _ in 0..4000 {
            one_step(fs, caller, &mut random);
        }
    });
    setup.housekeep().unwrap();
    setup.assert_sound("after threads");
    assert_eq!(setup.nodes().stats().nodes, 1, "only the root is left");
    assert_eq!(setup.nodes().stats().orphans_queued, 0);
}

#[test]
fn concurrent_moves_of_directories_never_detach_a_cycle() {
    move_directories(&Setup::new(4096));
}

pub(crate) fn move_directories(setup: &Setup) {
    let dirs: Vec<NodeId> = (0..6).map(|index| setup.dir(NodeId::ROOT, &format!("d{index}"))).collect();
    // Every thread moves directories by the names they happen to have under each other.
    in_parallel(setup, |fs, caller, mut random| {
        for _ in 0..4000 {
            let mut any = || match random.below(7) as usize {
                6 => NodeId::ROOT,
                index => dirs[index],
            };
            let (from, to) = (any(), any());
            let name = format!("d{}", random.below(6)).into_bytes();
            let mode = if random.one_in(3) { RenameMode::Exchange } else { RenameMode::NoReplace };
            let other = format!("d{}", random.below(6)).into_bytes();
            let new_name = if mode == RenameMode::Exchange { &other } else { &name };
            assert_race(&patiently(caller, |caller| fs.rename(caller, from, &name, to, new_name, mode)));
        }
    });
    setup.assert_sound("after moves");
    let report = kvfs_fs::check::check(&setup.store).unwrap();
    assert_eq!(report.directories, 7);
}

#[test]
fn appends_of_many_threads_are_all_there_and_whole() {
    let setup = Setup::new(100);
    let file = setup.file(NodeId::ROOT, "log");
    let flags = WriteFlags { append: Append::End, ..WriteFlags::default() };
    in_parallel(&setup, |fs, caller, mut random| {
        for _ in 0..200 {
            let record = Bytes::from(vec![random.below(255) as u8 + 1; 37]);
            patiently(caller, |caller| fs.write(caller, file, 0, record.clone(), flags)).unwrap();
        }
    });
    let content = setup.read_all(file);
    assert_eq!(content.len(), THREADS as usize * 200 * 37);
    for record in content.chunks(37) {
        assert!(record.iter().all(|&byte| byte == record[0] && byte != 0));
    }
    setup.assert_sound("after appends");
}

#[test]
fn a_read_sees_each_write_wholly_or_not_at_all() {
    let setup = Setup::new(4096);
    let file = setup.file(NodeId::ROOT, "f");
    setup.write_at(file, 0, &vec![1; 20_000]).unwrap();
    in_parallel(&setup, |fs, caller, mut random| {
        for _ in 0..300 {
            if random.one_in(2) {
                let data = Bytes::from(vec![random.below(255) as u8 + 1; 20_000]);
                let flags = WriteFlags::default();
                patiently(caller, |caller| fs.write(caller, file, 0, data.clone(), flags)).unwrap();
            } else {
                let mut buffer = vec![0; 20_480];
                let length = patiently(caller, |caller| fs.read(caller, file, 0, &mut buffer)).unwrap();
                assert_eq!(length, 20_000);
                assert!(buffer[..length].iter().all(|&byte| byte == buffer[0]));
            }
        }
    });
    setup.assert_sound("after writes");
}

#[test]
fn writers_of_different_ranges_extend_and_convert_together() {
    let setup = Setup::new(4096);
    let file = setup.file(NodeId::ROOT, "f");
    in_parallel(&setup, |fs, caller, mut random| {
        for _ in 0..150 {
            // Each slot has a byte of its own, so the order of writers does not matter.
            let slot = random.below(40);
            let data = Bytes::from(vec![slot as u8 + 1; 1500]);
            let flags = WriteFlags::default();
            patiently(caller, |caller| fs.write(caller, file, slot * 1500, data.clone(), flags)).unwrap();
        }
    });
    for (slot, content) in setup.read_all(file).chunks(1500).enumerate() {
        assert!(content.iter().all(|&byte| byte == content[0] && [0, slot as u8 + 1].contains(&byte)));
    }
    setup.assert_sound("after writes");
}
