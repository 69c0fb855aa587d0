//! Descriptors, offsets, reading, writing, locks.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use kvfs_fs::{FallocateMode, FsError};
use kvfs_posix::{
    Bounds, DESCRIPTORS_MAX, Fd, Identity, Process, RangeLock, SharedFile, Whence, close_all, close_hidden,
};
use kvfs_socket::{Exempt, Shares};
use kvfs_store::model::ModelStore;
use kvfs_store::{Batch, Durability, KeyspaceKind, Store};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::world::{errno, over, root, user, volume};

const NEW: OFlags = OFlags::CREATE.union(OFlags::EXCL).union(OFlags::RDWR);

#[test]
fn copies_of_a_descriptor_share_offset_and_flags_and_another_open_does_not() {
    let process = root();
    let first = process.open("/file", NEW, 0o644).expect("is made");
    let copy = process.dup(first, 0, false).expect("is copied");
    let other = process.open("/file", OFlags::RDWR, 0).expect("opens");
    assert_eq!((first, copy, other), (Fd(0), Fd(1), Fd(2)));
    process.write(first, b"0123456789").expect("writes");
    assert_eq!(process.lseek(copy, 0, Whence::Current).expect("tells"), 10);
    assert_eq!(process.lseek(other, 0, Whence::Current).expect("tells"), 0);
    process.set_flags(copy, OFlags::APPEND).expect("sets");
    assert!(process.flags(first).expect("tells").contains(OFlags::APPEND | OFlags::RDWR));
    process.lseek(first, 2, Whence::Start).expect("moves");
    process.write(first, b"ab").expect("writes");
    let child = process.fork().expect("is made");
    let mut buffer = [0; 20];
    assert_eq!(child.read(copy, &mut buffer).expect("reads"), 0, "the offset is behind what was appended");
    assert_eq!(child.read(other, &mut buffer).expect("reads"), 12);
    assert_eq!(&buffer[..12], b"0123456789ab");
    process.close(first).expect("closes");
    assert_eq!(errno(process.close(first)), Some(Errno::BADF));
    assert_eq!(process.pread(copy, &mut buffer[..2], 3).expect("is open"), 2);
    assert_eq!(process.dup(other, 0, false).expect("is copied"), Fd(0), "the lowest is given out");
    assert_eq!(process.dup_to(copy, Fd(40), false).expect("is copied"), Fd(40));
    assert_eq!(process.dup(copy, 40, false).expect("is copied"), Fd(41));
}

/// Has `number` refer to `one` and `other` in turn while `call` is done again and again.
fn while_a_number_changes(process: &Process, (one, other, number): (Fd, Fd, Fd), call: impl Fn() + Send) {
    // Whatever it has referred to before.
    process.dup_to(one, number, false).expect("is copied");
    std::thread::scope(|scope| {
        let calls = scope.spawn(move || (0..20_000).for_each(|_| call()));
        while !calls.is_finished() {
            for file in [one, other] {
                process.dup_to(file, number, false).expect("is copied");
            }
        }
    });
}

#[test]
fn call_on_a_number_that_changes_meanwhile_does_what_one_open_file_allows() {
    let volume = volume();
    let (root, other) = (volume.process(&Identity::root()), user(&volume, 1000, &[]));
    let victim = root.open("/victim", NEW, 0o644).expect("is made");
    root.write(victim, b"content").expect("writes");
    root.mkdir("/closed", 0o711).expect("is made");
    root.mknod("/closed/secret", 0o100_644, 0).expect("is made");
    root.mkdir("/own", 0o777).expect("is made");
    root.chown("/own", Some(1000), None).expect("is given");
    let own = other.open("/own/file", NEW, 0o644).expect("is made");
    let read_only = other.open("/victim", OFlags::RDONLY, 0).expect("all may read");
    let number = Fd(40);
    while_a_number_changes(&other, (own, read_only, number), || {
        let refused = other.truncate(number, 0).err().map(|error| error.errno());
        assert!([None, Some(Errno::INVAL), Some(Errno::BADF)].contains(&refused), "{refused:?}");
    });
    assert_eq!(root.stat(victim).expect("is open").size, 7);
    let listable = other.open("/own", OFlags::RDONLY, 0).expect("opens");
    let place = other.open("/closed", OFlags::PATH, 0).expect("it may be searched");
    while_a_number_changes(&other, (listable, place, number), || {
        let listed = other.list(number, Some(0), &mut |entry| {
            assert_ne!(entry.name, b"secret");
            true
        });
        let refused = listed.err().map(|error| error.errno());
        assert!([None, Some(Errno::BADF)].contains(&refused), "{refused:?}");
    });
}

