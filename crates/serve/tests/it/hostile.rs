//! Clients that break the rules.

use std::cell::Cell;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use kvfs_lane::greeting::{self, Greeting, Request, VERSION};
use kvfs_lane::{
    Bytes, Call, ClientLane, Connection, KeyChange, LaneError, LockRange, NUMBERED, Reply, decode, encode,
};
use kvfs_posix::DESCRIPTORS_MAX;
use rustix::fs::{FallocateFlags, OFlags, fstat};
use rustix::io::{Errno, pread, pwrite};

use crate::world::{Client, World, at, of, written};

#[test]
fn another_version_and_transactions_that_are_not_there_are_refused() {
    let world = World::new();
    let refused = greeting::ask(
        world.socket(),
        &Request::Hello { version: VERSION + 1, greeting: Greeting::default() },
    );
    assert_eq!(refused.expect_err("is refused").raw_os_error(), Some(Errno::PROTO.raw_os_error()));
    let refused = Connection::greet(world.socket(), Greeting { txn: 7, ..Greeting::default() });
    assert_eq!(refused.expect_err("has none").raw_os_error(), Some(Errno::NOENT.raw_os_error()));
}

#[test]
fn nothing_comes_before_the_greeting() {
    let world = World::new();
    assert!(greeting::ask(world.socket(), &Request::Lane).is_err());
    let mut socket = world.socket();
    socket.write_all(&[0xff; 64]).expect("writes");
    let mut rest = Vec::new();
    // It is closed, perhaps with some of that unread.
    let _ = socket.read_to_end(&mut rest);
    world.until(|server| server.connections() == 0);
}

#[test]
fn connection_that_sends_no_whole_greeting_ends() {
    let world = World::new();
    let mut socket = world.socket();
    socket.write_all(&[0; 7]).expect("writes");
    // It is closed, with some of that unread.
    let _ = socket.read(&mut [0]);
    world.until(|server| server.connections() == 0);
}

#[test]
fn whatever_bytes_come_an_answer_goes() {
    let world = World::new();
    let socket = world.socket();
    greeting::ask(&socket, &Request::Hello { version: VERSION, greeting: Greeting::default() })
        .expect("is greeted");
    let memory = greeting::ask(&socket, &Request::Lane).expect("is given").descriptors.pop().expect("one");
    let mut lane = ClientLane::attach(memory).expect("attaches");
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..20_000_usize {
        let bytes: Vec<u8> = (0..round % 64)
            .map(|_| {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                // Small numbers are calls and flags.
                if seed & 1 == 0 { (seed >> 32) as u8 % 40 } else { (seed >> 32) as u8 }
            })
            .collect();
        assert!(lane.begin());
        lane.space()[..bytes.len()].copy_from_slice(&bytes);
        let answer = lane.call(bytes.len(), || true).expect("is answered");
        decode::<Reply>(answer).unwrap_or_else(|error| panic!("round {round}: {error}: {bytes:?}"));
    }
    let client = world.connect();
    client.call(&Call::Stat { at: at("/") }, &[]).expect("goes on");
}

#[test]
fn write_of_more_keys_than_one_call_takes_is_refused_before_they_are_decoded() {
    let world = World::new();
    let client = world.connect();
    let mut payload = Vec::new();
    for number in 0..=10_000_u32 {
        let mut space = [0; 16];
        let delete = KeyChange::Delete { key: Bytes(&number.to_be_bytes()) };
        let len = encode(&delete, &[], &mut space).expect("fits");
        payload.extend_from_slice(&space[..len]);
    }
    // What lies behind the last change that one call takes is not looked at.
    payload.extend_from_slice(&[0xff; 16]);
    let call = Call::WriteKeys { keyspace: "tags" };
    assert_eq!(client.call(&call, &payload), Err(Errno::TOOBIG));
    assert_eq!(client.call(&Call::ListKeyspaces, &[]), Ok((Reply::Done, Vec::new())), "none was made");
}

