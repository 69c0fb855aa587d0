//! Clients that break the rules.

use std::io::{Read, Write};

use std::os::fd::OwnedFd;

use kvfs_lane::greeting::{self, Greeting, Request, VERSION};
use kvfs_lane::{Call, ClientLane, Connection, Reply, decode};
use rustix::fs::{OFlags, fstat};
use rustix::io::Errno;

use crate::ends::placeholder;
use crate::world::{Client, World, at, of};

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
        lane.space()[..bytes.len()].copy_from_slice(&bytes);
        let answer = lane.call(bytes.len(), || true).expect("is answered");
        decode::<Reply>(answer).unwrap_or_else(|error| panic!("round {round}: {error}: {bytes:?}"));
    }
    let client = world.connect();
    client.call(&Call::Stat { at: at("/") }, &[]).expect("goes on");
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

/// A file of one page that is open, and its memory.
struct Mapped {
    client: Client,
    handle: u64,
    memory: OwnedFd,
    _placeholder: OwnedFd,
}

fn map(world: &World, path: &str) -> Mapped {
    let socket = world.socket();
    let asks = socket.try_clone().expect("copies");
    let client = Client(Connection::greet(socket, Greeting::default()).expect("is greeted"));
    let (handle, placeholder) = placeholder(&client);
    client.open(path, OFlags::CREATE | OFlags::RDWR, Some(handle)).expect("opens");
    client.write(handle, b"content").expect("writes");
    let answer = greeting::ask(&asks, &Request::Memory { handle }).expect("is given");
    let memory = answer.descriptors.into_iter().next().expect("one");
    Mapped { client, handle, memory, _placeholder: placeholder }
}

#[test]
fn mapped_file_grows_no_further_than_its_memory_may() {
    let world = World::new();
    let Mapped { client, handle, memory, _placeholder } = map(&world, "/file");
    for size in [1 << 62, 1 << 52, 1 << 40] {
        let truncate = Call::Truncate { at: of(handle), size };
        assert_eq!(client.call(&truncate, &[]).expect_err("is refused"), Errno::NOMEM);
        let write = Call::Write { handle, offset: Some(size - 1) };
        assert_eq!(client.number(&write, b"x"), Err(Errno::NOMEM));
    }
    let punch = Call::Allocate { handle, mode: 3, offset: 4096, len: 1 << 61 };
    client.call(&punch, &[]).expect("makes it no longer");
    // Lengthened elsewhere, as by a mount: what was granted stays as it is.
    let other = world.connect();
    let plain = other.open("/file", OFlags::RDWR, None).expect("opens");
    other.call(&Call::Seek { handle: plain, offset: 1 << 52, whence: 0 }, &[]).expect("seeks");
    other.write(plain, b"x").expect("writes");
    assert!(fstat(&memory).expect("is open").st_size <= 1 << 30);
    assert_eq!(client.read(handle, 7, Some(0)).expect("reads"), b"content");
    client.call(&Call::Truncate { at: of(handle), size: 1 << 20 }, &[]).expect("there is room for that");
    assert_eq!(fstat(&memory).expect("is open").st_size, 1 << 20);
}
