//! Paths, and names that are made, removed and changed.

use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::{BeginOptions, MountOptions, RenameMode};
use kvfs_posix::{Identity, LINKS_MAX, PATH_LEN_MAX, Place, Process};
use kvfs_store::clock::ManualClock;
use kvfs_store::model::ModelStore;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::world::{at, errno, root, user, volume};

#[test]
fn paths_are_walked_as_posix_says() {
    let process = root();
    process.mkdir("/a", 0o755).expect("is made");
    process.mkdir("/a/b/", 0o755).expect("a slash in the end is one");
    process.symlink(b"../a/b", "/a/up").expect("is made");
    process.symlink(b"/a/up", "/absolute").expect("is made");
    let inode = process.stat("/a/b").expect("is there").inode;
    for path in ["//a///b", "/a/./b/.", "/a/b/../b", "/a/up", "/absolute", "/absolute/", "/../a/b", "a/b"] {
        assert_eq!(process.stat(path).expect(path).inode, inode, "{path}");
    }
    assert_ne!(process.stat(Place::from("/absolute").no_follow()).expect("is there").inode, inode);
    assert_eq!(process.stat(Place::from("/absolute/").no_follow()).expect("is there").inode, inode);
    process.chdir("/absolute").expect("is a directory");
    assert_eq!(process.getcwd().expect("is there"), b"/a/b");
    process.rename("/a", "/c", RenameMode::Replace).expect("is renamed");
    assert_eq!(process.getcwd().expect("is there"), b"/c/b");
    assert_eq!(process.stat("..").expect("is there").inode, process.stat("/c").expect("is there").inode);
    let fd = process.open("/c", OFlags::DIRECTORY, 0).expect("opens");
    assert_eq!(process.stat((fd, "b")).expect("is there").inode, inode);
    process.mkdir((fd, "d"), 0o755).expect("is made");
    assert!(process.stat("/c/d").is_ok());
    let file = process.open((fd, "file"), OFlags::CREATE | OFlags::RDWR, 0o644).expect("is made");
    assert_eq!(errno(process.stat((file, "x"))), Some(Errno::NOTDIR));
    assert_eq!(errno(process.chdir("/c/file")), Some(Errno::NOTDIR));
    process.rmdir("/c/b").expect("is empty");
    assert_eq!(errno(process.getcwd()), Some(Errno::NOENT));
    assert_eq!(errno(process.mkdir("x", 0o755)), Some(Errno::NOENT), "the working directory was removed");
}

#[test]
fn path_of_a_directory_deeper_than_paths_are_long_is_refused_where_it_becomes_too_long() {
    let process = root();
    for _ in 0..3000 {
        process.mkdir("d", 0o755).expect("is made");
        process.chdir("d").expect("is there");
    }
    assert_eq!(errno(process.getcwd()), Some(Errno::NAMETOOLONG));
    let here = process.open(".", OFlags::DIRECTORY, 0).expect("opens");
    assert_eq!(errno(process.path_of(here)), Some(Errno::NAMETOOLONG));
    for _ in 0..1000 {
        process.chdir("..").expect("is above");
    }
    assert_eq!(process.getcwd().expect("is short enough").len(), 4000);
}

/// Begins `call` of a user in a sticky directory, where `/tmp/own` is that user's and `/tmp/name` as well, if
/// it is there; while it waits for a transaction, `/tmp/name` becomes another user's. Returns its errno.
fn errno_of_call_on_what_becomes_anothers(
    make: fn(&Process),
    call: &(dyn Fn(&Process) -> kvfs_posix::Result<()> + Sync),
) -> Option<Errno> {
    // Its time stands still: no transaction keeps others waiting too long.
    let volume = at(
        Arc::new(ModelStore::new()),
        MountOptions::default(),
        Arc::new(ManualClock::at(Duration::from_secs(1_000))),
    );
    let root = volume.process(&Identity::root());
    root.umask(0);
    root.mkdir("/tmp", 0o1777).expect("is made");
    let caller = user(&volume, 1000, &[]);
    caller.mknod("/tmp/own", 0o100_644, 0).expect("is made");
    make(&caller);
    let transaction = volume.begin(&BeginOptions::default()).expect("begins");
    if root.stat("/tmp/name").is_ok() {
        transaction.process(&Identity::root()).remove("/tmp/name").expect("is there");
    }
    let other = transaction.process(&Identity { uid: 1001, gid: 1001, groups: Vec::new() });
    other.mknod("/tmp/name", 0o100_644, 0).expect("is made");
    let refused = std::thread::scope(|scope| {
        let called = scope.spawn(|| errno(call(&caller)));
        let waits = || {
            volume.file_system().admission().page(None, 100).locks.iter().any(|lock| lock.waiters_count > 0)
        };
        while !waits() {
            assert!(!called.is_finished(), "it waits");
            std::thread::yield_now();
        }
        transaction.commit().expect("is in no one's way");
        called.join().expect("does not panic")
    });
    assert_eq!(root.stat("/tmp/name").expect("is there").uid, 1001);
    assert_eq!(root.stat("/tmp/own").expect("is there").uid, 1000);
    refused
}

