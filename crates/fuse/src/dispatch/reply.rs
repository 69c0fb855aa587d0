//! The duty to answer one request.

use std::io::IoSlice;
use std::marker::PhantomData;
use std::sync::Arc;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::idle_class;
use super::park::{ParkError, Parked, Registry};
use super::payload::{Data, Payload};
use crate::abi::{Opcode, OutHeader};
use crate::transport::{Delivery, Transport};

/// A transport with what the session shares among its workers.
pub(crate) struct Channel {
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) registry: Arc<Registry>,
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
    pub(super) unique: u64,
    opcode: Opcode,
}

impl Slot {
    fn send(&self, error: i32, parts: &[IoSlice<'_>]) -> Delivery {
        let send = || send_parts(&*self.channel.transport, self.unique, error, parts);
        match idle_class::send(self.unique, send) {
            Ok(delivery) => delivery,
            Err(errno) => {
                tracing::error!(unique = self.unique, opcode = ?self.opcode, %errno, "the kernel refused a reply");
                // The caller must not hang: a bare error is always well-formed.
                if error == 0 {
                    let fallback = -Errno::IO.raw_os_error();
                    let _ = send_parts(&*self.channel.transport, self.unique, fallback, &[]);
                }
                Delivery::Gone
            }
        }
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
    pub(crate) fn new(channel: &Arc<Channel>, unique: u64, opcode: Opcode) -> Self {
        Self::from_slot(Slot { channel: Arc::clone(channel), unique, opcode })
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
        self.slot.as_ref().map_or(0, |slot| slot.unique)
    }

    /// Answers with `value`. [`Delivery::Gone`]: the kernel did not take it; undo lookup counts and handles.
    #[expect(clippy::needless_pass_by_value, reason = "answering is the end of the value")]
    pub fn ok(mut self, value: T) -> Delivery {
        let slot = self.take();
        value.with_parts(slot.opcode, |parts| slot.send(0, parts))
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
        let slot = self.take();
        let registry = Arc::clone(&slot.channel.registry);
        let unique = slot.unique;
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
                tracing::error!(unique = slot.unique, opcode = ?slot.opcode, "request dropped without an answer");
            }
            slot.error(Errno::IO);
        }
    }
}
