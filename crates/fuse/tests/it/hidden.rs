//! The hidden directory and views of snapshots: whose a request is, what is counted, what is refused.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kvfs_fs::{FileSystem, FileType, FsError, MkfsOptions, MountOptions};
use kvfs_fuse::abi::{self, Opcode, notify};
use kvfs_fuse::bridge::{
    Bridge, BridgeConfig, Folder, HiddenDirectory, Item, Name, SnapshotItem, init_config,
};
use kvfs_fuse::session::SessionConfig;
use kvfs_fuse::{Errno, Session};
use kvfs_store::clock::ManualClock;
use kvfs_store::model::ModelStore;
use kvfs_store::{Snapshot, Store};
use parking_lot::Mutex;
use zerocopy::{FromBytes, IntoBytes};

use crate::kernel::{Answer, Kernel};
use crate::mounted::{mount_or_skip, start};

const ROOT: u64 = 1;
const KERNEL_UID: u32 = 1000;
const SEEK_HOLE: u32 = 4;

/// `count` (a number that grows with each lookup), `whose` (a link of the asking user), `sub`, and snapshots.
#[derive(Default)]
struct Content {
    looked_up: AtomicU64,
    snapshots: Mutex<Vec<(u64, Arc<dyn Snapshot>)>>,
    main: Mutex<Option<Arc<FileSystem>>>,
    opened: AtomicU64,
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Content")
    }
}

#[derive(Debug, Clone)]
struct Top(Arc<Content>);

impl Folder for Top {
    fn list(&self, _: u32) -> Vec<Name> {
        let name = |name: &[u8], kind, place| Name { name: name.into(), kind, place };
        vec![
            name(b"count", FileType::Regular, 1),
            name(b"whose", FileType::Symlink, 2),
            name(b"sub", FileType::Directory, 3),
        ]
    }

    fn find(&self, uid: u32, name: &[u8]) -> Result<Option<Item>, FsError> {
        Ok(match name {
            b"count" => {
                let number = self.0.looked_up.fetch_add(1, Ordering::Relaxed);
                Some(Item::File(format!("{number}\n").into()))
            }
            b"whose" => Some(Item::Link { target: uid.to_string().into(), uid }),
            b"sub" => Some(Item::Folder(Arc::new(self.clone()))),
            _ => {
                let id: u64 = std::str::from_utf8(name).unwrap().parse().unwrap_or(0);
                let known = self.0.snapshots.lock();
                let Some((_, snapshot)) = known.iter().find(|(known, _)| *known == id) else {
                    return Ok(None);
                };
                let (snapshot, content) = (Arc::clone(snapshot), Arc::clone(&self.0));
                let open = Box::new(move || {
                    content.opened.fetch_add(1, Ordering::Relaxed);
                    let main = content.main.lock().clone().unwrap();
                    main.view_of(snapshot)
                });
                let content = Arc::clone(&self.0);
                let is_kept =
                    Arc::new(move || content.snapshots.lock().iter().any(|(known, _)| *known == id));
                Some(Item::Snapshot(SnapshotItem { id, open, is_kept }))
            }
        })
    }
}

struct Rig {
    kernel: Kernel,
    session: Session,
    bridge: Arc<Bridge>,
    content: Arc<Content>,
    store: Arc<dyn Store>,
    next: AtomicU64,
}

/// A bridge over the model with a hidden directory.
fn bridge(housekeep_period: Duration) -> (Arc<Bridge>, Arc<Content>, Arc<dyn Store>) {
    let store: Arc<dyn Store> = Arc::new(ModelStore::new());
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).unwrap();
    let fs = Arc::new(FileSystem::open(Arc::clone(&store), clock, MountOptions::default()).unwrap());
    let content = Arc::new(Content::default());
    *content.main.lock() = Some(Arc::clone(&fs));
    let root: Arc<dyn Folder> = Arc::new(Top(Arc::clone(&content)));
    let config = BridgeConfig {
        housekeep_period,
        hidden: Some(HiddenDirectory { name: ".kvfs", root, uid: 7, gid: 8 }),
        ..BridgeConfig::default()
    };
    (Arc::new(Bridge::new(fs, config).unwrap()), content, store)
}

