//! What calls of clients do.

use kvfs_lane::{Attributes, Bytes, Call, LANE_DATA_BYTES, LockRange, Reply, Time};
use kvfs_posix::Identity;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::world::{Client, Outcome, World, at, of, written};

fn stat(client: &Client, path: &str, follows: bool) -> Outcome<Attributes> {
    let at = kvfs_lane::At { follows, ..at(path) };
    match client.call(&Call::Stat { at }, &[])?.0 {
        Reply::Attributes(attributes) => Ok(attributes),
        other => panic!("{other:?}"),
    }
}

/// Names and types of the records of getdents64.
fn names(mut records: &[u8]) -> Vec<(String, u8)> {
    let mut found = Vec::new();
    while !records.is_empty() {
        let len = usize::from(u16::from_ne_bytes([records[16], records[17]]));
        let name = records[19..len].split(|byte| *byte == 0).next().expect("a name");
        found.push((String::from_utf8(name.to_vec()).expect("text"), records[18]));
        records = &records[len..];
    }
    found
}

#[test]
fn umask_of_a_call_counts_for_no_call_of_another_lane() {
    let world = World::new();
    let client = world.connect();
    let make = |path: &str, umask| {
        let flags = (OFlags::CREATE | OFlags::RDWR).bits();
        client
            .call(&Call::Open { at: at(path), flags, mode: 0o666, umask, handle: None }, &[])
            .expect("opens");
    };
    std::thread::scope(|scope| {
        let makes = scope.spawn(|| {
            for round in 0..2000 {
                let path = format!("/own{round}");
                make(&path, 0o077);
                assert_eq!(stat(&client, &path, true).expect("is there").mode & 0o777, 0o600, "{round}");
            }
        });
        while !makes.is_finished() {
            make("/all", 0);
        }
    });
}

#[test]
fn files_are_made_written_read_and_removed() {
    let world = World::new();
    let client = world.connect();
    client.call(&Call::Mkdir { at: at("/a"), mode: 0o777, umask: 0o022 }, &[]).expect("is made");
    let file = client.open("/a/file", OFlags::CREATE | OFlags::RDWR, None).expect("opens");
    assert_eq!(client.write(file, b"some bytes"), Ok(10));
    assert_eq!(client.number(&Call::Seek { handle: file, offset: 5, whence: 0 }, &[]), Ok(5));
    assert_eq!(client.read(file, 100, None).expect("reads"), b"bytes");
    assert_eq!(client.read(file, 4, Some(0)).expect("reads"), b"some");
    assert_eq!(stat(&client, "/a/file", true).expect("is there").mode, 0o100_644);

    client.call(&Call::Chmod { at: of(file), mode: 0o600 }, &[]).expect("changes");
    let times =
        Call::Utimens { at: at("/a/file"), atime: None, mtime: Some(Time::At { seconds: 7, nanos: 9 }) };
    client.call(&times, &[]).expect("changes");
    client.call(&Call::Truncate { at: of(file), size: 4 }, &[]).expect("changes");
    client.call(&Call::Symlink { at: at("/link") }, b"a/file").expect("is made");
    let (link, target) = (stat(&client, "/link", false), stat(&client, "/link", true));
    assert_eq!((link.expect("is there").size, target.expect("is there").size), (6, 4));
    assert_eq!(client.call(&Call::Readlink { at: at("/link") }, &[]).expect("reads").1, b"a/file");
    let twin = Call::Link { old: at("/a/file"), new: at("/a/twin") };
    client.call(&twin, &[]).expect("is made");
    assert_eq!(client.call(&twin, &[]), Err(Errno::EXIST));
    client.call(&Call::Rename { old: at("/a/twin"), new: at("/moved"), flags: 0 }, &[]).expect("moves");
    assert_eq!(stat(&client, "/moved", true).expect("is there").nlink, 2);

    let root = client.open("/", OFlags::DIRECTORY, None).expect("opens");
    let listed = client.call(&Call::List { handle: root, len: 4096 }, &[]).expect("lists").1;
    let mut listed = names(&listed);
    listed[2..].sort();
    let expected = [(".", 4), ("..", 4), ("a", 4), ("link", 10), ("moved", 8)];
    assert_eq!(listed, expected.map(|(name, kind)| (name.to_owned(), kind)));
    assert_eq!(client.call(&Call::List { handle: root, len: 4096 }, &[]).expect("lists").1, b"");
    assert_eq!(client.call(&Call::List { handle: file, len: 4096 }, &[]), Err(Errno::NOTDIR));

    client.call(&Call::Unlink { at: at("/moved"), is_directory: false }, &[]).expect("goes");
    assert_eq!(client.call(&Call::Unlink { at: at("/a"), is_directory: true }, &[]), Err(Errno::NOTEMPTY));
    assert_eq!(client.call(&Call::Close { handle: file }, &[]).expect("closes").0, Reply::Done);
    assert_eq!(client.read(file, 1, None), Err(Errno::BADF));
}

#[test]
fn a_listing_goes_on_where_it_was_whatever_room_there_is() {
    let world = World::new();
    let client = world.connect();
    let process = world.volume.process(&Identity::root());
    for number in 0..300 {
        process.mkdir(format!("/directory {number}").as_str(), 0o755).expect("is made");
    }
    let root = client.open("/", OFlags::DIRECTORY, None).expect("opens");
    let mut found = Vec::new();
    loop {
        let records = client.call(&Call::List { handle: root, len: 100 }, &[]).expect("lists").1;
        if records.is_empty() {
            break;
        }
        found.extend(names(&records));
    }
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 302);
    client.number(&Call::Seek { handle: root, offset: 0, whence: 0 }, &[]).expect("goes back");
    assert_eq!(client.call(&Call::List { handle: root, len: 10 }, &[]), Err(Errno::INVAL));
}

