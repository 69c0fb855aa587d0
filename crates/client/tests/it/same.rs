//! What a server answers is what the file system answers.

use std::fmt::Write;
use std::io::{IoSlice, IoSliceMut};

use bytes::Bytes;
use kvfs_client::{Mapping, Process};
use kvfs_fs::{FallocateMode, RenameMode, SetTime, Timestamp, XattrMode};
use kvfs_kv::KeyChange;
use kvfs_posix::{Access, Fd, Identity, Place, PosixError, RangeLock, Whence};
use kvfs_store::KeyRange;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use crate::world::World;

/// Calls of one run.
const CALLS: usize = 6000;

const PATHS: &[&str] = &[
    "a", "b", "d", "/d", "d/a", "/d/e", "d/e/a", "..", ".", "", "/", "d/", "a/", "link", "/link/a", "a/b",
    "d/../b",
];

const FLAGS: &[OFlags] = &[
    OFlags::RDONLY,
    OFlags::RDWR,
    OFlags::CREATE.union(OFlags::RDWR),
    OFlags::CREATE.union(OFlags::WRONLY).union(OFlags::CLOEXEC),
    OFlags::CREATE.union(OFlags::EXCL).union(OFlags::RDWR),
    OFlags::RDWR.union(OFlags::TRUNC),
    OFlags::CREATE.union(OFlags::RDWR).union(OFlags::APPEND),
    OFlags::DIRECTORY,
    OFlags::PATH,
    OFlags::TMPFILE.union(OFlags::RDWR),
    OFlags::NOFOLLOW,
];

/// The same numbers for each seed (xorshift).
#[derive(Clone)]
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn is_so(&mut self) -> bool {
        self.below(2) == 0
    }

    fn fd(&mut self) -> Fd {
        Fd(self.of(&[0, 0, 1, 1, 2, 3, 4, 5, 9, 77, -1]))
    }

    fn place(&mut self) -> Place<'static> {
        let path = Place::from(self.of(PATHS));
        let path = if self.below(4) == 0 { path.no_follow() } else { path };
        match self.below(6) {
            0 => (self.fd(), path).into(),
            1 => self.fd().into(),
            _ => path,
        }
    }

    fn range(&mut self) -> RangeLock {
        let start = self.below(50) as u64;
        RangeLock { range: start..start + self.below(20) as u64, is_exclusive: self.is_so() }
    }
}

/// A result as it is compared: what came, or errno and message.
fn told<T: std::fmt::Debug>(result: Result<T, PosixError>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("error {} {error}", error.errno().raw_os_error()),
    }
}

/// Without the times of the run.
fn described(process: &Process, place: Place<'_>) -> String {
    told(process.stat(place).map(|attr| kvfs_fs::Attr {
        ctime: Timestamp::default(),
        btime: Timestamp::default(),
        atime: Timestamp::default(),
        mtime: if attr.mtime.seconds < 100 { attr.mtime } else { Timestamp::default() },
        ..attr
    }))
}

fn names(n: &mut Numbers, process: &Process) -> String {
    match n.below(12) {
        0 | 1 => told(process.mkdir(n.place(), n.of(&[0o777, 0o700, 0o1755]))),
        2 => told(process.rmdir(n.place())),
        3 => told(process.unlink(n.place())),
        4 => told(process.remove(n.place())),
        5 => told(process.symlink(n.of(PATHS).as_bytes(), n.place())),
        6 => told(process.link(n.place(), n.place())),
        7 => {
            let mode = n.of(&[
                RenameMode::Replace,
                RenameMode::NoReplace,
                RenameMode::Exchange,
                RenameMode::Whiteout,
            ]);
            told(process.rename(n.place(), n.place(), mode))
        }
        9 => told(process.remove_tree(n.place()).map(|txn| txn.is_some())),
        10 => told(process.clone_tree(n.place(), n.place()).map(|txn| txn.is_some())),
        8 => told(process.mknod(n.place(), n.of(&[0o100_644, 0o010_600, 0o060_600]), 0x801)),
        _ => told(process.readlink(n.place().no_follow())),
    }
}