fn rig() -> Rig {
    let (bridge, content, store) = bridge(Duration::from_hours(1));
    let config = SessionConfig { init: init_config(), workers: 1, ..SessionConfig::default() };
    let (kernel, session) = Kernel::start(bridge.clone(), &config);
    bridge.attach(session.notifier());
    Rig { kernel, session, bridge, content, store, next: AtomicU64::new(10) }
}

impl Rig {
    fn ask(&self, opcode: Opcode, node: u64, parts: &[&[u8]]) -> Answer {
        let unique = self.next.fetch_add(2, Ordering::Relaxed);
        self.kernel.send(opcode, unique, node, parts);
        let answer = self.kernel.answer();
        assert_eq!(answer.unique, unique);
        answer
    }

    /// The error of a request that fails.
    fn errno(&self, opcode: Opcode, node: u64, parts: &[&[u8]]) -> Errno {
        let answer = self.ask(opcode, node, parts);
        assert_ne!(answer.error, 0, "{opcode:?}");
        Errno::from_raw_os_error(-answer.error)
    }

    fn lookup(&self, parent: u64, name: &str) -> abi::EntryOut {
        let answer = self.ask(Opcode::Lookup, parent, &[name.as_bytes(), &[0]]);
        assert_eq!(answer.error, 0, "{name}");
        abi::EntryOut::read_from_bytes(&answer.body[..]).unwrap()
    }

    fn hidden(&self) -> u64 {
        self.lookup(ROOT, ".kvfs").nodeid
    }

    fn make(&self, name: &str, content: &[u8]) -> abi::EntryOut {
        let head = abi::MknodIn { mode: 0o100_644, ..abi::MknodIn::default() };
        let answer = self.ask(Opcode::Mknod, ROOT, &[head.as_bytes(), name.as_bytes(), &[0]]);
        let entry = abi::EntryOut::read_from_bytes(&answer.body[..]).unwrap();
        self.write(entry.nodeid, content);
        entry
    }

    fn write(&self, node: u64, content: &[u8]) {
        assert_eq!(self.try_write(node, content), 0);
    }

    /// The negative error, or 0.
    fn try_write(&self, node: u64, content: &[u8]) -> i32 {
        let head = abi::WriteIn { size: content.len() as u32, ..abi::WriteIn::default() };
        self.ask(Opcode::Write, node, &[head.as_bytes(), content]).error
    }

    fn read(&self, node: u64) -> Vec<u8> {
        let answer =
            self.ask(Opcode::Read, node, &[abi::ReadIn { size: 4096, ..abi::ReadIn::default() }.as_bytes()]);
        assert_eq!(answer.error, 0);
        answer.body
    }

    fn list(&self, node: u64, offset: u64) -> Vec<(String, u64)> {
        let head = abi::ReadIn { size: 4096, offset, ..abi::ReadIn::default() };
        let answer = self.ask(Opcode::Readdir, node, &[head.as_bytes()]);
        let (mut rest, mut names) = (&answer.body[..], Vec::new());
        while !rest.is_empty() {
            let (head, tail) = abi::Dirent::read_from_prefix(rest).unwrap();
            let (name, _) = tail.split_at(head.namelen as usize);
            names.push((String::from_utf8(name.to_vec()).unwrap(), head.off));
            rest = &tail[head.namelen.next_multiple_of(8) as usize..];
        }
        names
    }

    fn forget(&self, node: u64, lookups: u64) {
        let body = abi::ForgetIn { nlookup: lookups };
        self.kernel.send(Opcode::Forget, 0, node, &[body.as_bytes()]);
        // The only worker takes requests in order.
        self.ask(Opcode::Statfs, ROOT, &[]);
    }

    /// A snapshot of now.
    fn snapshot(&self, id: u64) {
        self.content.snapshots.lock().push((id, self.store.snapshot().unwrap()));
    }

