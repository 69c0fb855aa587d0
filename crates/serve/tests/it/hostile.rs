//! Clients that break the rules.

use std::io::{Read, Write};

use kvfs_lane::greeting::{self, Greeting, Request, VERSION};
use kvfs_lane::{Call, ClientLane, Connection, Reply, decode};
use rustix::io::Errno;

use crate::world::{World, at};

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
        assert_eq!(client.open("/file", rustix::fs::OFlags::CREATE, Some(handle)), Err(Errno::BADF));
    }
}