fn attributes(n: &mut Numbers, process: &Process) -> String {
    let ids = [None, Some(0), Some(1000)];
    let names = [&b"user.a"[..], b"user.b", b"trusted.c", b"nothing"];
    match n.below(12) {
        0 => told(process.chmod(n.place(), n.of(&[0o644, 0o000, 0o777, 0o4755]))),
        1 => told(process.chown(n.place(), n.of(&ids), n.of(&ids))),
        2 => {
            let time = SetTime::At(Timestamp { seconds: 7, nanos: 9 });
            told(process.utimens(n.place(), n.of(&[None, Some(SetTime::Now)]), n.of(&[None, Some(time)])))
        }
        3 => told(process.truncate(n.place(), n.of(&[0, 5, 10_000]))),
        4 => told(
            process.access(n.place(), Access { reads: n.is_so(), writes: n.is_so(), executes: n.is_so() }),
        ),
        5 => told(process.statvfs(n.place()).map(|found| (found.block_bytes, found.name_len_max))),
        6 => {
            let mode = n.of(&[XattrMode::Set, XattrMode::Create, XattrMode::Replace]);
            told(process.setxattr(n.place(), n.of(&names), n.of(&[b"value", b"other"]), mode))
        }
        7 => told(process.getxattr(n.place(), n.of(&names))),
        8 => told(process.listxattr(n.place())),
        9 => told(process.removexattr(n.place(), n.of(&names))),
        _ => described(process, n.place()),
    }
}

fn descriptors(n: &mut Numbers, process: &Process) -> String {
    match n.below(10) {
        0..=3 => told(process.open(n.place(), n.of(FLAGS), 0o666)),
        4 => told(process.close(n.fd())),
        5 => told(process.dup(n.fd(), n.of(&[0, 3, -1]), n.is_so())),
        6 => told(process.dup_to(n.fd(), n.fd(), n.is_so())),
        7 => told(process.flags(n.fd())),
        8 => told(process.set_flags(n.fd(), n.of(&[OFlags::empty(), OFlags::APPEND, OFlags::NOATIME]))),
        _ => {
            let set = n.is_so().then(|| told(process.set_closes_on_exec(n.fd(), n.is_so())));
            format!("{set:?} {}", told(process.closes_on_exec(n.fd())))
        }
    }
}

fn content(n: &mut Numbers, process: &Process) -> String {
    let offset = n.of(&[0, 3, 5000, u64::MAX]);
    let mut room = [[0; 7]; 2];
    let read = match n.below(12) {
        0 => return told(process.write(n.fd(), b"some bytes")),
        1 => return told(process.pwrite(n.fd(), &[7; 5000][..n.of(&[0, 9, 5000])], offset)),
        2 => return told(process.writev(n.fd(), &[IoSlice::new(b"in "), IoSlice::new(b"two")])),
        3 => return told(process.pwritev(n.fd(), &[IoSlice::new(b"in "), IoSlice::new(b"two")], offset)),
        4 => {
            let whence = [Whence::Start, Whence::Current, Whence::End, Whence::Data, Whence::Hole];
            return told(process.lseek(n.fd(), n.of(&[0, 4, -2, 4000]), n.of(&whence)));
        }
        5 => {
            let mode = [FallocateMode::Allocate { keep_size: false }, FallocateMode::PunchHole];
            return told(process.fallocate(n.fd(), n.of(&mode), n.of(&[0, 100]), n.of(&[0, 8192])));
        }
        6 => {
            let at = [None, Some(0), Some(4000)];
            return told(process.copy_file_range(n.fd(), n.of(&at), n.fd(), n.of(&at), n.of(&[5, 6000])));
        }
        7 if n.below(10) == 0 => return told(process.fsync(n.fd())),
        7 | 8 => process.read(n.fd(), &mut room[0]),
        9 => process.pread(n.fd(), &mut room[0], offset),
        way => {
            let [one, two] = &mut room;
            let buffers = &mut [IoSliceMut::new(one), IoSliceMut::new(two)];
            if way == 10 { process.readv(n.fd(), buffers) } else { process.preadv(n.fd(), buffers, offset) }
        }
    };
    format!("{} {room:?}", told(read))
}

