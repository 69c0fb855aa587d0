//! When open files, waits and connections end.

use std::fs::OpenOptions;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::sync::mpsc::channel;

use kvfs_fs::BeginOptions;
use kvfs_lane::greeting::PLACEHOLDER_MODE;
use kvfs_lane::{Call, Connection, LaneError, LockRange, Reply};
use kvfs_posix::Identity;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fstat};
use rustix::io::Errno;

use crate::world::{Client, World, at, given, greet, open, placeholder, written};

#[test]
fn a_placeholder_is_known_by_its_inode_number_and_ready_as_a_file() {
    let world = World::new();
    let client = world.connect();
    let (handle, descriptor) = placeholder(&client);
    let found = fstat(&descriptor).expect("is open");
    assert_eq!((found.st_ino, found.st_mode), (handle, PLACEHOLDER_MODE));
    let mut polled = [PollFd::new(&descriptor, PollFlags::IN | PollFlags::OUT)];
    poll(&mut polled, None).expect("is ready");
    assert_eq!(polled[0].revents(), PollFlags::IN | PollFlags::OUT);
}

#[test]
fn what_a_program_without_the_library_writes_into_a_placeholder_is_refused() {
    let world = World::new();
    let (_, descriptor) = placeholder(&world.connect());
    assert_eq!(rustix::io::write(&descriptor, b"lost"), Err(Errno::FBIG));
    assert_eq!(rustix::io::pwrite(&descriptor, b"lost", 0), Err(Errno::FBIG));
    assert_eq!(rustix::io::read(&descriptor, &mut [0; 4]), Err(Errno::BADF));
    assert_eq!(fstat(&descriptor).expect("is open").st_blocks, 0);
}

#[test]
fn an_open_file_ends_with_the_last_copy_of_its_placeholder() {
    let world = World::new();
    let client = world.connect();
    let (handle, descriptor) = written(&client, b"still there");
    client.call(&Call::Unlink { at: at("/file"), is_directory: false }, &[]).expect("goes");
    let copy = descriptor.try_clone().expect("copies");
    drop(descriptor);
    client.call(&Call::Close { handle }, &[]).expect("closes");
    assert_eq!(client.read(handle, 100, Some(0)).expect("is open"), b"still there");
    assert_eq!(world.server().open_files(), 1);
    drop(copy);
    world.until(|server| server.open_files() == 0);
    assert_eq!(client.read(handle, 100, Some(0)), Err(Errno::BADF));
}

#[test]
fn an_open_file_outlives_a_second_opening_of_its_placeholder_which_stays_as_long_as_it_was() {
    let world = World::new();
    let client = world.connect();
    let (handle, descriptor) = written(&client, b"still there");
    // As `> /dev/fd/N` does it in a program that knows nothing of placeholders.
    let again = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    drop(OpenOptions::new().write(true).truncate(true).open(again).expect("opens"));
    // Reports come in their order.
    let (other, marker) = placeholder(&client);
    client.open("/other", OFlags::CREATE | OFlags::RDWR, Some(other)).expect("opens");
    drop(marker);
    world.until(|server| server.open_files() == 1);
    assert_eq!(client.read(handle, 100, Some(0)).expect("is open"), b"still there");
    assert_eq!(rustix::io::write(&descriptor, b"lost"), Err(Errno::FBIG));
    drop(descriptor);
    world.until(|server| server.open_files() == 0);
}

#[test]
fn placeholder_that_was_never_opened_ends_with_its_connection() {
    let world = World::new();
    let (one, other) = (world.connect(), world.connect());
    let (handle, directory) = given(&one);
    one.open("/file", OFlags::CREATE | OFlags::RDWR, Some(handle)).expect("opens");
    assert_eq!(other.read(handle, 1, Some(0)), Ok(Vec::new()), "it is open");
    drop(one);
    world.until(|server| server.open_files() == 0);
    // It is another open file's now.
    let (again, _) = given(&other);
    assert_eq!(again, handle);
    other.open("/file", OFlags::RDWR, Some(handle)).expect("opens");
    drop(open(&directory, handle));
    world.until(|server| server.open_files() == 0);
}

