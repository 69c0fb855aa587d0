//! Files that clients map.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use kvfs_fs::BeginOptions;
use kvfs_lane::{Call, Connection, Greeting};
use kvfs_posix::Identity;
use rustix::fs::{OFlags, fstat};
use rustix::io::{Errno, pread, pwrite};

use crate::world::{Client, World, at, of, placeholder, written};

#[test]
fn memory_of_a_file_holds_what_calls_write_and_the_file_what_is_written_there() {
    let world = World::new();
    let (client, other) = (world.connect(), world.connect());
    let (handle, descriptor) = placeholder(&client);
    client.open("/file", OFlags::CREATE | OFlags::RDWR, Some(handle)).expect("opens");
    let data: Vec<u8> = (0..10_000_u32).map(|byte| (byte % 251) as u8).collect();
    client.write(handle, &data).expect("writes");
    let memory = world.memory(handle).expect("is mapped");
    let mut found = vec![0; 10_000];
    assert_eq!(pread(&memory, &mut found, 0), Ok(10_000));
    assert_eq!(found, data);

    pwrite(&memory, b"from a program", 5000).expect("writes");
    client.call(&Call::Write { handle, offset: Some(4000) }, b"by a call").expect("writes");
    assert_eq!(client.read(handle, 14, Some(5000)).expect("reads"), b"from a program");
    pread(&memory, &mut found[..9], 4000).expect("reads");
    assert_eq!(&found[..9], b"by a call");

    client.call(&Call::Truncate { at: of(handle), size: 5004 }, &[]).expect("is shorter");
    client.call(&Call::Write { handle, offset: Some(20_000) }, b"the end").expect("is longer");
    assert_eq!(fstat(&memory).expect("is there").st_size, 5 * 4096);
    let mut found = vec![0; 15_007];
    assert_eq!(pread(&memory, &mut found, 5000), Ok(15_007));
    assert_eq!((&found[..6], &found[15_000..]), (&b"from\0\0"[..], &b"the end"[..]));

    // What was written last reaches the file when the last one has closed it.
    pwrite(&memory, b"last", 100).expect("writes");
    drop(descriptor);
    other.call(&Call::Settle, &[]).expect("settles");
    let again = other.open("/file", OFlags::RDONLY, None).expect("opens");
    assert_eq!(other.read(again, 4, Some(100)).expect("reads"), b"last");
}

/// What lies at the beginning of the memory of a file.
fn stored<const N: usize>(memory: &OwnedFd) -> [u8; N] {
    let mut found = [0; N];
    assert_eq!(pread(memory, &mut found, 0), Ok(N));
    found
}

#[test]
fn what_a_commit_changes_of_a_mapped_file_and_what_is_stored_beside_it_both_stay() {
    let world = World::new();
    let client = world.connect();
    let (handle, _descriptor) = written(&client, &[b'.'; 4096]);
    let memory = world.memory(handle).expect("is mapped");
    let commit = |text: &[u8]| {
        let txn = world.volume.begin(&BeginOptions::default()).expect("begins");
        let inside = txn.process(&Identity::root());
        let fd = inside.open("/file", OFlags::WRONLY, 0).expect("opens");
        inside.pwrite(fd, text, 0).expect("writes");
        drop(inside);
        txn.commit().expect("commits");
    };
    // Stored before the commit, and behind it.
    pwrite(&memory, b"before", 100).expect("stores");
    commit(b"NEW");
    pwrite(&memory, b"behind", 200).expect("stores");
    for (place, expected) in [(0, &b"NEW..."[..]), (100, b"before"), (200, b"behind")] {
        assert_eq!(client.read(handle, 6, Some(place)).expect("reads"), expected);
    }
    assert_eq!(&stored(&memory), b"NEW...");
    // What maps it later finds what is committed, too.
    commit(b"NEXT");
    let again = world.memory(handle).expect("is mapped");
    assert_eq!(&stored(&again), b"NEXT..");
    client.call(&Call::Sync { handle }, &[]).expect("nothing was lost");
}