fn locks(n: &mut Numbers, process: &Process) -> String {
    match n.below(4) {
        0 => told(process.flock(n.fd(), n.of(&[None, Some(true), Some(false)]), false)),
        1 => told(process.lock_range(n.fd(), &n.range(), n.is_so(), false)),
        2 => told(process.unlock_range(n.fd(), &n.range().range, n.is_so())),
        _ => told(process.find_lock(n.fd(), &n.range(), n.is_so())),
    }
}

fn listing(n: &mut Numbers, process: &Process) -> String {
    let opened = if n.is_so() { process.opendir(n.place()) } else { process.fdopendir(n.fd()) };
    let mut directory = match opened {
        Ok(directory) => directory,
        Err(error) => return told::<()>(Err(error)),
    };
    let mut found = Vec::new();
    while let Some(entry) = directory.read().expect("lists") {
        assert_eq!(directory.tell(), entry.offset);
        found.push(entry);
    }
    if let Some(middle) = found.get(2) {
        directory.seek(middle.offset);
        assert_eq!(directory.read().expect("lists").as_ref(), found.get(3));
        directory.rewind();
        assert_eq!(directory.read().expect("lists").as_ref(), found.first());
    }
    // They are others once a directory was forgotten and found again, and a server knows it for longer.
    for entry in &mut found {
        entry.offset = 0;
    }
    format!("{:?} {found:?}", directory.fd())
}

fn key_walk(n: &mut Numbers, process: &Process, name: &str, range: KeyRange) -> String {
    let mut cursor = match process.keys().cursor(name, range) {
        Ok(cursor) => cursor,
        Err(error) => return told::<()>(Err(error)),
    };
    let mut found = Vec::new();
    for _ in 0..20 {
        if n.below(3) == 0 { cursor.prev(process) } else { cursor.next(process) }.expect("goes");
        found.push(cursor.entry().map(|(key, value)| (key.to_vec(), value.len())));
    }
    format!("{found:?}")
}

fn keys(n: &mut Numbers, process: &Process) -> String {
    let key = |n: &mut Numbers| Bytes::from_static(n.of(&[&b"a"[..], b"b", b"ba", b"c", b"d", b""]));
    let name = n.of(&["one", "two", "", "none"]);
    let range = |n: &mut Numbers| KeyRange { start: key(n), end: n.is_so().then(|| key(n)) };
    match n.below(10) {
        0 => told(process.keys().create_keyspace(n.of(&["one", "two"]), n.of(&[0o600, 0o644, 0o111]))),
        1 if n.below(4) == 0 => told(process.keys().drop_keyspace(name)),
        1 => told(process.keys().list_keyspaces()),
        2 => told(process.keys().delete(name, &key(n))),
        3 => told(process.keys().delete_range(name, range(n))),
        4 | 5 => told(process.keys().get(name, &key(n))),
        6 | 7 => {
            let range = range(n);
            key_walk(n, process, name, range)
        }
        _ => {
            let value = Bytes::from(vec![1; n.of(&[0, 3, 40_000])]);
            let put = KeyChange::Put { key: key(n), value };
            let changes = [put, KeyChange::Delete { key: key(n) }, KeyChange::DeleteRange(range(n))];
            told(process.keys().write(name, changes[..=n.below(3)].to_vec()))
        }
    }
}

/// Numbers inodes by when they were told first: those of new files, too, depend on what was forgotten.
fn with_inodes_counted(told: &str, seen: &mut Vec<String>) -> String {
    let mut parts = told.split("inode: ");
    let mut counted = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (inode, rest) = part.split_at(part.find(|at: char| !at.is_ascii_digit()).unwrap_or(part.len()));
        let number = seen.iter().position(|before| before == inode).unwrap_or_else(|| {
            seen.push(inode.to_owned());
            seen.len() - 1
        });
        write!(counted, "inode: {number}{rest}").expect("is memory");
    }
    counted
}

