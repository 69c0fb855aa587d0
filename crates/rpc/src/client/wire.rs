//! One HTTP/2 connection over a Unix socket, as the stubs want it.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kvfs_socket::address::Address;
use tokio::net::UnixStream;
use tonic::body::Body;
use tower_service::Service;

use super::error::Result;

/// What may be under way to us on one stream, and on the connection (bytes): a slow reader of a scan leaves
/// room for other calls.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 4 << 20;

#[derive(Debug, Clone)]
pub(crate) struct Wire {
    sender: SendRequest<Body>,
}

impl Wire {
    /// Connects; `check` is asked before anything is sent. The conversation goes on in a task of the runtime.
    pub(crate) async fn connect(
        socket: &Path,
        check: impl FnOnce(&UnixStream) -> io::Result<()>,
    ) -> Result<Self> {
        let address = Address::of(socket)?;
        let stream = UnixStream::connect(address.path()).await?;
        check(&stream)?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(async move {
            // The calls under way learn of its end.
            let _ = connection.await;
        });
        Ok(Self { sender })
    }
}

impl Service<Request<Body>> for Wire {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.sender.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.sender.send_request(request))
    }
}
