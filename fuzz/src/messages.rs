//! Messages of the key-value socket, as a client may send them.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kvfs_rpc::server::{BoundSocket, Limits, NoTransactions, Options, Server};

use crate::input::Parts;
use crate::streams::file_system;

/// Methods of the service (store.proto); a part's kind counts in them.
pub const METHODS: [&str; 17] = [
    "Info",
    "Get",
    "MultiGet",
    "Put",
    "Delete",
    "DeleteRange",
    "Apply",
    "Scan",
    "ListKeyspaces",
    "CreateKeyspace",
    "ChangeKeyspace",
    "Begin",
    "Commit",
    "Abort",
    "View",
    "ListTransactions",
    "Lock",
];

/// Name of the socket.
const NAME: &str = "kv.sock";

/// How long an answer may take: a call that hangs is a finding.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);

/// A message in the frame that gRPC gives it.
fn frame(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::from(&[0][..]);
    framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
    framed.extend_from_slice(message);
    framed.freeze()
}

async fn call(sender: &mut SendRequest<Full<Bytes>>, method: &str, message: &[u8]) {
    let request = Request::post(format!("http://kvfs/kvfs.v1.Store/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(frame(message)))
        .expect("the request is well-formed");
    let answer = async {
        if let Ok(response) = sender.send_request(request).await {
            drop(response.into_body().collect().await);
        }
    };
    tokio::time::timeout(ANSWER_TIME_MAX, answer).await.expect("the server answers");
}

/// Each part is a call: its kind the method, its bytes the message. The server must go on answering.
pub fn run(data: &[u8]) {
    let fs = file_system(4);
    // A directory of its own: fuzzers run side by side.
    let directory = std::env::temp_dir().join(format!("kvfs-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("there is a directory for sockets");
    let socket = directory.join(NAME);
    let directory = Arc::new(File::open(directory).expect("the directory was just made").into());
    let bound = BoundSocket::bind(directory, NAME, 0o600).expect("the socket can be bound");
    let options = Options { masters: vec![0], mount: "/mnt".into(), limits: Limits::default(), also: None };
    let transactions = Arc::new(NoTransactions);
    let server = Server::start(Arc::clone(&fs), transactions, bound, options).expect("the server starts");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    runtime.block_on(async {
        let stream = tokio::net::UnixStream::connect(&socket).await.expect("the socket accepts");
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("the server speaks HTTP/2");
        tokio::spawn(connection);
        for (kind, message) in Parts(data).take(32) {
            call(&mut sender, METHODS[usize::from(kind) % METHODS.len()], message).await;
        }
        call(&mut sender, METHODS[0], &[]).await;
    });
    server.stop();
}