#[test]
fn lanes_that_a_client_ends_leave_no_memory() {
    let world = World::new();
    let socket = world.socket();
    greeting::ask(&socket, &Request::Hello { version: VERSION, greeting: Greeting::default() })
        .expect("is greeted");
    for _ in 0..1000 {
        let memory =
            greeting::ask(&socket, &Request::Lane).expect("is given").descriptors.pop().expect("one");
        let mut lane = ClientLane::attach(memory).expect("attaches");
        assert!(lane.begin());
        let longer = lane.space().len() + 1;
        assert!(matches!(lane.call(longer, || true), Err(LaneError::Over)));
    }
    // Other tests of this process have some.
    world.until(|_| {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("reads");
        maps.lines().filter(|line| line.contains("kvfs-lane")).count() < 500
    });
}

#[test]
fn server_stops_though_a_client_writes_over_the_end_of_its_lane() {
    let mut world = World::new();
    let socket = world.socket();
    greeting::ask(&socket, &Request::Hello { version: VERSION, greeting: Greeting::default() })
        .expect("is greeted");
    let memory = greeting::ask(&socket, &Request::Lane).expect("is given").descriptors.pop().expect("one");
    // The last word of the head: the server's end sleeps.
    let mut sleeps = [0; 4];
    while sleeps == [0; 4] {
        pread(&memory, &mut sleeps, 12).expect("reads");
    }
    let has_stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !has_stopped.load(Ordering::Relaxed) {
                    // The first word: no call is under way, and the lane is not over.
                    pwrite(&memory, &[0; 4], 0).expect("writes");
                }
            });
        }
        world.server.take().expect("runs").stop();
        has_stopped.store(true, Ordering::Relaxed);
    });
}

#[test]
fn handles_that_were_not_given_are_refused() {
    let world = World::new();
    let client = world.connect();
    for handle in [0, 1, 77, u64::MAX, 1 << 63, (1 << 63) | 5] {
        assert_eq!(client.read(handle, 10, Some(0)), Err(Errno::BADF), "{handle:#x}");
        assert_eq!(client.open("/file", OFlags::CREATE, Some(handle)), Err(Errno::BADF));
    }
}

#[test]
fn no_number_of_a_client_reaches_what_a_placeholder_stands_for() {
    let world = World::new();
    let socket = world.socket();
    let again = socket.try_clone().expect("is copied");
    let client = Client(Connection::greet(socket, Greeting::default()).expect("is greeted"));
    let (handle, _descriptor) = written(&client, b"content");
    let other = client.open("/other", OFlags::CREATE | OFlags::RDWR, None).expect("opens");
    client.write(other, b"another").expect("writes");
    let (end, closes_on_exec) = (DESCRIPTORS_MAX as i32, true);
    for number in (0..8).chain(end..end + 8) {
        let numbered = NUMBERED | number as u64;
        if numbered != other {
            assert_eq!(client.call(&Call::Close { handle: numbered }, &[]), Err(Errno::BADF), "{number}");
        }
        let put = client.call(&Call::DupTo { handle: other, new: number, closes_on_exec }, &[]);
        assert_eq!(put.is_ok(), number < end, "{number}");
    }
    let beyond = |min| client.call(&Call::Dup { handle: other, min, closes_on_exec }, &[]).map(drop);
    assert_eq!(beyond(end), Err(Errno::INVAL));
    assert_eq!([(); 2].map(|()| beyond(end - 1)), [Ok(()), Err(Errno::MFILE)]);
    client.call(&Call::SetClosesOnExec { handle, closes_on_exec }, &[]).expect("changes nothing");
    for call in [Call::Exec, Call::Exit] {
        client.call(&call, &[]).expect("is done");
        assert_eq!(client.read(handle, 10, Some(0)).expect("is open"), b"content", "{call:?}");
    }
    let mut memory = greeting::ask(&again, &Request::Memory { handle }).expect("is mapped").descriptors;
    let mut found = [0; 7];
    pread(memory.pop().expect("one"), &mut found, 0).expect("reads");
    assert_eq!(&found, b"content");
}