#[test]
fn name_that_becomes_another_users_in_a_sticky_directory_is_neither_removed_nor_replaced() {
    let call = errno_of_call_on_what_becomes_anothers;
    let file: fn(&Process) = |user| user.mknod("/tmp/name", 0o100_644, 0).expect("is made");
    let directory: fn(&Process) = |user| user.mkdir("/tmp/name", 0o755).expect("is made");
    assert_eq!(call(file, &|user| user.unlink("/tmp/name")), Some(Errno::PERM));
    assert_eq!(call(directory, &|user| user.rmdir("/tmp/name")), Some(Errno::PERM));
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        assert_eq!(call(file, &|user| user.rename("/tmp/own", "/tmp/name", mode)), Some(Errno::PERM));
        assert_eq!(call(file, &|user| user.rename("/tmp/name", "/tmp/own", mode)), Some(Errno::PERM));
    }
    let nothing: fn(&Process) = |_| ();
    let replace = RenameMode::Replace;
    assert_eq!(call(nothing, &|user| user.rename("/tmp/own", "/tmp/name", replace)), Some(Errno::PERM));
}

#[test]
fn circles_and_long_paths_are_refused() {
    let process = root();
    process.symlink(b"two", "/one").expect("is made");
    process.symlink(b"one", "/two").expect("is made");
    assert_eq!(errno(process.stat("/one")), Some(Errno::LOOP));
    process.mkdir("/end", 0o755).expect("is made");
    process.symlink(b"end", "/link0").expect("is made");
    for number in 1..=LINKS_MAX {
        let target = format!("link{}", number - 1);
        process.symlink(target.as_bytes(), format!("/link{number}").as_str()).expect("is made");
    }
    assert!(process.stat(format!("/link{}", LINKS_MAX - 1).as_str()).is_ok());
    assert_eq!(errno(process.stat(format!("/link{LINKS_MAX}").as_str())), Some(Errno::LOOP));
    let path = "/".repeat(PATH_LEN_MAX - 4);
    assert!(process.stat(format!("{path}end").as_str()).is_ok());
    assert_eq!(errno(process.stat(format!("{path}/end").as_str())), Some(Errno::NAMETOOLONG));
    assert_eq!(errno(process.mkdir("n".repeat(256).as_str(), 0o755)), Some(Errno::NAMETOOLONG));
    assert_eq!(errno(process.stat("/nul\0byte")), Some(Errno::INVAL));
}