#[test]
fn hidden_descriptors_are_those_of_no_program() {
    let process = root();
    let file = SharedFile::open(&process, "/file", NEW, 0o644).expect("is made");
    let hidden = file.adopt_hidden(&process).expect("has room");
    assert_eq!(hidden, Fd(DESCRIPTORS_MAX as i32));
    let named = file.adopt(&process, false).expect("has room");
    assert_eq!(named, Fd(0), "of those below it is the lowest");
    assert_eq!(errno(process.dup_to(named, hidden, false)), Some(Errno::BADF));
    assert_eq!(errno(process.dup(named, hidden.0, false)), Some(Errno::INVAL));
    assert_eq!(errno(process.fork().expect("is made").stat(hidden)), Some(Errno::BADF));
    process.set_closes_on_exec(hidden, true).expect("is open");
    process.exec();
    close_all(&process);
    assert_eq!(errno(process.stat(named)), Some(Errno::BADF));
    assert_eq!(process.stat(hidden).expect("is open").size, 0);
    // A call that has looked its number up may be under way.
    close_hidden(&process, hidden).expect("is open");
    assert_ne!(file.adopt_hidden(&process).expect("has room"), hidden);
}

#[test]
fn negative_numbers_are_no_range_of_fallocate() {
    let process = root();
    let fd = process.open("/file", NEW, 0o644).expect("is made");
    let allocate = |offset: i64, len: i64| {
        let mode = FallocateMode::Allocate { keep_size: false };
        errno(process.fallocate(fd, mode, offset as u64, len as u64))
    };
    assert_eq!([allocate(-1, 1), allocate(0, -1), allocate(0, 0)], [Some(Errno::INVAL); 3]);
    assert_eq!(allocate(i64::MAX, 1), Some(Errno::FBIG));
}

#[test]
fn a_file_lives_without_a_name_as_long_as_it_is_open() {
    let volume = volume();
    let process = volume.process(&Identity::root());
    let fd = process.open("/file", NEW, 0o644).expect("is made");
    process.write(fd, b"content").expect("writes");
    process.unlink("/file").expect("is removed");
    assert_eq!(errno(process.stat("/file")), Some(Errno::NOENT));
    let mut buffer = [0; 7];
    assert_eq!(process.pread(fd, &mut buffer, 0).expect("reads"), 7);
    assert_eq!((process.stat(fd).expect("is there").nlink, &buffer), (0, b"content"));
    let unnamed = process.open("/", OFlags::TMPFILE | OFlags::RDWR, 0o600).expect("is made");
    process.write(unnamed, b"x").expect("writes");
    process.link(unnamed, "/named").expect("gets a name");
    assert_eq!(process.stat("/named").expect("is there").size, 1);
    assert_eq!(errno(volume.unmount()), Some(Errno::BUSY));
    drop(process);
    volume.unmount().expect("no process uses it");
}