/// Each call is told as it went.
fn run(world: &World, seed: u64) -> Vec<String> {
    let (mut n, mut seen) = (Numbers(seed), Vec::new());
    let user = Identity { uid: 1000, gid: 1000, groups: vec![7, 8] };
    let mut processes = vec![world.process(&Identity::root()), world.process(&user)];
    (0..CALLS)
        .map(|_| {
            let which = n.below(processes.len());
            let process = &processes[which];
            let told = match n.below(40) {
                0 => format!("{:o}", process.umask(n.of(&[0o022, 0o077, 0]) as u32)),
                1 | 2 => told(process.chdir(n.place())),
                3 | 4 => told(process.getcwd()),
                5 => told(process.exec()),
                6 if processes.len() < 4 => {
                    let child = process.fork().expect("is made");
                    processes.push(child);
                    "a child".to_owned()
                }
                6 | 7 if which > 1 => {
                    processes.remove(which);
                    "an end".to_owned()
                }
                8 | 9 => locks(&mut n, process),
                10..=12 => keys(&mut n, process),
                13 => listing(&mut n, process),
                14..=19 => {
                    let told = names(&mut n, process);
                    // A process whose directory is inside of a removed tree sees how far it is gone.
                    world.take_trees_apart();
                    told
                }
                20..=25 => attributes(&mut n, process),
                26..=31 => descriptors(&mut n, process),
                _ => content(&mut n, process),
            };
            with_inodes_counted(&told, &mut seen)
        })
        .collect()
}