    fn end(self) {
        self.kernel.unmount();
        self.session.wait().unwrap();
    }
}

#[test]
fn the_hidden_directory_is_found_and_not_listed() {
    let rig = rig();
    rig.make("file", b"");
    let names: Vec<_> = rig.list(ROOT, 0).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [".", "..", "file"]);
    let hidden = rig.lookup(ROOT, ".kvfs");
    assert_eq!((hidden.attr.mode, hidden.attr.uid, hidden.attr.gid), (0o040_755, 7, 8));
    assert!(hidden.nodeid >> 48 != 0 && hidden.attr.ino >> 48 != 0, "beside all inode numbers");
    assert_eq!(rig.hidden(), hidden.nodeid);
    let listed = rig.list(hidden.nodeid, 0);
    let names: Vec<_> = listed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, [".", "..", "count", "whose", "sub"]);
    let behind: Vec<_> = rig.list(hidden.nodeid, listed[2].1).into_iter().map(|(name, _)| name).collect();
    assert_eq!(behind, ["whose", "sub"]);
    assert_eq!(rig.lookup(hidden.nodeid, "nothing").nodeid, 0);
    rig.end();
}

#[test]
fn a_hidden_file_is_of_the_moment_of_its_lookup() {
    let rig = rig();
    let hidden = rig.hidden();
    let (first, second) = (rig.lookup(hidden, "count"), rig.lookup(hidden, "count"));
    assert_ne!(first.nodeid, second.nodeid);
    assert_eq!(first.attr.ino, second.attr.ino, "for users it is one file");
    assert_eq!((first.entry_valid, first.attr.size), (0, 2));
    assert_eq!((rig.read(first.nodeid), rig.read(second.nodeid)), (b"0\n".to_vec(), b"1\n".to_vec()));
    rig.forget(first.nodeid, 1);
    let gone = abi::ReadIn { size: 10, ..abi::ReadIn::default() };
    assert_eq!(rig.errno(Opcode::Read, first.nodeid, &[gone.as_bytes()]), Errno::STALE);
    assert_eq!(rig.read(second.nodeid), b"1\n");
    let link = rig.lookup(hidden, "whose");
    assert_eq!(link.attr.uid, KERNEL_UID);
    assert_eq!(rig.ask(Opcode::Readlink, link.nodeid, &[]).body, KERNEL_UID.to_string().as_bytes());
    rig.end();
}

#[test]
fn nothing_hidden_can_be_changed() {
    let rig = rig();
    let file = rig.make("file", b"x").nodeid;
    let hidden = rig.hidden();
    let count = rig.lookup(hidden, "count").nodeid;
    let mkdir = abi::MkdirIn { mode: 0o755, umask: 0 };
    let rename = |newdir| abi::RenameIn { newdir };
    assert_eq!(rig.errno(Opcode::Mkdir, ROOT, &[mkdir.as_bytes(), b".kvfs\0"]), Errno::EXIST);
    assert_eq!(rig.errno(Opcode::Rmdir, ROOT, &[b".kvfs\0"]), Errno::PERM);
    assert_eq!(rig.errno(Opcode::Unlink, ROOT, &[b".kvfs\0"]), Errno::PERM);
    let to = rename(ROOT);
    assert_eq!(rig.errno(Opcode::Rename, ROOT, &[to.as_bytes(), b".kvfs\0other\0"]), Errno::PERM);
    assert_eq!(rig.errno(Opcode::Rename, ROOT, &[to.as_bytes(), b"file\0.kvfs\0"]), Errno::PERM);
    assert_eq!(rig.errno(Opcode::Mkdir, hidden, &[mkdir.as_bytes(), b"new\0"]), Errno::ROFS);
    assert_eq!(rig.errno(Opcode::Unlink, hidden, &[b"count\0"]), Errno::ROFS);
    assert_eq!(rig.errno(Opcode::Rename, hidden, &[to.as_bytes(), b"count\0other\0"]), Errno::ROFS);
    let to = rename(hidden);
    assert_eq!(rig.errno(Opcode::Rename, ROOT, &[to.as_bytes(), b"file\0other\0"]), Errno::ROFS);
    assert_eq!(rig.try_write(count, b"x"), -Errno::ROFS.raw_os_error());
    assert_eq!(rig.errno(Opcode::Setattr, count, &[abi::SetattrIn::default().as_bytes()]), Errno::ROFS);
    let link = |oldnodeid| abi::LinkIn { oldnodeid };
    assert_eq!(rig.errno(Opcode::Link, ROOT, &[link(count).as_bytes(), b"new\0"]), Errno::XDEV);
    assert_eq!(rig.errno(Opcode::Link, hidden, &[link(file).as_bytes(), b"new\0"]), Errno::ROFS);
    assert_eq!(rig.ask(Opcode::Fsync, count, &[abi::FsyncIn::default().as_bytes()]).error, 0);
    rig.end();
}