#[test]
fn removals_and_renames_are_refused_as_on_linux() {
    let process = root();
    for directory in ["/a", "/a/b", "/empty", "/full", "/full/x"] {
        process.mkdir(directory, 0o755).expect("is made");
    }
    process.mknod("/file", 0o100_644, 0).expect("is made");
    process.link("/file", "/other").expect("gets a name");
    let rename = |old: &str, new: &str| errno(process.rename(old, new, RenameMode::Replace));
    assert_eq!(rename("/a", "/a/b/c"), Some(Errno::INVAL));
    assert_eq!(rename("/a", "/full"), Some(Errno::NOTEMPTY));
    assert_eq!(rename("/a", "/file"), Some(Errno::NOTDIR));
    assert_eq!(rename("/file", "/a"), Some(Errno::ISDIR));
    assert_eq!(rename("/file", "/new/"), Some(Errno::NOTDIR));
    assert_eq!(rename("/file", "/other"), None, "two names of one file stay");
    assert_eq!(process.stat("/file").expect("is there").nlink, 2);
    assert_eq!(rename("/.", "/b"), Some(Errno::BUSY));
    assert_eq!(rename("/none", "/b"), Some(Errno::NOENT));
    assert_eq!(errno(process.rename("/file", "/other", RenameMode::NoReplace)), Some(Errno::EXIST));
    process.rename("/a", "/empty", RenameMode::Replace).expect("replaces what is empty");
    process.rename("/empty", "/file", RenameMode::Exchange).expect("swaps");
    assert!(process.stat("/file/b").is_ok());
    assert_eq!(errno(process.unlink("/file")), Some(Errno::ISDIR));
    assert_eq!(errno(process.unlink("/other/")), Some(Errno::NOTDIR));
    assert_eq!(errno(process.rmdir("/other")), Some(Errno::NOTDIR));
    assert_eq!(errno(process.rmdir("/full")), Some(Errno::NOTEMPTY));
    assert_eq!(errno(process.rmdir("/full/x/.")), Some(Errno::INVAL));
    assert_eq!(errno(process.rmdir("/full/x/..")), Some(Errno::NOTEMPTY));
    assert_eq!(errno(process.rmdir("/")), Some(Errno::BUSY));
    process.remove("/full/x").expect("is empty");
    process.remove("/other").expect("is a name");
    assert_eq!(errno(process.link("/full", "/twice")), Some(Errno::PERM));
    assert_eq!(errno(process.readlink("/full")), Some(Errno::INVAL));
    process.symlink(b"full", "/link").expect("is made");
    assert_eq!(process.readlink("/link").expect("is one"), b"full");
    process.link(Place::from("/link").no_follow(), "/twin").expect("the link itself");
    assert_eq!(process.readlink("/twin").expect("is one"), b"full");
}

#[test]
fn users_may_do_in_directories_what_their_bits_say() {
    let volume = volume();
    let root = volume.process(&Identity::root());
    let (anna, bert) = (user(&volume, 1000, &[50]), user(&volume, 1001, &[50]));
    root.mkdir("/home", 0o755).expect("is made");
    root.umask(0);
    root.mkdir("/tmp", 0o1777).expect("is made");
    root.mkdir("/team", 0o770).expect("is made");
    root.chown("/team", None, Some(50)).expect("is given");
    root.mkdir("/closed", 0o700).expect("is made");
    assert_eq!(errno(anna.mkdir("/home/x", 0o755)), Some(Errno::ACCESS));
    assert_eq!(errno(anna.stat("/closed/x")), Some(Errno::ACCESS));
    assert_eq!(errno(user(&volume, 1002, &[]).stat("/team/x")), Some(Errno::ACCESS));
    anna.mkdir("/team/dir", 0o777).expect("her group may");
    assert_eq!(root.stat("/team/dir").expect("is there").mode, 0o755, "the umask counts");
    assert_eq!(root.stat("/team/dir").expect("is there").uid, 1000);
    assert_eq!(errno(bert.rename("/team/dir", "/team/moved", RenameMode::Replace)), None);
    assert_eq!(errno(bert.mkdir("/team/moved/x", 0o755)), Some(Errno::ACCESS));
    assert_eq!(
        errno(bert.rename("/team/moved", "/tmp/moved", RenameMode::Replace)),
        Some(Errno::ACCESS),
        "its `..` would change"
    );
    anna.mkdir("/tmp/hers", 0o777).expect("all may");
    assert_eq!(errno(bert.rmdir("/tmp/hers")), Some(Errno::PERM), "the directory is sticky");
    bert.mkdir("/tmp/his", 0o777).expect("all may");
    assert_eq!(errno(bert.rename("/tmp/his", "/tmp/hers", RenameMode::Replace)), Some(Errno::PERM));
    anna.rmdir("/tmp/hers").expect("is hers");
    assert_eq!(errno(anna.mknod("/tmp/device", 0o020_666, 0x103)), Some(Errno::PERM));
}

