//! Clients that say nonsense, too much, too little, or don't listen: they harm themselves only.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kvfs_rpc::client::{ClientError, Code, Range};
use kvfs_rpc::server::Limits;
use tokio::runtime::{self, Runtime};

use crate::world::World;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// An empty SETTINGS frame.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// What such a client lets the server send before it has read it (bytes).
const WINDOW: u32 = 65_535;

/// What proves that the server is well.
fn works(world: &World) {
    let mut store = world.connect();
    store.put("well", b"k", b"v").unwrap();
    assert_eq!(store.get("well", b"k").unwrap().unwrap(), "v");
}

/// Short times, so that the tests need not wait.
fn short_limits() -> Limits {
    let short = Duration::from_millis(100);
    Limits { greeting_time_max: short, request_time_max: short, stall_time_max: short, ..Limits::default() }
}

/// Reads until the server closes the connection.
fn read_to_end(stream: &mut UnixStream) -> usize {
    let mut all = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut all);
    all.len()
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

#[test]
fn malformed_bytes_end_their_connection_and_no_other() {
    let world = World::with(short_limits());
    let seed = std::env::var("KVFS_RPC_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    println!("KVFS_RPC_SEED={seed}");
    let mut random = Random(seed);
    for round in 0..300 {
        let mut stream = UnixStream::connect(world.socket()).unwrap();
        let len = random.next() as usize % 300;
        let mut said = random.bytes(len);
        if round % 3 > 0 {
            said = [PREFACE, SETTINGS, &said].concat();
        }
        if round % 3 == 2 {
            // Frames of known kinds with nonsense in them.
            let len = random.next() as u8 % 40;
            let kind = random.next() as u8 % 10;
            let head = [0, 0, len, kind, random.next() as u8, 0, 0, 0, random.next() as u8 % 4];
            said = [PREFACE, SETTINGS, &head, &random.bytes(usize::from(len))].concat();
        }
        let _ = stream.write_all(&said);
        let _ = stream.shutdown(Shutdown::Write);
        read_to_end(&mut stream);
    }
    let mut http = UnixStream::connect(world.socket()).unwrap();
    http.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert_eq!(read_to_end(&mut http), 0);
    works(&world);
}

#[test]
fn a_connection_that_says_nothing_is_closed_in_time() {
    let world = World::with(short_limits());
    let mut silent = UnixStream::connect(world.socket()).unwrap();
    let mut slow = UnixStream::connect(world.socket()).unwrap();
    slow.write_all(&PREFACE[..7]).unwrap();
    works(&world);
    assert_eq!(read_to_end(&mut silent) + read_to_end(&mut slow), 0);
    works(&world);
}

#[test]
fn half_closed_connection_harms_no_other_client() {
    let world = World::new();
    let mut half = UnixStream::connect(world.socket()).unwrap();
    half.write_all(&[PREFACE, SETTINGS].concat()).unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    read_to_end(&mut half);
    // Nor does one that stays open only in the other direction.
    let deaf = UnixStream::connect(world.socket()).unwrap();
    (&deaf).write_all(&[PREFACE, SETTINGS].concat()).unwrap();
    deaf.shutdown(Shutdown::Read).unwrap();
    let _ = (&deaf).write_all(&[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8].repeat(1000));
    works(&world);
}

#[test]
fn a_user_has_a_bounded_number_of_connections() {
    let world = World::with(Limits { connections_per_user_max: 3, ..Limits::default() });
    let mut kept: Vec<_> = (0..2).map(|_| world.connect()).collect();
    works(&world);
    let idle = UnixStream::connect(world.socket()).unwrap();
    let mut refused = UnixStream::connect(world.socket()).unwrap();
    assert_eq!(read_to_end(&mut refused), 0);
    drop(idle);
    kept[0].put("k", b"k", b"v").unwrap();
    // The place is free again as soon as the server has seen the end.
    while kvfs_rpc::client::blocking::Store::connect_to(&world.socket())
        .and_then(|mut store| store.get("k", b"k"))
        .is_err()
    {
        std::thread::yield_now();
    }
}

/// A request body as a client may send it: some frames, and then perhaps nothing for ever.
struct Said {
    frames: Vec<Bytes>,
    ends: bool,
}

impl Body for Said {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        match self.frames.pop() {
            Some(frame) => Poll::Ready(Some(Ok(Frame::data(frame)))),
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

/// A client that speaks HTTP/2 well, and gRPC as it likes.
fn raw(socket: &Path) -> (Runtime, SendRequest<Said>) {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let sender = runtime.block_on(async {
        let stream = tokio::net::UnixStream::connect(socket).await.unwrap();
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        sender
    });
    (runtime, sender)
}

fn ask(method: &str, said: Said) -> http::Request<Said> {
    http::Request::post(format!("http://kvfs/kvfs.v1.Store/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(said)
        .unwrap()
}

/// The status of an answer that has no content.
fn status<B>(answer: &http::Response<B>) -> i32 {
    let status = answer.headers().get("grpc-status").unwrap();
    status.to_str().unwrap().parse().unwrap()
}

#[test]
fn a_request_that_does_not_come_in_time_is_refused() {
    let world = World::with(short_limits());
    let (runtime, mut sender) = raw(&world.socket());
    // A message of ten bytes of which five come.
    let frames = vec![Bytes::from_static(&[0, 0, 0, 0, 10, 1, 2, 3, 4, 5])];
    let answer = runtime.block_on(sender.send_request(ask("Get", Said { frames, ends: false }))).unwrap();
    assert_eq!(status(&answer), Code::DeadlineExceeded as i32);
    // Nothing at all.
    let answer =
        runtime.block_on(sender.send_request(ask("Put", Said { frames: vec![], ends: false }))).unwrap();
    assert_eq!(status(&answer), Code::DeadlineExceeded as i32);
    works(&world);
}

#[test]
fn malformed_messages_are_refused() {
    let world = World::new();
    let (runtime, mut sender) = raw(&world.socket());
    for said in
        [&[0, 0, 0, 0, 3, 0xff, 0xff, 0xff][..], &[7, 0, 0, 0, 0], &[0, 0, 0], &[], &[1, 0, 0, 0, 1, 0]]
    {
        let frames = vec![Bytes::copy_from_slice(said)];
        let answer = runtime.block_on(sender.send_request(ask("Get", Said { frames, ends: true }))).unwrap();
        assert_ne!(status(&answer), 0, "{said:?}");
    }
    let unknown = ask("Nonsense", Said { frames: vec![], ends: true });
    let answer = runtime.block_on(sender.send_request(unknown)).unwrap();
    assert_eq!(status(&answer), Code::Unimplemented as i32);
    works(&world);
}

#[test]
fn an_oversized_message_is_refused_unread() {
    let world = World::new();
    let (runtime, mut sender) = raw(&world.socket());
    // It claims 4 GiB, and sends 64 MiB of them if it is let.
    let mut frames = vec![Bytes::from(vec![0; 1 << 20]); 64];
    frames.push(Bytes::from_static(&[0, 0xff, 0xff, 0xff, 0xff]));
    let answer = runtime.block_on(sender.send_request(ask("Put", Said { frames, ends: true }))).unwrap();
    assert_eq!(status(&answer), Code::OutOfRange as i32);
    works(&world);
}

#[test]
fn bytes_in_work_are_bounded_for_each_user() {
    let world = World::with(Limits { bytes_per_user_max: 1 << 20, ..Limits::default() });
    let (runtime, mut sender) = raw(&world.socket());
    let mut frames = vec![Bytes::from(vec![0; 1 << 20]); 2];
    frames.push(Bytes::from_static(&[0, 0, 0x20, 0, 0]));
    let answer = runtime.block_on(sender.send_request(ask("Put", Said { frames, ends: true }))).unwrap();
    assert_eq!(status(&answer), Code::ResourceExhausted as i32);
    works(&world);
}

#[test]
fn headers_of_requests_that_do_not_come_count() {
    let world = World::with(Limits { bytes_per_user_max: 64 << 10, ..Limits::default() });
    let (runtime, mut sender) = raw(&world.socket());
    let mut send = || {
        let mut request = ask("Put", Said { frames: vec![], ends: false });
        let padding = "x".repeat(8 << 10);
        request.headers_mut().insert("x-padding", padding.parse().unwrap());
        sender.send_request(request)
    };
    let _waiting: Vec<_> = (0..7).map(|_| send()).collect();
    let answer = runtime.block_on(send()).unwrap();
    assert_eq!(status(&answer), Code::ResourceExhausted as i32);
}

#[test]
fn untaken_answers_count_against_their_user_and_are_given_back() {
    let world = World::with(Limits { bytes_per_user_max: 3 << 20, ..Limits::default() });
    let mut store = world.connect();
    store.put("k", b"k", &vec![0; 1 << 20]).unwrap();
    let (runtime, mut sender) = raw(&world.socket());
    let message = [&[0, 0, 0, 0, 6][..], b"\x0a\x01k\x12\x01k"].concat();
    let get = || ask("Get", Said { frames: vec![Bytes::from(message.clone())], ends: true });
    // Answers are kept, and not read.
    let answers: Vec<_> = (0..4).map(|_| runtime.block_on(sender.send_request(get())).unwrap()).collect();
    assert!(answers[..2].iter().all(|answer| answer.headers().get("grpc-status").is_none()));
    assert_eq!(status(&answers[3]), Code::ResourceExhausted as i32);
    drop(answers);
    drop((sender, runtime));
    while store.get("k", b"k").is_err() {
        std::thread::yield_now();
    }
}

/// Keys with values of so many bytes in all.
fn fill(world: &World, mib: usize) {
    let mut store = world.connect().map(kvfs_rpc::client::Client::asynchronous);
    for number in 0..mib * 16 {
        store.put("big", format!("{number:06}").as_bytes(), &vec![7; 64 << 10]).unwrap();
    }
}

#[test]
fn a_reader_that_stops_reading_holds_back_only_itself() {
    let world = World::with(short_limits());
    fill(&world, 16);
    let mut store = world.connect();
    let mut scan = store.scan("big", Range::default()).unwrap();
    scan.next().unwrap().unwrap();
    // Others go on meanwhile, also on a connection of the same user.
    works(&world);
    let mut others = world.connect();
    assert_eq!(others.scan("big", Range::default()).unwrap().count(), 256);
    // The server has given the moment back, and says so behind what was under way.
    wait_for_stall(&world);
    let rest: Vec<_> = scan.collect();
    let last = rest.into_iter().last().unwrap().map(|entry| entry.key).unwrap_err();
    assert!(matches!(&last, ClientError::Refused(status) if status.code() == Code::Aborted), "{last}");
    assert_eq!(store.get("big", b"000001").unwrap().unwrap().len(), 64 << 10, "the connection is whole");
}

/// Lets pass what a scan waits for its reader at most, by the clock of the server.
fn wait_for_stall(world: &World) {
    let mut stalled = world.connect();
    let mut scan = stalled.scan("big", Range::default()).unwrap();
    scan.next().unwrap().unwrap();
    // A request that never comes takes as long.
    for _ in 0..4 {
        let (runtime, mut sender) = raw(&world.socket());
        let said = Said { frames: vec![], ends: false };
        runtime.block_on(sender.send_request(ask("Get", said))).unwrap();
    }
}

#[test]
fn a_scan_has_a_bounded_time_and_a_deadline() {
    let world = World::with(Limits { scan_time_max: Duration::from_millis(150), ..Limits::default() });
    fill(&world, 16);
    let mut store = world.connect();
    let mut scan = store.scan("big", Range::default()).unwrap();
    scan.next().unwrap().unwrap();
    let mut late = store.map(|client| client.within(Duration::from_millis(50)));
    let mut deadline = late.scan("big", Range::default()).unwrap();
    deadline.next().unwrap().unwrap();
    std::thread::park_timeout(Duration::from_millis(400));
    let code = |scan: kvfs_rpc::client::blocking::Scan| {
        scan.last().unwrap().map(|entry| entry.key).unwrap_err().code().unwrap()
    };
    assert_eq!((code(deadline), code(scan)), (Code::DeadlineExceeded, Code::Aborted));
    works(&world);
}

#[test]
fn a_deadline_ends_a_wait_for_a_lock() {
    let world = World::new();
    let mut store = world.connect();
    let mut holder = store.begin(kvfs_rpc::client::BeginOptions::default()).unwrap();
    holder.put("k", b"k", b"1").unwrap();
    let mut other = world.connect();
    let mut txn = other.begin(kvfs_rpc::client::BeginOptions::default()).unwrap();
    let id = txn.id();
    let mut impatient = txn.map(|client| client.within(Duration::from_millis(30)));
    // More than there are threads: a waiting call takes none.
    for _ in 0..20 {
        assert_eq!(impatient.put("k", b"k", b"2").unwrap_err().code(), Some(Code::DeadlineExceeded));
    }
    holder.abort().unwrap();
    txn.put("k", b"k", b"2").unwrap();
    txn.commit().unwrap();
    assert_eq!(store.get("k", b"k").unwrap().unwrap(), "2");
    assert_eq!(id, txn.id());
}

#[test]
fn answers_not_taken_in_time_end_their_connection() {
    let world = World::with(Limits { bytes_per_user_max: 3 << 20, ..short_limits() });
    let mut store = world.connect();
    store.put("k", b"k", &vec![0; 1 << 20]).unwrap();
    let (runtime, mut sender) = raw(&world.socket());
    let message = [&[0, 0, 0, 0, 6][..], b"\x0a\x01k\x12\x01k"].concat();
    let get = || ask("Get", Said { frames: vec![Bytes::from(message.clone())], ends: true });
    let answers: Vec<_> = (0..2).map(|_| runtime.block_on(sender.send_request(get())).unwrap()).collect();
    // The client keeps its connection and takes nothing; what it held comes back to its user.
    let mut other = world.connect();
    while other.get("k", b"k").is_err() || store.get("k", b"k").is_err() {
        std::thread::yield_now();
    }
    let refused = runtime.block_on(sender.send_request(get()));
    assert!(refused.is_err(), "the connection is closed");
    drop(answers);
}

#[track_caller]
fn is_refused(scan: Result<Option<kvfs_rpc::proto::KeyValue>, ClientError>, word: &str) {
    let error = scan.map(drop).unwrap_err();
    let is_exhausted =
        matches!(&error, ClientError::Refused(status) if status.code() == Code::ResourceExhausted);
    assert!(is_exhausted && error.to_string().contains(word), "{error}");
}

#[test]
fn stalled_scans_count_until_their_answers_are_dropped() {
    let world = World::with(Limits { scans_per_user_max: 3, ..short_limits() });
    fill(&world, 16);
    let mut store = world.connect();
    let mut open: Vec<_> = (0..2).map(|_| store.scan("big", Range::default()).unwrap()).collect();
    for scan in &mut open {
        scan.next().unwrap().unwrap();
    }
    wait_for_stall(&world);
    let mut other = world.connect();
    let third = loop {
        if let Ok(mut scan) = other.scan("big", Range::default())
            && scan.next().is_some_and(|entry| entry.is_ok())
        {
            break scan;
        }
    };
    let mut more = world.connect();
    is_refused(
        more.scan("big", Range::default()).and_then(|mut scan| scan.next().transpose()),
        "too many scans",
    );
    drop((open, third));
}

#[test]
fn pages_of_scans_count_against_their_user() {
    let world = World::with(Limits { bytes_per_user_max: 5 << 20, ..Limits::default() });
    let mut store = world.connect();
    for key in 0..8_u8 {
        store.put("big", &[key], &vec![0; 1 << 20]).unwrap();
    }
    let mut scan = store.scan("big", Range::default()).unwrap();
    scan.next().unwrap().unwrap();
    let mut other = world.connect();
    is_refused(
        other.scan("big", Range::default()).and_then(|mut scan| scan.next().transpose()),
        "bytes of answers",
    );
    drop((scan, store));
    while other
        .scan("big", Range::default())
        .is_ok_and(|mut scan| scan.next().is_none_or(|entry| entry.is_err()))
    {
        std::thread::yield_now();
    }
}

#[test]
fn scans_of_a_user_are_bounded() {
    let world = World::with(Limits { scans_per_user_max: 2, ..Limits::default() });
    fill(&world, 16);
    let mut store = world.connect();
    let mut open: Vec<_> = (0..2).map(|_| store.scan("big", Range::default()).unwrap()).collect();
    for scan in &mut open {
        scan.next().unwrap().unwrap();
    }
    let mut other = world.connect();
    let refused = other.scan("big", Range::default()).and_then(|mut scan| scan.next().transpose());
    is_refused(refused, "too many scans");
    drop(open);
    drop(store);
    while other.scan("big", Range::default()).map(Iterator::count).is_err() {
        std::thread::yield_now();
    }
}