#[test]
fn placeholder_that_cannot_be_opened_is_given_up_by_close() {
    let world = World::new();
    let client = world.connect();
    let (handle, directory) = given(&client);
    client.open("/file", OFlags::CREATE | OFlags::RDWR, Some(handle)).expect("opens");
    client.call(&Call::Close { handle }, &[]).expect("closes");
    assert_eq!(world.server().open_files(), 0);
    let (again, _) = given(&client);
    client.open("/file", OFlags::RDWR, Some(again)).expect("opens");
    let _descriptor = open(&directory, again);
    client.call(&Call::Close { handle: again }, &[]).expect("ends locks alone");
    assert_eq!(world.server().open_files(), 1);
}

#[test]
fn placeholders_run_out_and_come_back_with_the_connection() {
    let world = World::new();
    let (one, other) = (world.connect(), world.connect());
    let mut given = 0;
    let refused = loop {
        match one.0.placeholders(64) {
            Ok(answer) => given += answer.handles.len(),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
    assert_eq!(given, 8192, "half of the reports that the kernel keeps");
    assert!(other.0.placeholders(1).is_err());
    drop(one);
    world.until(|_| other.0.placeholders(1).is_ok());
}

#[test]
fn a_file_stays_open_without_the_connection_that_opened_it() {
    let world = World::new();
    let (one, other) = (world.connect(), world.connect());
    let (handle, _descriptor) = written(&one, b"one ");
    drop(one);
    world.until(|server| server.connections() == 1);
    other.write(handle, b"other").expect("writes on at the same offset");
    assert_eq!(other.read(handle, 100, Some(0)).expect("reads"), b"one other");
    let (second, _) = placeholder(&other);
    assert_eq!(other.open("/file", OFlags::RDONLY, Some(handle)), Err(Errno::BADF), "it is taken");
    assert_eq!(other.read(second, 1, None), Err(Errno::BADF), "nothing is open yet");
}

#[test]
fn files_without_placeholders_and_locks_end_with_the_connection() {
    let world = World::new();
    let (one, other) = (world.connect(), world.connect());
    let lock = LockRange { start: 0, end: 10, is_exclusive: Some(true), of_file: false };
    let held = one.open("/file", OFlags::CREATE | OFlags::RDWR, None).expect("opens");
    one.call(&Call::Lock { handle: held, lock, waits: false }, &[]).expect("is free");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let handle = other.open("/file", OFlags::RDWR, None).expect("opens");
            other.call(&Call::Lock { handle, lock, waits: true }, &[])
        });
        drop(one);
        waiter.join().expect("ends").expect("gets the lock");
    });
}

#[test]
fn more_programs_than_there_are_lanes_call_in_turn_and_beside_one_that_waits() {
    let world = World::with_lanes(4);
    let lock = LockRange { start: 0, end: 10, is_exclusive: Some(true), of_file: false };
    let clients: Vec<_> = std::iter::repeat_with(|| world.connect()).take(16).collect();
    let open = |client: &Client| client.open("/file", OFlags::CREATE | OFlags::RDWR, None).expect("opens");
    let held = open(&clients[0]);
    clients[0].call(&Call::Lock { handle: held, lock, waits: false }, &[]).expect("is free");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let handle = open(&clients[1]);
            clients[1].call(&Call::Lock { handle, lock, waits: true }, &[])
        });
        for _ in 0..20 {
            for client in &clients[2..] {
                client.call(&Call::Stat { at: at("/file") }, &[]).expect("has a lane");
            }
        }
        let unlock = LockRange { is_exclusive: None, ..lock };
        clients[0].call(&Call::Lock { handle: held, lock: unlock, waits: false }, &[]).expect("is locked");
        waiter.join().expect("ends").expect("gets the lock");
    });
}