#[test]
fn a_snapshot_is_shown_as_it_was_beside_the_present() {
    let rig = rig();
    let file = rig.make("file", b"then");
    let link = abi::LinkIn { oldnodeid: file.nodeid };
    assert_eq!(rig.ask(Opcode::Link, ROOT, &[link.as_bytes(), b"twin\0"]).error, 0);
    rig.snapshot(3);
    rig.write(file.nodeid, b"now!");
    rig.make("later", b"");

    let root = rig.lookup(rig.hidden(), "3");
    assert_eq!(root.entry_valid, 0, "its deletion is noticed");
    let (old, twin) = (rig.lookup(root.nodeid, "file"), rig.lookup(root.nodeid, "twin"));
    assert_eq!((rig.read(old.nodeid), rig.read(file.nodeid)), (b"then".to_vec(), b"now!".to_vec()));
    assert_eq!(old.attr.ino, twin.attr.ino, "hard links stay recognisable");
    assert_ne!(old.attr.ino, file.attr.ino, "it is another file");
    assert_eq!(rig.lookup(root.nodeid, "later").nodeid, 0);
    assert_eq!(rig.lookup(root.nodeid, ".kvfs").nodeid, 0);
    let names: Vec<_> = rig.list(root.nodeid, 0).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [".", "..", "file", "twin"]);

    assert_eq!(rig.try_write(old.nodeid, b"x"), -Errno::ROFS.raw_os_error());
    let copy = abi::CopyFileRangeIn { nodeid_out: file.nodeid, len: 4, ..abi::CopyFileRangeIn::default() };
    assert_eq!(rig.errno(Opcode::CopyFileRange, old.nodeid, &[copy.as_bytes()]), Errno::XDEV);
    let link = abi::LinkIn { oldnodeid: old.nodeid };
    assert_eq!(rig.errno(Opcode::Link, ROOT, &[link.as_bytes(), b"new\0"]), Errno::XDEV);
    rig.end();
}

#[test]
fn seek_in_a_snapshot_drops_no_pages_of_the_present() {
    let rig = rig();
    let file = rig.make("file", b"begin");
    let head = abi::WriteIn { size: 3, offset: 1 << 20, ..abi::WriteIn::default() };
    assert_eq!(rig.ask(Opcode::Write, file.nodeid, &[head.as_bytes(), b"end"]).error, 0);
    rig.snapshot(3);
    let old = rig.lookup(rig.lookup(rig.hidden(), "3").nodeid, "file");
    assert_eq!(rig.read(old.nodeid)[..5], *b"begin");
    let head = abi::LseekIn { whence: SEEK_HOLE, ..abi::LseekIn::default() };
    // A notification would come before the answer.
    let answer = rig.ask(Opcode::Lseek, old.nodeid, &[head.as_bytes()]);
    assert_eq!(abi::LseekOut::read_from_bytes(&answer.body[..]).unwrap().offset, 4096);
    rig.end();
}