#[test]
fn page_that_an_unknown_commit_changes_is_the_commits_and_the_next_sync_says_so() {
    let world = World::new();
    let client = world.connect();
    let (handle, _descriptor) = written(&client, &[b'.'; 3 * 4096]);
    let memory = world.memory(handle).expect("is mapped");
    let txn = world.volume.begin(&BeginOptions::default()).expect("begins");
    let inside = txn.process(&Identity::root());
    // More files than a transaction remembers changes of.
    for number in 0..64 {
        let fd = inside.open(&*format!("/{number}"), OFlags::CREATE | OFlags::WRONLY, 0o600).expect("opens");
        inside.write(fd, b"content").expect("writes");
    }
    let fd = inside.open("/file", OFlags::WRONLY, 0).expect("opens");
    inside.pwrite(fd, b"NEW", 0).expect("writes");
    inside.pwrite(fd, b"NEW", 8192).expect("writes");
    drop(inside);
    for place in [100, 5000] {
        pwrite(&memory, b"stored", place).expect("stores");
    }
    txn.commit().expect("commits");
    assert_eq!(client.call(&Call::Sync { handle }, &[]), Err(Errno::IO));
    client.call(&Call::Sync { handle }, &[]).expect("it was told");
    for (place, expected) in [(0, &b"NEW..."[..]), (100, b"......"), (5000, b"stored"), (8192, b"NEW...")] {
        assert_eq!(client.read(handle, 6, Some(place)).expect("reads"), expected);
    }
    assert_eq!(&stored(&memory), b"NEW...");
}

#[test]
fn write_under_way_when_its_file_is_mapped_is_in_the_memory_and_stays() {
    let world = World::new();
    let client = world.connect();
    let (handle, _descriptor) = written(&client, &[b'.'; 4096]);
    let txn = world.volume.begin(&BeginOptions::default()).expect("begins");
    let inside = txn.process(&Identity::root());
    inside.truncate("/file", 4000).expect("holds it");
    let memory = std::thread::scope(|scope| {
        let write = || client.call(&Call::Write { handle, offset: Some(0) }, b"answered");
        let writer = scope.spawn(write);
        world.until(|_| world.waiters() == 1);
        let memory = world.memory(handle).expect("is mapped");
        assert_eq!(&stored(&memory), b"........");
        drop(inside);
        txn.abort();
        writer.join().expect("ends").expect("is written");
        memory
    });
    assert_eq!(&stored(&memory), b"answered");
    pwrite(&memory, b"stored", 100).expect("stores");
    for (place, expected) in [(0, &b"answered"[..]), (100, b"stored..")] {
        assert_eq!(client.read(handle, 8, Some(place)).expect("reads"), expected);
    }
}

#[test]
fn what_others_change_without_a_call_stays_beside_what_is_stored_in_a_mapped_file() {
    let world = World::new();
    let client = world.connect();
    let (handle, _descriptor) = written(&client, &[b'.'; 5000]);
    let memory = world.memory(handle).expect("is mapped");
    let beside = world.volume.process(&Identity::root());
    let fd = beside.open("/file", OFlags::WRONLY, 0).expect("opens");
    pwrite(&memory, b"stored", 100).expect("stores");
    beside.pwrite(fd, b"BESIDE", 0).expect("writes");
    beside.truncate("/file", 104).expect("cuts");
    assert_eq!(client.read(handle, 6, Some(0)).expect("reads"), b"BESIDE");
    assert_eq!(client.read(handle, 6, Some(100)).expect("reads"), b"stor");
    assert_eq!(&stored(&memory), b"BESIDE");
}

#[test]
fn truncation_that_is_refused_leaves_a_mapped_file_as_it_is() {
    let world = World::new();
    let client = world.connect();
    let (handle, _descriptor) = written(&client, b"content");
    let memory = world.memory(handle).expect("is mapped");
    pwrite(&memory, b"CONTENT", 0).expect("writes");
    let greeting = Greeting { acts_as: vec![1000, 1000], ..Greeting::default() };
    let other = Client(Connection::greet(world.socket(), greeting).expect("is greeted"));
    assert_eq!(other.call(&Call::Truncate { at: at("/file"), size: 0 }, &[]), Err(Errno::ACCESS));
    let beside = world.volume.process(&Identity::root());
    let fd = beside.open("/file", OFlags::RDONLY, 0).expect("opens");
    let mut found = [0; 7];
    beside.pread(fd, &mut found, 0).expect("reads");
    assert_eq!(&found, b"content", "nothing was written for the sake of what is refused");
}

