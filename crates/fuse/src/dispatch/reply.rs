//! The duty to answer one request.

use std::io::IoSlice;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::operations::{Operation, OperationKind, Recorder, Target};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::args::RequestContext;
use super::idle_class;
use super::park::{ParkError, Parked, Registry};
use super::payload::{Data, Payload};
use crate::abi::{Opcode, OutHeader};
use crate::transport::{Delivery, Transport};

/// A transport with what the session shares among its workers.
pub(crate) struct Channel {
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) registry: Arc<Registry>,
    /// Is told of each request that is answered.
    pub(crate) recorder: Option<SessionRecorder>,
}

impl Channel {
    /// A request has come in.
    pub(super) fn arrive(&self, cx: &RequestContext, opcode: Opcode, node: u64) -> Arrival {
        let start = self.recorder.as_ref().map_or(Duration::ZERO, |recorder| recorder.recorder.now());
        let RequestContext { unique, uid, pid, .. } = *cx;
        Arrival { unique, opcode, start, uid, pid, node, bytes: 0, name: None, has_waited: false }
    }
}

/// Where the requests of a session are reported.
#[derive(Debug, Clone)]
pub struct SessionRecorder {
    /// Takes them.
    pub recorder: Arc<dyn Recorder>,
    /// The transaction whose view is served; 0: the main line.
    pub txn: u64,
}

/// What is known of a request until it is answered.
pub(super) struct Arrival {
    pub(super) unique: u64,
    opcode: Opcode,
    start: Duration,
    uid: u32,
    pid: u32,
    node: u64,
    /// What it brings (bytes); what it takes is known when it is answered.
    bytes: u64,
    /// Of the entry that it is about.
    name: Option<Box<[u8]>>,
    has_waited: bool,
}

impl Arrival {
    /// It is about this entry of its node.
    pub(super) fn about(self, name: &[u8]) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// It brings so much content.
    pub(super) fn with_bytes(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }
}