#[test]
fn the_view_of_a_snapshot_ends_when_the_kernel_has_forgotten_it() {
    let rig = rig();
    rig.make("file", b"then");
    rig.snapshot(3);
    let hidden = rig.hidden();
    let root = rig.lookup(hidden, "3").nodeid;
    assert_eq!(rig.lookup(hidden, "3").nodeid, root);
    let file = rig.lookup(root, "file").nodeid;
    // A listing with attributes is a lookup of each name.
    let head = abi::ReadIn { size: 4096, ..abi::ReadIn::default() };
    assert_eq!(rig.ask(Opcode::Readdirplus, root, &[head.as_bytes()]).error, 0);
    assert_eq!((rig.bridge.snapshots_open(), rig.content.opened.load(Ordering::Relaxed)), (1, 1));
    rig.forget(root, 2);
    rig.forget(file, 1);
    assert_eq!(rig.bridge.snapshots_open(), 1);
    assert_eq!(rig.read(file), b"then");
    rig.forget(file, 1);
    assert_eq!(rig.bridge.snapshots_open(), 0);
    assert_eq!(rig.lookup(hidden, "3").nodeid, root, "opened again, its numbers are the same");
    assert_eq!(rig.content.opened.load(Ordering::Relaxed), 2);
    rig.end();
}

#[test]
fn a_deleted_snapshot_is_stale_and_another_one_takes_no_number_of_it() {
    let rig = rig();
    rig.make("file", b"then");
    rig.snapshot(3);
    let hidden = rig.hidden();
    let root = rig.lookup(hidden, "3").nodeid;
    let file = rig.lookup(root, "file").nodeid;
    let pins = Arc::downgrade(&rig.content.snapshots.lock()[0].1);
    rig.content.snapshots.lock().clear();
    // The only worker is through with the request before.
    rig.ask(Opcode::Statfs, ROOT, &[]);
    assert_eq!(pins.strong_count(), 1, "the view holds it");
    rig.bridge.close_deleted_snapshots();
    assert_eq!(pins.strong_count(), 0, "its space is free");
    let told = rig.kernel.answer();
    assert_eq!((told.unique, told.error), (0, notify::INVAL_ENTRY));
    assert_eq!(rig.lookup(hidden, "3").nodeid, 0);
    let stale = abi::ReadIn { size: 10, ..abi::ReadIn::default() };
    assert_eq!(rig.errno(Opcode::Read, file, &[stale.as_bytes()]), Errno::STALE);
    // As if it would want the same index.
    rig.snapshot(3);
    let other = rig.lookup(hidden, "3").nodeid;
    assert_ne!(other, root);
    rig.forget(file, 1);
    rig.forget(root, 1);
    assert_eq!(rig.bridge.snapshots_open(), 1);
    rig.end();
}

#[test]
fn where_many_views_are_open_the_kernel_is_asked_to_forget_the_oldest() {
    let rig = rig();
    let hidden = rig.hidden();
    for id in 1..=9 {
        rig.snapshot(id);
    }
    for id in 1..=8 {
        rig.lookup(hidden, &id.to_string());
    }
    rig.lookup(hidden, "1");
    rig.kernel.send(Opcode::Lookup, 1000, hidden, &[b"9\0"]);
    let answers = [rig.kernel.answer(), rig.kernel.answer()];
    let told = answers.iter().find(|answer| answer.unique == 0).unwrap();
    assert_eq!(told.error, notify::INVAL_ENTRY);
    let (head, name) = notify::InvalEntryOut::read_from_prefix(&told.body).unwrap();
    assert_eq!((head.parent, name), (hidden, &b"2\0"[..]));
    rig.end();
}