#[test]
fn a_mapped_file_that_others_make_longer_is_held_as_far_as_there_is_memory() {
    let world = World::new();
    let client = world.connect();
    let (handle, _descriptor) = written(&client, b"mapped");
    let memory = world.memory(handle).expect("is mapped");
    let beside = world.volume.process(&Identity::root());
    beside.truncate("/file", 1 << 50).expect("is longer");
    client.call(&Call::Write { handle, offset: Some(0) }, b"MAPPED").expect("writes");
    assert_eq!(fstat(&memory).expect("is there").st_size, 4096);
    let mut found = [0; 7];
    pread(&memory, &mut found, 0).expect("reads");
    assert_eq!(&found, b"MAPPED\0");
    client.call(&Call::SyncAll, &[]).expect("syncs");
    // It is held wholly as soon as there is room.
    beside.truncate("/file", 10_000).expect("is shorter");
    let fd = beside.open("/file", OFlags::WRONLY, 0).expect("opens");
    beside.pwrite(fd, b"beside", 8000).expect("writes");
    world.memory(handle).expect("is mapped");
    assert_eq!(fstat(&memory).expect("is there").st_size, 3 * 4096);
    let mut found = [0; 6];
    pread(&memory, &mut found, 8000).expect("reads");
    assert_eq!(&found, b"beside");
}

#[test]
fn memory_in_a_transaction_that_was_aborted_keeps_no_client_from_syncing() {
    let world = World::new();
    *world.txn.lock().expect("is whole") =
        Some(world.volume.begin(&BeginOptions::default()).expect("begins"));
    let (inside, outside) = (world.connect_in(1), world.connect());
    let (handle, _descriptor) = written(&inside, b"never");
    let memory = world.memory_in(1, handle).expect("is mapped");
    pwrite(&memory, b"NEVER", 0).expect("writes");
    world.txn.lock().expect("is whole").take().expect("was begun").abort();
    assert_eq!(inside.read(handle, 5, Some(0)), Err(Errno::STALE));
    outside.call(&Call::Settle, &[]).expect("settles");
    outside.call(&Call::SyncAll, &[]).expect("syncs");
}

#[test]
fn write_that_was_answered_and_what_is_stored_beside_it_meanwhile_both_stay() {
    let world = World::new();
    let (writer, reader) = (world.connect(), world.connect());
    let (handle, _descriptor) = written(&writer, &[0; 4096]);
    let memory = world.memory(handle).expect("is mapped");
    let file = reader.open("/file", OFlags::RDONLY, None).expect("opens");
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Each has bytes of its own in the page.
        let stores = scope.spawn(|| {
            for round in 1..=u32::MAX {
                if ends.load(Ordering::Relaxed) {
                    return true;
                }
                pwrite(&memory, &round.to_le_bytes(), 0).expect("writes");
                let mut found = [0; 4];
                for _ in 0..50 {
                    pread(&memory, &mut found, 0).expect("reads");
                    if found != round.to_le_bytes() {
                        return false;
                    }
                }
            }
            true
        });
        let reads = scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                reader.read(file, 4, Some(0)).expect("reads");
            }
        });
        let is_kept = (1..=3000_u32).all(|round| {
            writer.call(&Call::Write { handle, offset: Some(100) }, &round.to_le_bytes()).expect("writes");
            writer.read(handle, 4, Some(100)).expect("reads") == round.to_le_bytes()
        });
        ends.store(true, Ordering::Relaxed);
        reads.join().expect("ends");
        assert!(stores.join().expect("ends"), "what was stored is gone");
        assert!(is_kept, "what was written is gone");
    });
}