#[test]
fn attributes_of_users_pass() {
    let world = World::new();
    let client = world.connect();
    client.open("/file", OFlags::CREATE | OFlags::RDWR, None).expect("opens");
    let name = Bytes(b"user.colour");
    client.call(&Call::Setxattr { at: at("/file"), name, flags: 1 }, b"blue").expect("is set");
    assert_eq!(client.call(&Call::Setxattr { at: at("/file"), name, flags: 1 }, b"red"), Err(Errno::EXIST));
    assert_eq!(client.call(&Call::Getxattr { at: at("/file"), name }, &[]).expect("is there").1, b"blue");
    assert_eq!(client.call(&Call::Listxattr { at: at("/file") }, &[]).expect("lists").1, b"user.colour\0");
    client.call(&Call::Removexattr { at: at("/file"), name }, &[]).expect("goes");
    assert_eq!(client.call(&Call::Getxattr { at: at("/file"), name }, &[]), Err(Errno::NODATA));
}

#[test]
fn a_path_that_leads_out_of_the_file_system_says_where() {
    let world = World::new();
    let client = world.connect();
    client.call(&Call::Mkdir { at: at("/a"), mode: 0o777, umask: 0 }, &[]).expect("is made");
    for (target, name) in
        [("/etc", "/out"), ("/kvfs/a", "/in"), ("/kvfsother", "/beside"), ("../x", "/above")]
    {
        client.call(&Call::Symlink { at: at(name) }, target.as_bytes()).expect("is made");
    }
    assert_eq!(stat(&client, "/in", true).expect("is there").mode, 0o040_777);
    for (path, outside) in [
        ("/out/motd", "/etc/motd"),
        ("/beside", "/kvfsother"),
        ("/above/y", "/x/y"),
        ("/a/../..", "/"),
        ("/../kvfs/a", "/kvfs/a"),
    ] {
        let answered = client.call(&Call::Stat { at: at(path) }, &[]).expect("is answered");
        assert_eq!(answered, (Reply::Outside, outside.as_bytes().to_vec()), "{path}");
    }
    let directory = client.open("/a", OFlags::DIRECTORY, None).expect("opens");
    assert_eq!(client.call(&Call::PathOf { handle: directory }, &[]).expect("has one").1, b"/a");
}

#[test]
fn the_longest_messages_pass_and_longer_ones_are_refused() {
    let world = World::new();
    let client = world.connect();
    let file = client.open("/file", OFlags::CREATE | OFlags::RDWR, None).expect("opens");
    let data: Vec<u8> = (0..1_u32 << 20).map(|byte| (byte % 251) as u8).collect();
    assert_eq!(client.write(file, &data), Ok(1 << 20));
    assert_eq!(client.read(file, u32::MAX, Some(0)).expect("reads"), data);
    let longer = vec![0; LANE_DATA_BYTES];
    let call = Call::Write { handle: file, offset: None };
    assert!(client.0.call(&call, &longer, |_, _| ()).is_err());
    assert_eq!(client.read(file, 2, Some(0)).expect("goes on"), data[..2]);
}

#[test]
fn many_threads_call_at_once() {
    let world = World::new();
    let client = world.connect();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let client = &client;
            scope.spawn(move || {
                for number in 0..50 {
                    let path = format!("/{thread} {number}");
                    let file = client
                        .open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR, None)
                        .expect("opens");
                    client.write(file, path.as_bytes()).expect("writes");
                    assert_eq!(client.read(file, 100, Some(0)).expect("reads"), path.as_bytes());
                    client.call(&Call::Close { handle: file }, &[]).expect("closes");
                }
            });
        }
    });
    let root = client.open("/", OFlags::DIRECTORY, None).expect("opens");
    let listed = client.call(&Call::List { handle: root, len: 1 << 20 }, &[]).expect("lists").1;
    assert_eq!(names(&listed).len(), 402);
}

#[test]
fn locks_are_those_of_processes() {
    let world = World::new();
    let (one, other) = (world.connect(), world.connect());
    let opened = [&one, &other]
        .map(|client| client.open("/file", OFlags::CREATE | OFlags::RDWR, None).expect("opens"));
    let lock = LockRange { start: 0, end: 10, is_exclusive: Some(true), of_file: false };
    let take = |handle| Call::Lock { handle, lock, waits: false };
    one.call(&take(opened[0]), &[]).expect("is free");
    assert_eq!(other.call(&take(opened[1]), &[]), Err(Errno::AGAIN));
    let found = other.call(&Call::FindLock { handle: opened[1], lock }, &[]).expect("looks").0;
    assert_eq!(found, Reply::Locked(Some(lock)));
    one.call(&Call::Close { handle: opened[0] }, &[]).expect("closes");
    other.call(&take(opened[1]), &[]).expect("is free");
}

#[test]
fn open_for_a_placeholder_that_is_not_free_makes_and_truncates_nothing() {
    let world = World::new();
    let client = world.connect();
    let (used, _descriptor) = written(&client, b"content");
    let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::RDWR;
    for handle in [used, used + 1_000_000] {
        assert_eq!(client.open("/file", flags, Some(handle)), Err(Errno::BADF));
        assert_eq!(client.open("/new", flags, Some(handle)), Err(Errno::BADF));
    }
    assert_eq!(client.read(used, 7, Some(0)).expect("reads"), b"content");
    assert_eq!(stat(&client, "/new", true).err(), Some(Errno::NOENT));
}
