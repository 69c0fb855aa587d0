//! A kernel for tests: sends requests by the byte and reads replies.

use std::sync::Arc;
use std::time::Duration;

use kvfs_fuse::abi::{InHeader, InitIn, InitInExt, Opcode, OutHeader};
use kvfs_fuse::transport::Transport;
use kvfs_fuse::transport::memory::{FakeKernel, MemoryTransport, pair};
use kvfs_fuse::{Operations, Session, SessionConfig};
use zerocopy::{FromBytes, IntoBytes};

const PATIENCE: Duration = Duration::from_secs(20);

/// A reply or notification.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) unique: u64,
    pub(crate) error: i32,
    pub(crate) body: Vec<u8>,
}

pub(crate) struct Kernel {
    fake: FakeKernel,
}

impl Kernel {
    /// A session with one worker over `operations`, and the kernel that talks to it.
    pub(crate) fn start(operations: Arc<dyn Operations>, config: &SessionConfig) -> (Self, Session) {
        Self::start_with(operations, config, |transport| Box::new(transport))
    }

    /// The same, over what `wrap` makes of the transport.
    pub(crate) fn start_with(
        operations: Arc<dyn Operations>,
        config: &SessionConfig,
        wrap: impl FnOnce(MemoryTransport) -> Box<dyn Transport>,
    ) -> (Self, Session) {
        let (transport, fake) = pair();
        let kernel = Self { fake };
        let init = InitIn { major: 7, minor: 45, max_readahead: 131_072, flags: u32::MAX };
        let ext = InitInExt { flags2: u32::MAX, unused: [0; 11] };
        kernel.send(Opcode::Init, 2, 0, &[init.as_bytes(), ext.as_bytes()]);
        let session = Session::start(wrap(transport), config, operations).unwrap();
        assert_eq!(kernel.answer().unique, 2);
        (kernel, session)
    }

    pub(crate) fn send(&self, opcode: Opcode, unique: u64, node: u64, parts: &[&[u8]]) {
        self.send_raw(opcode as u32, unique, node, parts);
    }

    pub(crate) fn send_raw(&self, opcode: u32, unique: u64, node: u64, parts: &[&[u8]]) {
        self.send_as(1000, opcode, unique, node, parts);
    }

    /// A request of another user than the usual one.
    pub(crate) fn send_as(&self, uid: u32, opcode: u32, unique: u64, node: u64, parts: &[&[u8]]) {
        let body = parts.concat();
        let len = (size_of::<InHeader>() + body.len()) as u32;
        let header = InHeader { len, opcode, unique, nodeid: node, uid, ..InHeader::default() };
        self.send_bytes([header.as_bytes(), &body].concat());
    }

    pub(crate) fn send_bytes(&self, bytes: Vec<u8>) {
        assert!(self.fake.send(bytes));
    }

    pub(crate) fn answer(&self) -> Answer {
        let bytes = self.fake.receive(PATIENCE).expect("an answer");
        let (header, body) = OutHeader::read_from_prefix(&bytes).unwrap();
        assert_eq!(header.len as usize, bytes.len());
        Answer { unique: header.unique, error: header.error, body: body.to_vec() }
    }

    pub(crate) fn unmount(&self) {
        self.fake.unmount();
    }
}