#[test]
fn memory_in_a_transaction_that_waits_for_another_one_holds_up_no_other_client() {
    let world = World::new();
    let beside = world.volume.process(&Identity::root());
    beside
        .write(beside.open("/file", OFlags::CREATE | OFlags::RDWR, 0o666).expect("makes"), b"a")
        .expect("writes");
    *world.txn.lock().expect("is whole") =
        Some(world.volume.begin(&BeginOptions::default()).expect("begins"));
    let (inside, outside) = (world.connect_in(1), world.connect());
    let (handle, descriptor) = placeholder(&inside);
    inside.open("/file", OFlags::RDWR, Some(handle)).expect("opens");
    let memory = world.memory_in(1, handle).expect("is mapped");
    pwrite(&memory, b"B", 0).expect("writes");
    let holder = world.volume.begin(&BeginOptions::default()).expect("begins");
    let holding = holder.process(&Identity::root());
    holding.write(holding.open("/file", OFlags::RDWR, 0).expect("opens"), b"C").expect("writes");

    outside.call(&Call::Settle, &[]).expect("settles");
    outside.call(&Call::SyncAll, &[]).expect("syncs");
    drop(descriptor);
    world.until(|server| server.open_files() == 0);
    outside.call(&Call::Settle, &[]).expect("settles");
    let (other, descriptor) = placeholder(&outside);
    outside.open("/other", OFlags::CREATE | OFlags::RDWR, Some(other)).expect("opens");
    outside
        .call(&Call::Flock { handle: other, is_exclusive: Some(true), waits: false }, &[])
        .expect("is free");
    drop(descriptor);
    world.until(|server| server.open_files() == 0);

    // It reaches its file as soon as it may.
    drop(holding);
    holder.abort();
    let txn = world.txn.lock().expect("is whole");
    let process = txn.as_ref().expect("was begun").process(&Identity::root());
    let fd = process.open("/file", OFlags::RDONLY, 0).expect("opens");
    let mut found = [0];
    while found != *b"B" {
        process.pread(fd, &mut found, 0).expect("reads");
    }
}

#[test]
fn write_at_an_offset_that_others_move_stays_in_a_mapped_file() {
    let world = World::new();
    let (writer, mover) = (world.connect(), world.connect());
    let (handle, _descriptor) = written(&writer, &[0; 16 << 10]);
    let _memory = world.memory(handle).expect("is mapped");
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let moves = scope.spawn(|| {
            for page in (0..4).cycle() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                mover.call(&Call::Seek { handle, offset: page << 12, whence: 0 }, &[]).expect("moves");
            }
        });
        for round in 1..=3000_u64 {
            writer.write(handle, &round.to_le_bytes()).expect("writes");
            // Memory that is older than the file would be written back.
            writer.read(handle, 0, Some(0)).expect("reads");
            let found = writer.read(handle, 64 << 10, Some(0)).expect("reads");
            let is_there = found.as_chunks::<8>().0.iter().any(|word| *word == round.to_le_bytes());
            if !is_there {
                ends.store(true, Ordering::Relaxed);
            }
            assert!(is_there, "write {round} is gone");
        }
        ends.store(true, Ordering::Relaxed);
        moves.join().expect("ends");
    });
}

#[test]
fn mapped_file_that_is_cut_by_an_open_is_not_made_longer_by_what_its_memory_held() {
    let world = World::new();
    let (writer, reader) = (world.connect(), world.connect());
    let (handle, _descriptor) = placeholder(&writer);
    writer.open("/file", OFlags::CREATE | OFlags::RDWR, Some(handle)).expect("opens");
    let memory = world.memory(handle).expect("is mapped");
    let file = reader.open("/file", OFlags::RDONLY, None).expect("opens");
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            for round in 1_u32.. {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                pwrite(&memory, &round.to_le_bytes(), 8 << 10).expect("stores");
                reader.read(file, 1, Some(0)).expect("reads");
            }
        });
        let is_cut = (0..2000).all(|_| {
            writer.call(&Call::Write { handle, offset: Some(0) }, &[1; 12 << 10]).expect("writes");
            let cut = writer.open("/file", OFlags::TRUNC | OFlags::RDWR, None).expect("is cut");
            let rest = writer.read(cut, 1, Some(0)).expect("reads");
            writer.call(&Call::Close { handle: cut }, &[]).expect("closes");
            rest.is_empty()
        });
        ends.store(true, Ordering::Relaxed);
        reads.join().expect("ends");
        assert!(is_cut, "what was cut off is there again");
    });
}