#[test]
fn vectors_appends_and_ends_of_files() {
    let process = root();
    let fd = process.open("/file", NEW | OFlags::APPEND, 0o644).expect("is made");
    let parts = [IoSlice::new(b"one "), IoSlice::new(b""), IoSlice::new(b"two ")];
    assert_eq!(process.writev(fd, &parts).expect("writes"), 8);
    assert_eq!(process.pwrite(fd, b"end", 0).expect("writes"), 3, "at the end, since it is open so");
    let (mut head, mut tail) = ([0; 4], [0; 100]);
    let mut into = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut tail)];
    assert_eq!(process.preadv(fd, &mut into, 0).expect("reads"), 11);
    assert_eq!((&head, &tail[..7]), (b"one ", &b"two end"[..]));
    assert_eq!(process.pread(fd, &mut tail, 11).expect("is the end"), 0);
    assert_eq!(errno(process.pread(fd, &mut tail, 1 << 63)), Some(Errno::INVAL));
    assert_eq!(process.lseek(fd, -4, Whence::End).expect("moves"), 7);
    assert_eq!(errno(process.lseek(fd, -8, Whence::Current)), Some(Errno::INVAL));
    assert_eq!(errno(process.lseek(fd, i64::MAX, Whence::Current)), Some(Errno::OVERFLOW));
    let reading = process.open("/file", OFlags::RDONLY, 0).expect("opens");
    assert_eq!(errno(process.write(reading, b"x")), Some(Errno::BADF));
    let place = process.open("/file", OFlags::PATH, 0).expect("opens");
    assert_eq!(errno(process.read(place, &mut tail)), Some(Errno::BADF));
    assert_eq!(process.stat(place).expect("is there").size, 11);
    let directory = process.open("/", OFlags::RDONLY, 0).expect("opens");
    assert_eq!(errno(process.read(directory, &mut tail)), Some(Errno::ISDIR));
}

#[test]
fn writes_longer_than_a_batch_arrive_whole() {
    let process = root();
    let fd = process.open("/file", NEW, 0o644).expect("is made");
    let data: Vec<u8> = (0..(33_u32 << 20) + 5).map(|at| (at / 977) as u8).collect();
    assert_eq!(process.write(fd, &data).expect("writes"), data.len());
    assert_eq!(process.lseek(fd, 0, Whence::Current).expect("tells"), data.len() as u64);
    let mut found = vec![0; data.len() + 1];
    assert_eq!(process.pread(fd, &mut found, 0).expect("reads"), data.len());
    assert!(found[..data.len()] == data[..]);
}

#[test]
fn holes_copies_and_allocations() {
    let process = root();
    let fd = process.open("/sparse", NEW, 0o644).expect("is made");
    process.pwrite(fd, &[7; 4096], 1 << 20).expect("writes");
    assert_eq!(process.lseek(fd, 0, Whence::Data).expect("finds"), 1 << 20);
    assert_eq!(process.lseek(fd, 1 << 20, Whence::Hole).expect("finds"), (1 << 20) + 4096);
    assert_eq!(errno(process.lseek(fd, 2 << 20, Whence::Data)), Some(Errno::NXIO));
    let copy = process.open("/copy", NEW, 0o644).expect("is made");
    process.lseek(fd, 1 << 20, Whence::Start).expect("moves");
    assert_eq!(process.copy_file_range(fd, None, copy, None, 1 << 30).expect("copies"), 4096);
    assert_eq!(process.copy_file_range(fd, None, copy, None, 1 << 30).expect("is at the end"), 0);
    let end = (1 << 20) + 4096;
    let copied = process.copy_file_range(fd, Some(1 << 20), fd, Some(end), u64::MAX);
    assert_eq!(copied.expect("what the source has does not overlap"), 4096);
    assert_eq!(
        process.copy_file_range(fd, Some(end + 4096), fd, Some(end), 8 << 20).expect("is at the end"),
        0
    );
    let overlapping = process.copy_file_range(fd, Some(1 << 20), fd, Some(end), 8 << 20);
    assert_eq!(errno(overlapping), Some(Errno::INVAL));
    let mut buffer = [0; 4096];
    assert_eq!(process.pread(copy, &mut buffer, 0).expect("reads"), 4096);
    assert!(buffer.iter().all(|byte| *byte == 7));
    process.fallocate(copy, FallocateMode::PunchHole, 0, 2048).expect("takes away");
    process.fallocate(copy, FallocateMode::Allocate { keep_size: false }, 0, 10_000).expect("has space");
    assert_eq!(process.stat(copy).expect("is there").size, 10_000);
    process.pread(copy, &mut buffer, 0).expect("reads");
    assert!(buffer[..2048].iter().all(|byte| *byte == 0) && buffer[2048..].iter().all(|byte| *byte == 7));
    assert_eq!(errno(process.fallocate(copy, FallocateMode::PunchHole, 0, 0)), Some(Errno::INVAL));
}