#[test]
fn files_of_others_get_names_from_those_alone_who_may_read_and_write_them() {
    let volume = volume();
    let root = volume.process(&Identity::root());
    let anna = user(&volume, 1000, &[]);
    root.mkdir("/hers", 0o755).expect("is made");
    root.chown("/hers", Some(1000), Some(1000)).expect("is given");
    root.mknod("/file", 0o100_600, 0).expect("is made");
    root.mknod("/fifo", 0o010_600, 0).expect("is made");
    root.chmod("/fifo", 0o666).expect("is set");
    root.symlink(b"file", "/link").expect("is made");
    let named = |path: &str| errno(anna.link(Place::from(path).no_follow(), "/hers/name"));
    for mode in [0o600, 0o644, 0o622, 0o4666, 0o2676] {
        root.chmod("/file", mode).expect("is set");
        assert_eq!(named("/file"), Some(Errno::PERM), "{mode:o}");
    }
    assert_eq!(named("/fifo"), Some(Errno::PERM));
    assert_eq!(named("/link"), Some(Errno::PERM));
    // Without the right to execute it lends nothing.
    root.chmod("/file", 0o2666).expect("is set");
    assert_eq!(named("/file"), None);
    anna.unlink("/hers/name").expect("is hers");
    root.chmod("/file", 0o4600).expect("is set");
    root.chown("/file", Some(1000), None).expect("is given");
    root.chmod("/file", 0o4600).expect("is set");
    assert_eq!(named("/file"), None, "its owner may");
    root.link("/file", "/hers/another").expect("root may");
}

/// Owners: 0 of the directory, 1000 of what lies there, 1001 of none of it.
#[test]
fn what_others_leave_in_a_sticky_directory_is_neither_followed_nor_opened_as_new() {
    let volume = volume();
    let root = volume.process(&Identity::root());
    let (anna, bert) = (user(&volume, 1000, &[]), user(&volume, 1001, &[1000]));
    for process in [&root, &anna] {
        process.umask(0);
    }
    root.mkdir("/target", 0o777).expect("is made");
    root.mknod("/target/file", 0o100_666, 0).expect("is made");
    root.mkdir("/tmp", 0o777).expect("is made");
    root.symlink(b"/target", "/tmp/roots").expect("is made");
    anna.symlink(b"/target", "/tmp/link").expect("all may");
    anna.symlink(b"/target/file", "/tmp/to-file").expect("all may");
    anna.symlink(b"/target/new", "/tmp/to-new").expect("all may");
    anna.mknod("/tmp/file", 0o100_666, 0).expect("all may");
    anna.mknod("/tmp/fifo", 0o010_666, 0).expect("all may");
    let made = OFlags::CREATE | OFlags::WRONLY;
    let open =
        |who: &Process, path: &str, flags| errno(who.open(path, flags, 0o666).and_then(|fd| who.close(fd)));
    // What the bits of the directory protect: links; files and fifos.
    let cases = [(0o777, [false; 2]), (0o755, [false; 2]), (0o1775, [false, true]), (0o1777, [true; 2])];
    for (mode, [links, files]) in cases {
        root.chmod("/tmp", mode).expect("is set");
        root.chown("/tmp", None, Some(1000)).expect("is given");
        let refused = |is_refused: bool| is_refused.then_some(Errno::ACCESS);
        for who in [&root, &bert] {
            for path in ["/tmp/link", "/tmp/link/"] {
                assert_eq!(errno(who.stat(path)), refused(links), "{mode:o} {path}");
            }
            assert_eq!(open(who, "/tmp/to-file", OFlags::RDONLY), refused(links), "{mode:o}");
            assert_eq!(open(who, "/tmp/to-new", made), refused(links), "{mode:o}");
            assert_eq!(open(who, "/tmp/file", made), refused(files), "{mode:o}");
            let fifo = open(who, "/tmp/fifo", made);
            assert_eq!(fifo, Some(if files { Errno::ACCESS } else { Errno::NXIO }), "{mode:o}");
            // Neither of these is what the kernel guards against.
            assert_eq!(errno(who.stat("/tmp/link/file")), None, "{mode:o}");
            assert_eq!(errno(who.readlink("/tmp/link")), None, "{mode:o}");
            assert_eq!(open(who, "/tmp/file", OFlags::WRONLY), None, "{mode:o}");
            assert_eq!(errno(who.stat("/tmp/roots")), None, "{mode:o}");
        }
        assert_eq!(errno(anna.stat("/tmp/link")), None, "{mode:o}");
        assert_eq!(open(&anna, "/tmp/file", made), None, "{mode:o}");
    }
}
