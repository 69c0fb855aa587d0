//! Sessions that can't be started.

use std::sync::atomic::AtomicBool;

use zerocopy::IntoBytes;

use super::*;
use crate::abi::{InHeader, InitIn, InitInExt, Opcode};
use crate::transport::memory::pair;

#[derive(Default)]
struct Ends {
    has_ended: AtomicBool,
}

impl Operations for Ends {
    fn destroy(&self) {
        assert!(!self.has_ended.swap(true, Ordering::Relaxed), "ends once");
    }
}

#[test]
fn session_without_its_last_thread_ends_all_others() {
    const REFUSED: &str = "test-worker-2";
    let (transport, kernel) = pair();
    let init = InitIn { major: 7, minor: 45, max_readahead: 131_072, flags: u32::MAX };
    let body = [init.as_bytes(), InitInExt { flags2: u32::MAX, unused: [0; 11] }.as_bytes()].concat();
    let len = (size_of::<InHeader>() + body.len()) as u32;
    let header = InHeader { len, opcode: Opcode::Init as u32, unique: 2, ..InHeader::default() };
    assert!(kernel.send([header.as_bytes(), &body].concat()));
    let operations = Arc::new(Ends::default());
    let config = SessionConfig { workers: 3, steers: false, name: "test".to_owned(), ..Default::default() };
    let pool = BufferPool::new(config.init.write_bytes_max as usize, 4);
    let start: Start = |name, body| {
        if name == REFUSED { Err(Errno::AGAIN.into()) } else { start_thread(name, body) }
    };
    let started = Session::start_by(start, Box::new(transport), &config, Arc::clone(&operations) as _, pool);
    let error = started.err().expect("a thread is missing");
    assert!(matches!(&error, SessionError::Thread { name, .. } if name == REFUSED), "{error}");
    assert!(operations.has_ended.load(Ordering::Relaxed));
    assert!(!kernel.send(Vec::new()), "the connection has ended");
    assert_eq!(Arc::strong_count(&operations), 1, "no thread is left");
}