#[test]
fn a_wait_for_a_lock_does_not_outlive_its_connection_nor_keep_the_server() {
    let mut world = World::new();
    let one = world.connect();
    let lock = LockRange { start: 0, end: 10, is_exclusive: Some(true), of_file: false };
    let holder = world.volume.process(&Identity::root());
    let fd = holder.open("/file", OFlags::CREATE | OFlags::RDWR, 0o666).expect("opens");
    let range = kvfs_posix::RangeLock { range: 0..10, is_exclusive: true };
    holder.lock_range(fd, &range, false, false).expect("is free");
    let handle = one.open("/file", OFlags::RDWR, None).expect("opens");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let call = Call::Lock { handle, lock, waits: true };
            one.0.call(&call, &[], |reply, _| reply)
        });
        // Whether it waits already or not: it ends.
        world.server.take().expect("runs").stop();
        let outcome = waiter.join().expect("ends");
        assert!(matches!(outcome, Err(LaneError::Over | LaneError::Io(_))), "{outcome:?}");
    });
    assert!(one.0.placeholders(1).is_err());
}

#[test]
fn wait_for_another_transaction_ends_with_its_connection_and_so_do_its_locks_of_ranges() {
    let world = World::new();
    let process = world.volume.process(&Identity::root());
    process.open("/file", OFlags::CREATE | OFlags::RDWR, 0o666).expect("makes");
    let holder = world.volume.begin(&BeginOptions::default()).expect("begins");
    let inside = holder.process(&Identity::root());
    let held = inside.open("/file", OFlags::RDWR, 0).expect("opens");
    inside.write(held, b"held").expect("writes");
    *world.txn.lock().expect("is whole") =
        Some(world.volume.begin(&BeginOptions::default()).expect("begins"));
    let lock = LockRange { start: 0, end: 10, is_exclusive: Some(true), of_file: false };

    let (socket, other) = (world.socket(), world.connect_in(1));
    let waiter = greet(socket.try_clone().expect("copies"), 1);
    let handle = waiter.open("/file", OFlags::RDWR, None).expect("opens");
    waiter.call(&Call::Lock { handle, lock, waits: false }, &[]).expect("is free");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let call = Call::Write { handle, offset: Some(0) };
            waiter.0.call(&call, b"waits", |reply, _| reply)
        });
        while world.waiters() == 0 {
            std::thread::yield_now();
        }
        socket.shutdown(Shutdown::Both).expect("is connected");
        world.until(|server| server.connections() == 1);
        let outcome = waits.join().expect("ends");
        assert!(matches!(outcome, Err(LaneError::Over)), "{outcome:?}");
    });
    let handle = other.open("/file", OFlags::RDWR, None).expect("opens");
    other.call(&Call::Lock { handle, lock, waits: false }, &[]).expect("is free");
    assert_eq!(inside.stat("/file").expect("is there").size, 4, "its holder goes on");
}

#[test]
fn a_server_that_stops_grants_no_lock_of_one_client_to_another() {
    let lock = LockRange { start: 0, end: 10, is_exclusive: Some(true), of_file: false };
    for _ in 0..20 {
        let mut world = World::new();
        let holder = world.connect();
        let held = holder.open("/file", OFlags::CREATE | OFlags::RDWR, None).expect("opens");
        holder.call(&Call::Lock { handle: held, lock, waits: false }, &[]).expect("is free");
        let waiters: Vec<_> = std::iter::repeat_with(|| world.connect()).take(8).collect();
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (waiters.iter())
                .map(|waiter| {
                    let handle = waiter.open("/file", OFlags::RDWR, None).expect("opens");
                    let call = Call::Lock { handle, lock, waits: true };
                    scope.spawn(move || waiter.0.call(&call, &[], |reply, _| reply))
                })
                .collect();
            world.server.take().expect("runs").stop();
            for waiter in waiting {
                let outcome = waiter.join().expect("ends");
                assert!(matches!(outcome, Err(LaneError::Over)), "{outcome:?}");
            }
        });
    }
}

#[test]
fn a_server_that_stops_leaves_no_process_on_the_volume() {
    let mut world = World::new();
    let client = world.connect();
    client.open("/file", OFlags::CREATE | OFlags::RDWR, None).expect("opens");
    let (handle, _descriptor) = placeholder(&client);
    client.open("/other", OFlags::CREATE | OFlags::RDWR, Some(handle)).expect("opens");
    world.server.take().expect("runs").stop();
    world.volume.unmount().expect("is unused");
}