#[test]
fn what_is_mounted_in_a_snapshot_stays_while_many_are_looked_at() {
    let test = "what_is_mounted_in_a_snapshot_stays_while_many_are_looked_at";
    let (bridge, content, store) = bridge(Duration::from_millis(10));
    let config = SessionConfig { init: init_config(), workers: 1, ..SessionConfig::default() };
    let Some(mounted) = mount_or_skip(test, bridge.clone(), &config) else { return };
    bridge.attach(mounted.session().notifier());
    fs::create_dir_all(mounted.path("dir/point")).unwrap();
    let snapshots = (501..=512).map(|id| (id, store.snapshot().unwrap()));
    content.snapshots.lock().extend(snapshots);
    let inside = mounted.path(".kvfs/501/dir/point");
    let mount = |command: &mut Command| assert!(start(command).wait().unwrap().success());
    mount(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&inside));
    fs::write(inside.join("file"), "there").unwrap();
    for id in 502..=512 {
        assert!(mounted.path(&format!(".kvfs/{id}/dir/point")).is_dir());
    }
    // One that is opened once more was forgotten.
    let mut looks = 0;
    while content.opened.load(Ordering::Relaxed) <= 12 {
        looks += 1;
        assert!(looks < 10_000, "none is forgotten");
        std::thread::park_timeout(Duration::from_millis(2));
        assert!(mounted.path(&format!(".kvfs/{}/dir", 502 + looks % 11)).is_dir());
    }
    assert_eq!(fs::read_to_string(inside.join("file")).unwrap(), "there");
    mount(Command::new("umount").arg(&inside));
    mounted.unmount();
}

