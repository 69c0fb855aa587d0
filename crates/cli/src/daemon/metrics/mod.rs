//! Counters and histograms for Prometheus, by HTTP.
//!
//! On a Unix socket, which root and the daemon's user reach, all counters are told; on a port of this host,
//! which every local user reaches, none of keyspaces that not every user may read.
//!
//! Thread safety: a thread with an event loop, and up to [`ANSWERS_MAX`] that look at the store. Invariants:
//! connections are bounded in number and time; none is left when [`Metrics`] is dropped.

mod place;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use http::header::{ALLOW, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use kvfs_service::{Caller, Service};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};

use place::Listener;
pub(crate) use place::MetricsPlace;

use crate::report::prometheus::as_prometheus;

/// Connections at once; others wait to be accepted.
const CONNECTIONS_MAX: usize = 16;

/// Answers that are made at once.
const ANSWERS_MAX: usize = 2;

/// Longest time for the head of a request, and for a whole connection.
const HEAD_TIME_MAX: Duration = Duration::from_secs(5);
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(30);

/// Longest head of a request (bytes).
const HEAD_LEN_MAX: usize = 16 << 10;

/// After a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// What is being looked up at the end is waited for so long.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// No user of the system: it may read what all may.
const ANY_USER: u32 = u32::MAX;

const PATH: &str = "/metrics";

/// See the module. It ends, and its socket is removed, when this is dropped.
pub(super) struct Metrics {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Metrics {
    /// Serves what `service` counts.
    ///
    /// # Errors
    /// The place can't be listened on; the kernel refuses a thread.
    pub(super) fn start(place: &MetricsPlace, service: &Arc<Service>) -> io::Result<Self> {
        let listener = place.listen()?;
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(ANSWERS_MAX)
            .thread_name("metrics-answer")
            .build()?;
        let (stop, stopped) = watch::channel(false);
        let service = Arc::clone(service);
        let body = move || serve(runtime, &listener, &service, stopped);
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(body)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        // It has ended already where nothing receives this.
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that serves metrics panicked");
        }
    }
}

/// Body of the thread.
fn serve(runtime: Runtime, listener: &Listener, service: &Arc<Service>, mut stopped: watch::Receiver<bool>) {
    let served: io::Result<()> = runtime.block_on(async {
        let accepting = async {
            match listener {
                Listener::Unix(unix, _name) => {
                    let listener = tokio::net::UnixListener::from_std(unix.try_clone()?)?;
                    accept(async || Ok(listener.accept().await?.0), service, Caller::own).await;
                }
                Listener::Tcp(tcp) => {
                    let listener = tokio::net::TcpListener::from_std(tcp.try_clone()?)?;
                    let caller = || Caller::of_mount(ANY_USER, 0);
                    accept(async || Ok(listener.accept().await?.0), service, caller).await;
                }
            }
            Ok(())
        };
        tokio::select! {
            ended = accepting => ended,
            _ = stopped.wait_for(|&stop| stop) => Ok(()),
        }
    });
    if let Err(error) = served {
        tracing::error!(%error, "metrics are not served");
    }
    // Connections end with their tasks.
    runtime.shutdown_timeout(END_TIME_MAX);
}

/// Accepts connections, without end. `caller`: who asks.
async fn accept<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    next: impl AsyncFn() -> io::Result<S>,
    service: &Arc<Service>,
    caller: fn() -> Caller,
) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
        let stream = match next().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection for metrics failed");
                // For instance no descriptor is left: that does not change at once.
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let service = Arc::clone(service);
        tokio::spawn(async move {
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME_MAX)
                .max_buf_size(HEAD_LEN_MAX)
                .keep_alive(false)
                .serve_connection(
                    TokioIo::new(stream),
                    service_fn(move |request| answer(Arc::clone(&service), caller, request)),
                );
            match tokio::time::timeout(CONNECTION_TIME_MAX, served).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "a connection for metrics ended"),
                Err(_) => tracing::debug!("closed: a client does not take its metrics"),
            }
            drop(slot);
        });
    }
}

async fn answer(
    service: Arc<Service>,
    caller: fn() -> Caller,
    request: Request<Incoming>,
) -> Result<Response<String>, Infallible> {
    if request.uri().path() != PATH {
        return Ok(refused(StatusCode::NOT_FOUND, "metrics are at /metrics\n"));
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = refused(StatusCode::METHOD_NOT_ALLOWED, "metrics are only read\n");
        response.headers_mut().insert(ALLOW, http::HeaderValue::from_static("GET, HEAD"));
        return Ok(response);
    }
    let told = tokio::task::spawn_blocking(move || {
        service.with(|store| as_prometheus(&store.stats(&caller()), &store.operations.lines()))
    });
    let Ok(Some(text)) = told.await else {
        return Ok(refused(StatusCode::SERVICE_UNAVAILABLE, "the store is being closed\n"));
    };
    let mut response = Response::new(text);
    let kind = http::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

fn refused(status: StatusCode, why: &str) -> Response<String> {
    let mut response = Response::new(why.to_owned());
    *response.status_mut() = status;
    response
}