#[test]
fn server_that_stops_when_it_is_unused_takes_none_after_the_last_connection() {
    let world = World::new();
    let (told, unused) = channel();
    world.server().stop_when_unused(move || told.send(()).expect("is awaited"));
    let (one, other) = (world.connect(), world.connect());
    drop(one);
    world.until(|server| server.connections() == 1);
    let third = world.connect();
    drop(other);
    world.until(|server| server.connections() == 1);
    third.open("/file", OFlags::CREATE | OFlags::RDWR, None).expect("is served");
    assert!(unused.try_recv().is_err());
    drop(third);
    unused.recv().expect("is told");
    assert!(Connection::new(world.socket()).is_err(), "what is greeted is served");
}

#[test]
fn a_lock_of_a_whole_file_ends_with_the_last_copy_of_its_placeholder() {
    let world = World::new();
    let (one, other) = (world.connect(), world.connect());
    let lock = |handle| Call::Flock { handle, is_exclusive: Some(true), waits: false };
    for is_closed in [true, false] {
        let (handle, descriptor) = placeholder(&one);
        one.open("/file", OFlags::CREATE | OFlags::RDWR, Some(handle)).expect("opens");
        one.call(&lock(handle), &[]).expect("is free");
        let wanted = other.open("/file", OFlags::RDWR, None).expect("opens");
        assert_eq!(other.call(&lock(wanted), &[]), Err(Errno::AGAIN));
        if is_closed {
            one.call(&Call::Close { handle }, &[]).expect("closes");
        }
        drop(descriptor);
        other.call(&lock(wanted), &[]).expect("is free");
        other.call(&Call::Close { handle: wanted }, &[]).expect("closes");
    }
}

#[test]
fn locks_of_ranges_end_with_each_close_and_stay_when_a_former_one_is_noticed() {
    let world = World::new();
    let (one, other) = (world.connect(), world.connect());
    let lock = LockRange { start: 0, end: 10, is_exclusive: Some(true), of_file: false };
    let wanted = other.open("/file", OFlags::CREATE | OFlags::RDWR, None).expect("opens");
    let found = || other.call(&Call::FindLock { handle: wanted, lock }, &[]).expect("looks").0;
    let opened = || {
        let (handle, descriptor) = placeholder(&one);
        one.open("/file", OFlags::RDWR, Some(handle)).expect("opens");
        (handle, descriptor)
    };
    for is_told in [false, true] {
        let (former, descriptor) = opened();
        one.read(former, 1, Some(0)).expect("is open");
        if is_told {
            one.call(&Call::Close { handle: former }, &[]).expect("closes");
        }
        let (handle, _descriptor) = opened();
        drop(descriptor);
        one.call(&Call::Lock { handle, lock, waits: false }, &[]).expect("is free");
        one.call(&Call::Settle, &[]).expect("sees what is closed");
        assert_eq!(found(), Reply::Locked(Some(lock)));
        let (third, _descriptor) = opened();
        one.call(&Call::Close { handle: third }, &[]).expect("closes");
        assert_eq!(found(), Reply::Locked(None), "each close of the file ends them");
        one.read(third, 1, Some(0)).expect("has copies");
    }
    let (last, descriptor) = opened();
    one.call(&Call::Lock { handle: last, lock, waits: false }, &[]).expect("is free");
    drop(descriptor);
    world.until(|_| found() == Reply::Locked(None));
}

#[test]
fn files_of_a_user_go_with_its_last_connection_and_placeholder_and_come_again() {
    let world = World::new();
    let (one, other) = (world.connect(), world.connect());
    let (handle, directory) = given(&one);
    one.open("/file", OFlags::CREATE | OFlags::RDWR, Some(handle)).expect("opens");
    let descriptor = open(&directory, handle);
    let links = || fstat(&directory).expect("is open").st_nlink;
    drop(one);
    assert_eq!(other.read(handle, 1, Some(0)), Ok(Vec::new()), "it is open");
    drop(other);
    world.until(|server| server.connections() == 0);
    assert_ne!(links(), 0, "a copy of the descriptor is there");
    drop(descriptor);
    world.until(|_| links() == 0);
    let client = world.connect();
    let (handle, _descriptor) = placeholder(&client);
    client.open("/file", OFlags::RDWR, Some(handle)).expect("opens");
}