#[test]
fn snapshots_on_a_real_mount_are_read_like_any_directory() {
    let test = "snapshots_on_a_real_mount_are_read_like_any_directory";
    let (bridge, content, store) = bridge(Duration::from_millis(10));
    let config = SessionConfig { init: init_config(), workers: 1, ..SessionConfig::default() };
    let Some(mounted) = mount_or_skip(test, bridge.clone(), &config) else { return };
    bridge.attach(mounted.session().notifier());
    let large: Vec<u8> = (0..300_000_u32).map(|index| (index / 11) as u8).collect();
    fs::create_dir_all(mounted.path("dir/deep")).unwrap();
    fs::write(mounted.path("dir/large"), &large).unwrap();
    fs::write(mounted.path("dir/deep/small"), "then").unwrap();
    fs::hard_link(mounted.path("dir/large"), mounted.path("dir/twin")).unwrap();
    symlink("deep/small", mounted.path("dir/link")).unwrap();
    content.snapshots.lock().push((5, store.snapshot().unwrap()));
    fs::write(mounted.path("dir/large"), "now").unwrap();
    fs::rename(mounted.path("dir/deep"), mounted.path("elsewhere")).unwrap();

    let old = |name: &str| mounted.path(&format!(".kvfs/5/{name}"));
    assert_eq!(fs::read(old("dir/large")).unwrap(), large);
    assert_eq!(fs::read_to_string(old("dir/link")).unwrap(), "then");
    assert_eq!(fs::read_to_string(mounted.path("dir/large")).unwrap(), "now");
    let inode = |path: PathBuf| fs::metadata(path).unwrap().ino();
    assert_eq!(inode(old("dir/large")), inode(old("dir/twin")));
    assert_ne!(inode(old("dir/large")), inode(mounted.path("dir/large")));
    let mut names: Vec<_> = fs::read_dir(old("dir"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["deep", "large", "link", "twin"]);
    assert_eq!(fs::copy(old("dir/large"), mounted.path("copy")).unwrap(), large.len() as u64);
    assert_eq!(fs::read(mounted.path("copy")).unwrap(), large);
    let errno = |done: std::io::Result<()>| done.unwrap_err().raw_os_error();
    assert_eq!(errno(fs::write(old("dir/large"), "x")), Some(Errno::ROFS.raw_os_error()));
    assert_eq!(errno(fs::create_dir(old("new"))), Some(Errno::ROFS.raw_os_error()));
    assert_eq!(errno(fs::remove_file(old("dir/link"))), Some(Errno::ROFS.raw_os_error()));
    assert_eq!(
        errno(fs::hard_link(old("dir/large"), mounted.path("hard"))),
        Some(Errno::XDEV.raw_os_error())
    );

    let held = fs::File::open(old("dir")).unwrap();
    content.snapshots.lock().clear();
    // Housekeeping comes by, and the kernel is told. Each look is for a name that the kernel does not know:
    // one that is in use while it is told may stay in its cache.
    let mut looks = 0;
    let look = |name: u64| fs::metadata(format!("/proc/self/fd/{}/never-{name}", held.as_raw_fd())).map(drop);
    while errno(look(looks)) != Some(Errno::STALE.raw_os_error()) {
        looks += 1;
        assert!(looks < 1_000_000, "the view stays open");
    }
    assert_eq!(errno(fs::metadata(old("dir")).map(drop)), Some(Errno::NOENT.raw_os_error()));
    drop(held);
    mounted.unmount();
}

#[test]
fn hidden_files_on_a_real_mount_are_fresh_at_each_open_and_leave_nothing_behind() {
    let test = "hidden_files_on_a_real_mount_are_fresh_at_each_open_and_leave_nothing_behind";
    let (bridge, content, _) = bridge(Duration::from_hours(1));
    let config = SessionConfig { init: init_config(), workers: 1, ..SessionConfig::default() };
    let Some(mounted) = mount_or_skip(test, bridge.clone(), &config) else { return };
    bridge.attach(mounted.session().notifier());
    let path = mounted.path(".kvfs/sub/count");
    let first = fs::File::open(&path).unwrap();
    for _ in 0..100 {
        let before = content.looked_up.load(Ordering::Relaxed);
        let number: u64 = fs::read_to_string(&path).unwrap().trim().parse().unwrap();
        assert!(number >= before);
    }
    assert_eq!(std::io::read_to_string(first).unwrap(), "0\n", "an open file stays as it was");
    // The kernel keeps what it needs no more for a moment at most: each look gives it time.
    let mut looks = 0;
    while bridge.hidden_nodes() > 8 {
        looks += 1;
        assert!(looks < 100_000, "{} nodes", bridge.hidden_nodes());
        assert!(mounted.path(".kvfs").exists());
    }
    mounted.unmount();
}

#[test]
fn a_file_that_had_the_hidden_name_before_is_not_listed() {
    let store: Arc<dyn Store> = Arc::new(ModelStore::new());
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).unwrap();
    let fs = Arc::new(FileSystem::open(store, clock, MountOptions::default()).unwrap());
    let caller = kvfs_fs::Caller::default();
    let old = fs.mkdir(&caller, kvfs_fs::NodeId::ROOT, b".kvfs", 0o755).unwrap();
    fs.forget(old.node, 1);
    let nodes = fs.nodes().stats().nodes;
    let root: Arc<dyn Folder> = Arc::new(Top(Arc::default()));
    let hidden = Some(HiddenDirectory { name: ".kvfs", root, uid: 0, gid: 0 });
    let bridge = Bridge::new(Arc::clone(&fs), BridgeConfig { hidden, ..BridgeConfig::default() }).unwrap();
    let config = SessionConfig { init: init_config(), workers: 1, ..SessionConfig::default() };
    let (kernel, session) = Kernel::start(Arc::new(bridge), &config);
    let head = abi::ReadIn { size: 4096, ..abi::ReadIn::default() };
    kernel.send(Opcode::Readdirplus, 4, ROOT, &[head.as_bytes()]);
    let listing = kernel.answer().body;
    assert!(!listing.windows(5).any(|bytes| bytes == b".kvfs"));
    assert_eq!(fs.nodes().stats().nodes, nodes, "its lookup was given back");
    kernel.unmount();
    session.wait().unwrap();
}

#[test]
fn bytes_of_a_read_end_with_the_content() {
    let rig = rig();
    let node = rig.lookup(rig.hidden(), "count").nodeid;
    let at = |offset, size| abi::ReadIn { offset, size, ..abi::ReadIn::default() };
    for (offset, size, expected) in [(0, 1, &b"0"[..]), (1, 9, b"\n"), (2, 9, b""), (u64::MAX, 9, b"")] {
        let answer = rig.ask(Opcode::Read, node, &[at(offset, size).as_bytes()]);
        assert_eq!((answer.error, Bytes::from(answer.body)), (0, Bytes::copy_from_slice(expected)));
    }
    rig.end();
}
