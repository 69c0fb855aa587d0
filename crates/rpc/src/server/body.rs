//! Bodies of requests and answers, counted and timed.
//!
//! Thread safety: each belongs to one stream of one connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use kvfs_locks::{Mutex, class};
use tokio::time::Sleep;
use tonic::Status;

use super::users::Hold;

/// What a request holds from its first byte to its answer, and a scan from its first page on.
pub(super) type GrowingHold = Arc<Mutex<Hold, class::RpcServerBody>>;

/// What is kept until the last byte of an answer is written, or its stream is dropped.
pub(super) type AnswerHold = Arc<dyn Send + Sync>;

/// The body of a request: it comes within a time, and its bytes count.
pub(super) struct Metered {
    inner: Incoming,
    hold: GrowingHold,
    time_max: Duration,
    /// Made when the body first keeps us waiting.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Metered {
    pub(super) fn new(inner: Incoming, hold: GrowingHold, time_max: Duration) -> Self {
        Self { inner, hold, time_max, timer: None }
    }
}

impl Body for Metered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match Pin::new(&mut self.inner).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                if self.hold.lock().try_grow(bytes) {
                    return Poll::Ready(Some(Ok(frame)));
                }
                Poll::Ready(Some(Err(no_room())))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(Status::cancelled(error.to_string())))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let time_max = self.time_max;
                let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(time_max)));
                match timer.as_mut().poll(context) {
                    Poll::Ready(()) => {
                        Poll::Ready(Some(Err(Status::deadline_exceeded("the request did not come in time"))))
                    }
                    Poll::Pending => Poll::Pending,
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// What a user is told that has too much in work.
pub(super) fn no_room() -> Status {
    Status::resource_exhausted("too many bytes are being worked on; try again")
}

/// The body of an answer. Its bytes count until they are written, also those in buffers of the connection.
pub(super) struct Held {
    pub(super) inner: tonic::body::Body,
    pub(super) hold: Option<AnswerHold>,
}

/// Bytes that take what they count with them.
struct Counted {
    bytes: Bytes,
    _hold: AnswerHold,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Body for Held {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        let Some(hold) = self.hold.clone() else { return polled };
        polled.map_ok(|frame| frame.map_data(|bytes| Bytes::from_owner(Counted { bytes, _hold: hold })))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