/// Sends `parts` behind a header. `error` is 0, a negative errno, or a notification code.
pub(crate) fn send_parts(
    transport: &dyn Transport,
    unique: u64,
    error: i32,
    parts: &[IoSlice<'_>],
) -> Result<Delivery, Errno> {
    let payload_bytes: usize = parts.iter().map(|part| part.len()).sum();
    let header = OutHeader { len: (size_of::<OutHeader>() + payload_bytes) as u32, error, unique };
    let head = IoSlice::new(header.as_bytes());
    match parts {
        [] => transport.send(&[head]),
        [one] => transport.send(&[head, *one]),
        [one, two] => transport.send(&[head, *one, *two]),
        many => {
            let mut all = Vec::with_capacity(1 + many.len());
            all.push(head);
            all.extend_from_slice(many);
            transport.send(&all)
        }
    }
}

/// An unanswered request, without its type.
pub(crate) struct Slot {
    channel: Arc<Channel>,
    arrival: Arrival,
}

impl Slot {
    pub(super) fn new(channel: &Arc<Channel>, arrival: Arrival) -> Self {
        Self { channel: Arc::clone(channel), arrival }
    }

    /// The kernel's number of the request.
    pub(super) fn unique(&self) -> u64 {
        self.arrival.unique
    }

    /// It is set aside until another owner's lock is free.
    pub(super) fn wait(&mut self) {
        self.arrival.has_waited = true;
    }

    fn send(&self, error: i32, parts: &[IoSlice<'_>]) -> Delivery {
        // Before it is sent: then the caller runs, mostly on this CPU, and finds itself in what is told of
        // operations.
        self.record(error, parts);
        let Arrival { unique, opcode, .. } = self.arrival;
        let send = || send_parts(&*self.channel.transport, unique, error, parts);
        match idle_class::send(unique, send) {
            Ok(delivery) => delivery,
            Err(errno) => {
                tracing::error!(unique, ?opcode, %errno, "the kernel refused a reply");
                // The caller must not hang: a bare error is always well-formed.
                if error == 0 {
                    let fallback = -Errno::IO.raw_os_error();
                    let _ = send_parts(&*self.channel.transport, unique, fallback, &[]);
                }
                Delivery::Gone
            }
        }
    }

    fn record(&self, error: i32, parts: &[IoSlice<'_>]) {
        let Some(SessionRecorder { recorder, txn }) = &self.channel.recorder else { return };
        let Arrival { opcode, start, uid, pid, node, bytes, ref name, has_waited, .. } = self.arrival;
        let bytes = match opcode {
            Opcode::Read | Opcode::Readdir | Opcode::Readdirplus => {
                parts.iter().map(|part| part.len() as u64).sum()
            }
            _ => bytes,
        };
        let (kind, errno, txn) = (operation_kind(opcode), -error, *txn);
        let target = match node {
            0 => Target::None,
            inode => Target::Inode { inode, name: name.as_deref().unwrap_or_default() },
        };
        recorder.record(&Operation { kind, start, uid, pid, txn, errno, bytes, has_waited, target });
    }

    pub(super) fn error(self, errno: Errno) {
        self.send(-errno.raw_os_error(), &[]);
    }
}

/// The duty to answer one request with a `T` or an error: at once or later, from any thread. Dropped without
/// an answer, it answers EIO and says so in the log.
#[must_use = "a dropped reply answers EIO"]
pub struct Reply<T: Payload> {
    slot: Option<Slot>,
    answer: PhantomData<fn(T)>,
}

impl<T: Payload> Reply<T> {
    pub(super) fn new(channel: &Arc<Channel>, arrival: Arrival) -> Self {
        Self::from_slot(Slot::new(channel, arrival))
    }

    pub(super) fn from_slot(slot: Slot) -> Self {
        Self { slot: Some(slot), answer: PhantomData }
    }

    fn take(&mut self) -> Slot {
        // Every method that takes the slot consumes the reply, so it is there.
        self.slot.take().unwrap_or_else(|| unreachable!("a reply is answered once"))
    }

    /// The duty to answer with a `U`, which looks the same to the kernel.
    pub(crate) fn map<U: Payload>(mut self) -> Reply<U> {
        Reply::from_slot(self.take())
    }

    /// The kernel's number of the request.
    pub fn unique(&self) -> u64 {
        self.slot.as_ref().map_or(0, Slot::unique)
    }

    /// Whether the caller was interrupted, or has gone with its connection: what takes long may end without
    /// having done anything.
    pub fn is_interrupted(&self) -> bool {
        self.slot.as_ref().is_some_and(|slot| slot.channel.registry.is_interrupted(slot.unique()))
    }

    /// Answers with `value`. [`Delivery::Gone`]: the kernel did not take it; undo lookup counts and handles.
    #[expect(clippy::needless_pass_by_value, reason = "answering is the end of the value")]
    pub fn ok(mut self, value: T) -> Delivery {
        let slot = self.take();
        value.with_parts(slot.arrival.opcode, |parts| slot.send(0, parts))
    }

    /// Answers with an error.
    pub fn error(mut self, errno: Errno) {
        self.take().error(errno);
    }

    /// Answers with `result`.
    pub fn result(self, result: Result<T, Errno>) -> Delivery {
        match result {
            Ok(value) => self.ok(value),
            Err(errno) => {
                self.error(errno);
                Delivery::Delivered
            }
        }
    }

    /// Sets the request aside until [`Parked::resume`]. When the caller is interrupted first, `cancel` is
    /// called (without any lock held, from a worker) and the request answered with EINTR.
    ///
    /// # Errors
    /// The caller was interrupted already, or too many requests are parked: the request was then answered
    /// (EINTR, EAGAIN) and `cancel` is not called.
    pub fn park(mut self, cancel: impl FnOnce() + Send + 'static) -> Result<Parked<T>, ParkError> {
        let mut slot = self.take();
        slot.wait();
        let registry = Arc::clone(&slot.channel.registry);
        let unique = slot.unique();
        match registry.insert(slot, Box::new(cancel)) {
            Ok(()) => Ok(Parked::new(registry, unique)),
            Err((slot, error)) => {
                slot.error(error.errno());
                Err(error)
            }
        }
    }
}

impl Reply<Data> {
    /// Answers with data that stays where it is: it is handed to the kernel before this returns.
    pub fn slice(mut self, data: &[u8]) -> Delivery {
        self.take().send(0, &[IoSlice::new(data)])
    }

    /// Answers with data in several places, in order.
    pub fn slices(mut self, parts: &[IoSlice<'_>]) -> Delivery {
        self.take().send(0, parts)
    }
}

impl<T: Payload> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            if !slot.channel.registry.has_ended() {
                tracing::error!(unique = slot.unique(), opcode = ?slot.arrival.opcode, "request dropped without an answer");
            }
            slot.error(Errno::IO);
        }
    }
}

/// What a request of the kernel does.
fn operation_kind(opcode: Opcode) -> OperationKind {
    use {Opcode as O, OperationKind as K};
    match opcode {
        O::Lookup => K::Lookup,
        O::Getattr | O::Statx => K::Getattr,
        O::Setattr => K::Setattr,
        O::Access => K::Access,
        O::Readlink => K::Readlink,
        O::Symlink => K::Symlink,
        O::Mknod => K::Mknod,
        O::Mkdir => K::Mkdir,
        O::Unlink => K::Unlink,
        O::Rmdir => K::Rmdir,
        O::Rename | O::Rename2 => K::Rename,
        O::Link => K::Link,
        O::Open => K::Open,
        O::Create | O::Tmpfile => K::Create,
        O::Read => K::Read,
        O::Write => K::Write,
        O::Lseek => K::Seek,
        O::CopyFileRange | O::CopyFileRange64 => K::Copy,
        O::Fallocate => K::Fallocate,
        O::Flush => K::Flush,
        O::Fsync | O::Fsyncdir => K::Fsync,
        O::Release => K::Release,
        O::Opendir => K::Opendir,
        O::Readdir | O::Readdirplus => K::Readdir,
        O::Releasedir => K::Releasedir,
        O::Statfs => K::Statfs,
        O::Syncfs => K::Syncfs,
        O::Getxattr => K::Getxattr,
        O::Setxattr => K::Setxattr,
        O::Listxattr => K::Listxattr,
        O::Removexattr => K::Removexattr,
        O::Getlk | O::Setlk => K::Lock,
        O::Setlkw => K::LockWait,
        O::Ioctl => K::Ioctl,
        _ => K::Other,
    }
}
