//! Connections: which user gets one, what passes on it, how it ends.
//!
//! Thread safety: everything here runs on the thread of the event loop, a task for each connection.
//! Invariants: a connection that has not said what it is within a time is closed; no transaction stays tied
//! to one that has ended.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kvfs_fs::operations::Recorder;
use kvfs_locks::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tonic::Status;
use tower_service::Service as _;

use super::Shared;
use super::body::{AnswerHold, Held, Metered, no_room};
use super::call::Call;
use super::peer::Peer;
use super::report::kind_of;
use super::service::Service;
use super::timeout::timeout;
use super::unread::Unread;
use super::users::{ConnectionSlot, Hold};
use crate::MESSAGE_LEN_MAX;
use crate::proto::store_server::StoreServer;

/// What every client of HTTP/2 says first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a client may send on one stream, and on a connection, before it is read (bytes).
const STREAM_WINDOW: u32 = 128 << 10;
const CONNECTION_WINDOW: u32 = 256 << 10;

/// What an answer may have in buffers of its stream (bytes).
const SEND_BUFFER: usize = 128 << 10;

/// Longest headers of a request (bytes).
const HEADERS_LEN_MAX: u32 = 16 << 10;

/// After a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Takes connections until the server is to stop.
pub(super) async fn accept(
    listener: &UnixListener,
    shared: &Arc<Shared>,
    numbers: &AtomicU64,
    mut stopped: watch::Receiver<bool>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|&stop| stop) => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "key-value connection failed");
                // For instance no descriptor is left: that does not change at once.
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        let peer = match Peer::of(number, &stream, &shared.options.masters) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::debug!(%error, "a client has gone at once");
                continue;
            }
        };
        let Some(slot) = shared.users.try_connect(peer.uid, peer.is_master) else {
            tracing::debug!(uid = peer.uid, "refused: too many key-value connections");
            continue;
        };
        let (shared, stopped) = (Arc::clone(shared), stopped.clone());
        tokio::spawn(async move { attend(stream, peer, &slot, shared, stopped).await });
    }
}

/// From the first byte to the last.
async fn attend(
    mut stream: UnixStream,
    peer: Peer,
    slot: &ConnectionSlot,
    shared: Arc<Shared>,
    mut stopped: watch::Receiver<bool>,
) {
    let greeted = tokio::time::timeout(shared.options.limits.greeting_time_max, greet(&mut stream)).await;
    match greeted {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return tracing::debug!(%error, "not a client of this socket"),
        Err(_) => return tracing::debug!(uid = peer.uid, "a client said nothing"),
    }
    let connection = peer.connection;
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let unread = Arc::new(Unread::default());
    let user = Arc::clone(slot.user());
    let (peer, report) = (Arc::new(peer), Arc::default());
    let call = Call { peer, user, timeout: None, is_over, unread: Arc::clone(&unread), report };
    let recorder = kvfs_fs::operations::recorder(&shared.fs).cloned();
    let server = StoreServer::new(Service(Arc::clone(&shared)))
        .max_decoding_message_size(MESSAGE_LEN_MAX)
        .max_encoding_message_size(MESSAGE_LEN_MAX + (1 << 20));
    let request_time_max = shared.options.limits.request_time_max;
    let service = service_fn(move |request| {
        let call = Call { report: Arc::default(), ..call.clone() };
        reported(recorder.clone(), server.clone(), call, request, request_time_max)
    });
    let served = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(shared.options.limits.streams_max)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(HEADERS_LEN_MAX)
        .serve_connection(TokioIo::new(Greeted::new(stream)), service);
    tokio::select! {
        served = served => {
            if let Err(error) = served {
                tracing::debug!(%error, "key-value connection ended");
            }
        }
        () = unread.overdue(shared.options.limits.stall_time_max) => {
            tracing::debug!(connection, "closed: its client does not take its answers");
        }
        _ = stopped.wait_for(|&stop| stop) => {}
    }
    // In this order: a call that begins a transaction now sees the flag and ends the transaction itself.
    over.store(true, Ordering::Release);
    let gone = tokio::task::spawn_blocking(move || shared.transactions.gone(connection));
    if gone.await.is_err() {
        tracing::error!("what was tied to a connection was not ended");
    }
}

/// Answers one request, and reports it.
async fn reported(
    recorder: Option<Arc<dyn Recorder>>,
    server: StoreServer<Service>,
    call: Call,
    request: Request<Incoming>,
    request_time_max: Duration,
) -> Result<Response<Held>, Infallible> {
    let (Some(recorder), Some(kind)) = (recorder, kind_of(request.uri().path())) else {
        return answer(server, call, request, request_time_max).await;
    };
    let (begun, peer, report) = ((kind, recorder.now()), Arc::clone(&call.peer), Arc::clone(&call.report));
    let Ok(answered) = answer(server, call, request, request_time_max).await;
    report.tell(&*recorder, begun, &peer, &answered);
    Ok(answered)
}

/// Answers one request, within its deadline.
async fn answer(
    mut server: StoreServer<Service>,
    mut call: Call,
    request: Request<Incoming>,
    request_time_max: Duration,
) -> Result<Response<Held>, Infallible> {
    call.timeout = timeout(request.headers());
    let time_max = call.timeout;
    let mut hold = Hold::new(&call.user);
    if !hold.try_grow(bytes_of(request.headers())) {
        return Ok(no_room().into_http::<tonic::body::Body>().map(|inner| Held { inner, hold: None }));
    }
    let hold = Arc::new(Mutex::new(hold));
    let incoming = Arc::clone(&hold);
    let mut request = request.map(|body| Metered::new(body, incoming, request_time_max));
    request.extensions_mut().insert(call);
    let answered = match time_max {
        Some(time_max) => {
            tokio::time::timeout(time_max, server.call(request)).await.unwrap_or_else(|_| Ok(too_late()))
        }
        None => server.call(request).await,
    };
    drop(hold);
    let Ok(mut answered) = answered;
    let hold = answered.extensions_mut().remove::<AnswerHold>();
    Ok(answered.map(|inner| Held { inner, hold }))
}

/// What headers take (bytes), as HTTP/2 counts them (RFC 9113 section 6.5.2).
fn bytes_of(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
}

fn too_late() -> Response<tonic::body::Body> {
    Status::deadline_exceeded("the deadline is over; whether it was done is not known").into_http()
}

/// Reads what the client must say first, and nothing more.
async fn greet(stream: &mut UnixStream) -> io::Result<()> {
    let mut said = [0; PREFACE.len()];
    stream.read_exact(&mut said).await?;
    if said == *PREFACE {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "it does not speak HTTP/2"))
}

/// A connection whose first words were read, and are read again.
struct Greeted {
    stream: UnixStream,
    again: &'static [u8],
}

impl Greeted {
    fn new(stream: UnixStream) -> Self {
        Self { stream, again: PREFACE }
    }
}

impl AsyncRead for Greeted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.again.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let (now, later) = self.again.split_at(self.again.len().min(buffer.remaining()));
        buffer.put_slice(now);
        self.again = later;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Greeted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