#[test]
fn flags_of_open_do_what_linux_does() {
    let process = root();
    process.mkdir("/dir", 0o755).expect("is made");
    process.symlink(b"nowhere", "/dangling").expect("is made");
    process.symlink(b"dir", "/link").expect("is made");
    let open = |path: &str, flags| process.open(path, flags, 0o640);
    assert_eq!(errno(open("/dangling", OFlags::RDONLY)), Some(Errno::NOENT));
    assert_eq!(errno(open("/dangling", NEW)), Some(Errno::EXIST));
    open("/dangling", OFlags::CREATE | OFlags::RDWR).expect("is made where it points to");
    assert_eq!(process.stat("/nowhere").expect("is there").mode, 0o640);
    for (path, flags, expected) in [
        ("/dir", OFlags::RDWR, Errno::ISDIR),
        ("/dir", OFlags::CREATE | OFlags::RDONLY, Errno::ISDIR),
        ("/dir", OFlags::TRUNC, Errno::ISDIR),
        ("/nowhere", OFlags::DIRECTORY, Errno::NOTDIR),
        ("/nowhere/", OFlags::RDONLY, Errno::NOTDIR),
        ("/new/", OFlags::CREATE | OFlags::RDWR, Errno::ISDIR),
        ("/link", OFlags::NOFOLLOW, Errno::LOOP),
        ("/link", OFlags::NOFOLLOW | OFlags::DIRECTORY, Errno::NOTDIR),
        ("", OFlags::RDONLY, Errno::NOENT),
        ("/a/b", OFlags::CREATE | OFlags::RDWR, Errno::NOENT),
        ("/nowhere", NEW, Errno::EXIST),
        ("/", NEW, Errno::EXIST),
        ("/", OFlags::TMPFILE, Errno::INVAL),
    ] {
        assert_eq!(errno(open(path, flags)), Some(expected), "{path} {flags:?}");
    }
    assert_eq!(errno(process.mknod("/fifo", 0o010_644, 0)), None);
    assert_eq!(errno(open("/fifo", OFlags::RDWR)), Some(Errno::NXIO));
    let fd = open("/nowhere", OFlags::RDWR).expect("opens");
    process.write(fd, b"1234").expect("writes");
    open("/nowhere", OFlags::WRONLY | OFlags::TRUNC).expect("opens");
    assert_eq!(process.stat(fd).expect("is there").size, 0);
    let closing = open("/nowhere", OFlags::CLOEXEC).expect("opens");
    process.exec();
    assert!(process.flags(fd).is_ok() && process.flags(closing).is_err());
}