#[test]
fn a_mapped_file_that_is_made_longer_than_there_is_memory_stays_as_it_was() {
    let world = World::new();
    let (client, other) = (world.connect(), world.connect());
    let (handle, _descriptor) = written(&client, b"mapped");
    let memory = world.memory(handle).expect("is mapped");
    let source = client.open("/source", OFlags::CREATE | OFlags::RDWR, None).expect("opens");
    client.call(&Call::Truncate { at: of(source), size: 1 << 50 }, &[]).expect("is not mapped");
    let beyond = Some(1 << 61);
    let longer = [
        (Call::Truncate { at: of(handle), size: 1 << 62 }, &b""[..]),
        (Call::Truncate { at: at("/file"), size: 1 << 40 }, b""),
        (Call::Write { handle, offset: beyond }, b"data"),
        (Call::Allocate { handle, mode: 0, offset: 1 << 50, len: 1 }, b""),
        (Call::Copy { from: source, from_offset: None, to: handle, to_offset: beyond, len: u64::MAX }, b""),
    ];
    for (call, payload) in longer {
        assert_eq!(client.call(&call, payload), Err(Errno::FBIG), "{call:?}");
        assert_eq!(fstat(&memory).expect("is there").st_size, 4096);
        other.call(&Call::SyncAll, &[]).expect("goes on");
        other.call(&Call::Stat { at: at("/file") }, &[]).expect("goes on");
    }
    let mode = FallocateFlags::KEEP_SIZE.bits();
    client
        .call(&Call::Allocate { handle, mode, offset: 1 << 40, len: 1 }, &[])
        .expect("is as long as it was");
    assert_eq!(client.read(handle, 100, Some(0)).expect("reads"), b"mapped");
    client.call(&Call::Truncate { at: of(handle), size: 9000 }, &[]).expect("there is room");
    assert_eq!(fstat(&memory).expect("is there").st_size, 3 * 4096);
}

#[test]
fn descriptors_and_locks_of_all_connections_are_bounded_and_come_back() {
    let world = World::new();
    let client = world.connect();
    let handle = client.open("/file", OFlags::CREATE | OFlags::RDWR, None).expect("opens");
    let again = Call::Dup { handle, min: 0, closes_on_exec: false };
    for _ in 1..4096 {
        client.call(&again, &[]).expect("is one more");
    }
    let children: Vec<_> = std::iter::from_fn(|| client.0.fork().ok()).take(100).collect();
    assert_eq!(children.len(), 63, "2^18 descriptors, of 64 connections");
    assert_eq!(client.call(&again, &[]), Err(Errno::MFILE));
    let unused = Call::DupTo { handle, new: 10_000, closes_on_exec: false };
    assert_eq!(client.call(&unused, &[]), Err(Errno::MFILE));
    client.call(&Call::DupTo { handle, new: 10, closes_on_exec: false }, &[]).expect("takes another's place");
    drop(children);

    let mut taken = 0;
    let refused = 'full: loop {
        let path = format!("/{taken}");
        let open = || client.open(&path, OFlags::CREATE | OFlags::RDWR, None);
        // The server finds out about one child after the other, and lets its descriptors go one by one.
        let opened = Cell::new(Err(Errno::MFILE));
        world.until(|_| {
            opened.set(open());
            opened.get() != Err(Errno::MFILE)
        });
        let handle = opened.get().expect("there are enough");
        for start in (0..4096).step_by(2) {
            let lock = LockRange { start, end: start + 1, is_exclusive: Some(true), of_file: start % 4 == 0 };
            match client.call(&Call::Lock { handle, lock, waits: false }, &[]) {
                Ok(_) => taken += 1,
                Err(errno) => break 'full errno,
            }
        }
    };
    assert_eq!((refused, taken), (Errno::NOLCK, 1 << 15));
    let flock = Call::Flock { handle, is_exclusive: Some(true), waits: false };
    assert_eq!(client.call(&flock, &[]), Err(Errno::NOLCK));
    client.call(&Call::Exit, &[]).expect("closes all");
    let handle = client.open("/file", OFlags::RDWR, None).expect("opens");
    client
        .call(&Call::Flock { handle, is_exclusive: Some(true), waits: false }, &[])
        .expect("there are some");
}