#[test]
fn calls_of_a_server_have_the_results_and_errors_of_embedded_ones() {
    let seed = std::env::var("KVFS_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_251_125);
    let (here, there) = (run(&World::embedded(), seed), run(&World::served(), seed));
    for (at, (here, there)) in here.iter().zip(&there).enumerate() {
        assert_eq!(here, there, "call {at} of seed {seed}");
    }
    let errors = here.iter().filter(|told| told.starts_with("error")).count();
    assert!((CALLS / 10..CALLS * 9 / 10).contains(&errors), "{errors} of {CALLS} failed");
}

#[test]
fn reads_and_writes_longer_than_a_lane_are_whole() {
    let world = World::served();
    let process = world.process(&Identity::root());
    let fd = process.open("/large", OFlags::CREATE | OFlags::RDWR, 0o600).expect("opens");
    let data: Vec<u8> = (0..5 << 19).map(|at: u32| (at / 1000) as u8).collect();
    assert_eq!(process.write(fd, &data).expect("writes"), data.len());
    let mut back = vec![0; data.len() + 10];
    let (one, two) = back.split_at_mut(1_500_000);
    let read = process.preadv(fd, &mut [IoSliceMut::new(one), IoSliceMut::new(two)], 0).expect("reads");
    assert_eq!(read, data.len());
    assert!(back[..read] == data);
    let long = vec![b'a'; 2 << 20];
    assert_eq!(process.mkdir(&long[..], 0o700).expect_err("is too long").errno(), Errno::NAMETOOLONG);
    let set = process.setxattr(fd, b"user.long", &long, XattrMode::Set);
    assert_eq!(set.expect_err("is too long").errno(), Errno::TOOBIG);
    // What was not sent costs no lane, of which a user has fewer.
    for _ in 0..1100 {
        let set = process.setxattr(fd, b"user.long", &long, XattrMode::Set);
        assert_eq!(set.expect_err("is too long").errno(), Errno::TOOBIG);
    }
    process.stat("/large").expect("has a lane");
}

#[test]
fn a_mapping_of_a_file_that_is_open_for_appending_is_not_synced() {
    for world in [World::embedded(), World::served()] {
        let process = world.process(&Identity::root());
        let fd = process.open("/file", OFlags::CREATE | OFlags::RDWR, 0o600).expect("opens");
        process.write(fd, &[1; 10_000]).expect("writes");
        let mut mapping = Mapping::new(&process, fd, 0, 10_000).expect("maps");
        mapping.bytes_mut()[0] = 2;
        process.set_flags(fd, OFlags::APPEND).expect("sets");
        assert_eq!(mapping.sync(&process).expect_err("would append").errno(), Errno::NODEV);
        process.set_flags(fd, OFlags::empty()).expect("sets");
        mapping.sync(&process).expect("writes in place");
        let mut first = [0; 2];
        process.pread(fd, &mut first, 0).expect("reads");
        assert_eq!((first, process.stat(fd).expect("is there").size), ([2, 1], 10_000));
    }
}

#[test]
fn sync_of_a_mapping_writes_the_bytes_that_were_changed_and_no_others() {
    for world in [World::embedded(), World::served()] {
        let process = world.process(&Identity::root());
        let fd = process.open("/file", OFlags::CREATE | OFlags::RDWR, 0o600).expect("opens");
        process.pwrite(fd, &[1; 100], 0).expect("writes");
        let mut mapping = Mapping::new(&process, fd, 0, 10_000).expect("maps");
        // Others write behind the end, and beside what is changed here.
        process.pwrite(fd, &[2; 9000], 100).expect("writes");
        process.pwrite(fd, &[3; 3], 10).expect("writes");
        for at in [0, 11, 13, 99, 5000, 9500] {
            mapping.bytes_mut()[at] = 4;
        }
        mapping.sync(&process).expect("writes");
        let mut expected = [vec![1; 100], vec![2; 9000]].concat();
        expected[10..13].fill(3);
        for at in [0, 11, 13, 99, 5000] {
            expected[at] = 4;
        }
        let mut found = vec![0; 10_000];
        let mut check = |expected: &[u8]| {
            let len = process.pread(fd, &mut found, 0).expect("reads");
            assert!(found[..len] == *expected, "{len} bytes");
        };
        check(&expected);
        // What was synced once, or was behind the end then, is not changed any more.
        expected.resize(10_000, 5);
        expected[..20].fill(5);
        process.pwrite(fd, &expected[9100..], 9100).expect("writes");
        process.pwrite(fd, &[5; 20], 0).expect("writes");
        mapping.sync(&process).expect("has nothing to write");
        check(&expected);
        // A hole stays one where nothing was changed; what was synced may be changed back.
        process.truncate(fd, 0).expect("truncates");
        process.truncate(fd, 10_000).expect("makes a hole");
        mapping.bytes_mut()[9600] = 6;
        mapping.sync(&process).expect("writes");
        expected.fill(0);
        expected[9600] = 6;
        check(&expected);
        assert!(process.lseek(fd, 0, Whence::Data).expect("is data") > 0);
        mapping.bytes_mut()[9600] = 0;
        mapping.sync(&process).expect("writes");
        expected[9600] = 0;
        check(&expected);
    }
}

#[test]
fn calls_fail_with_enotconn_when_the_server_is_gone() {
    let mut world = World::served();
    let process = world.process(&Identity::root());
    process.mkdir("/there", 0o700).expect("is made");
    let store = world.stop();
    assert_eq!(process.stat("/there").expect_err("nothing answers").errno(), Errno::NOTCONN);
    assert_eq!(process.fork().expect_err("nothing answers").errno(), Errno::NOTCONN);
    assert_eq!(store.process().expect_err("nothing answers").errno(), Errno::NOTCONN);
}

#[test]
fn another_user_is_acted_for_by_root_and_the_servers_user_alone() {
    let world = World::served();
    let other = Identity { uid: 1001, gid: 1001, groups: Vec::new() };
    let process = world.process(&other);
    assert_eq!(process.mkdir("/denied", 0o700).expect_err("is root's").errno(), Errno::ACCESS);
    if !rustix::process::geteuid().is_root() {
        return;
    }
    world.let_others_in();
    let connected = std::thread::scope(|scope| {
        let as_user = || {
            let uid = Uid::from_raw(1000);
            // Of this thread alone.
            set_thread_res_uid(uid, uid, uid).expect("root may");
            let own = world.store().process().expect("is granted");
            (own.chdir("/"), world.store().process_as(&other).map(drop))
        };
        scope.spawn(as_user).join().expect("ends")
    });
    assert!(connected.0.is_ok());
    assert_eq!(connected.1.expect_err("is refused").errno(), Errno::PERM);
}