#[test]
fn locks_end_with_the_descriptors_that_they_belong_to() {
    let volume = volume();
    let [one, two] = [(); 2].map(|()| volume.process(&Identity::root()));
    let fd = one.open("/file", NEW, 0o644).expect("is made");
    let other = two.open("/file", OFlags::RDWR, 0).expect("opens");
    let whole = |is_exclusive| RangeLock { range: 0..u64::MAX, is_exclusive };
    one.lock_range(fd, &whole(true), false, false).expect("is free");
    assert_eq!(errno(two.lock_range(other, &whole(false), false, false)), Some(Errno::AGAIN));
    assert_eq!(two.find_lock(other, &whole(false), false).expect("tells"), Some(whole(true)));
    // Any close of the file by the process ends them, as POSIX says.
    let copy = one.dup(fd, 0, false).expect("is copied");
    one.close(copy).expect("closes");
    two.lock_range(other, &whole(true), false, false).expect("is free");
    drop(two);
    one.flock(fd, Some(true), false).expect("is free");
    let child = one.fork().expect("is made");
    let third = volume.process(&Identity::root());
    let at = third.open("/file", OFlags::RDONLY, 0).expect("opens");
    one.close(fd).expect("closes");
    assert_eq!(errno(third.flock(at, Some(false), false)), Some(Errno::AGAIN), "the child has it open");
    drop(child);
    third.flock(at, Some(false), false).expect("is free");
    third.flock(at, None, false).expect("gives up");
    assert_eq!(errno(third.lock_range(at, &whole(true), true, false)), Some(Errno::BADF), "only to be read");
}

#[test]
fn a_user_with_its_share_of_descriptors_is_refused_and_so_are_its_children() {
    let volume = volume();
    let (descriptors, locks) = (Shares::new(20, 6, Exempt::None), Shares::new(0, 0, Exempt::None));
    let of = |uid| {
        let bounds = Bounds { uid, descriptors: descriptors.clone(), locks: locks.clone() };
        volume.process(&Identity::root()).bounded(bounds)
    };
    let one = of(1);
    let fd = one.open("/file", NEW, 0o644).expect("is made");
    one.write(fd, b"content").expect("writes");
    one.dup(fd, 0, false).expect("is the second");
    let child = one.fork().expect("takes two more");
    child.dup_to(fd, Fd(90), false).expect("is the fifth");
    assert_eq!(errno(one.fork().map(drop)), Some(Errno::MFILE));
    let again = of(1);
    again.open("/file", OFlags::RDONLY, 0).expect("is the sixth");
    assert_eq!(errno(again.open("/file", OFlags::RDWR | OFlags::TRUNC, 0)), Some(Errno::MFILE));
    assert_eq!(errno(again.open("/other", NEW, 0o644)), Some(Errno::MFILE));
    assert_eq!(one.stat("/file").expect("is there").size, 7, "what was refused has changed nothing");
    assert_eq!(errno(one.stat("/other")), Some(Errno::NOENT));
    assert_eq!(errno(one.dup_to(fd, Fd(50), false)), Some(Errno::MFILE));
    one.dup_to(fd, Fd(1), false).expect("takes another's place");
    of(2).open("/file", OFlags::RDONLY, 0).expect("is another user's");
    one.close(fd).expect("closes");
    again.dup(Fd(0), 0, false).expect("is the sixth");
    drop((one, child, again));
    assert!(descriptors.is_whole());
}

#[test]
fn unmount_of_a_full_store_is_no_failure_for_access_times_that_wait() {
    let store: Arc<dyn Store> = Arc::new(ModelStore::with_capacity_bytes(1 << 20));
    let volume = over(Arc::clone(&store));
    let root = volume.process(&Identity::root());
    let file = root.open("/file", NEW, 0o644).expect("is made");
    root.write(file, b"content").expect("writes");
    let filler = store.open_keyspace("filler", KeyspaceKind::Tuple, None).expect("is made");
    let mut batch = Batch::new();
    batch.put(filler, "k", vec![1; store.space().available_bytes as usize - 1]);
    store.apply(batch, Durability::Buffered).expect("fits");
    assert_eq!(root.pread(file, &mut [0; 7], 0).expect("reads"), 7);
    let refused = volume.file_system().housekeep();
    assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
    drop(root);
    volume.unmount().expect("everything is durable");
}
