//! A network between clients and a server on this machine: what clients send arrives later.
//!
//! Purpose: one answer takes the delay longer, as with a server that is so far away; bytes that follow one
//! another closely wait together, so that no throughput is lost but by waiting.
//!
//! Thread safety: each value belongs to one thread; connections have threads of their own, which end with
//! them.

use anyhow::Result;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const CHUNK_BYTES: usize = 256 << 10;
/// What may be under way of one connection.
const CHUNKS_MAX: usize = 256;

/// See the module.
pub(crate) struct Delay {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    listening: Option<JoinHandle<()>>,
}

impl Delay {
    /// Between clients that connect to [`Delay::address`] and `server`.
    pub(crate) fn new(server: SocketAddr, delay: Duration) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let (address, is_over) = (listener.local_addr()?, Arc::new(AtomicBool::new(false)));
        let ends = Arc::clone(&is_over);
        let listening = thread::spawn(move || {
            for client in listener.incoming() {
                if ends.load(Ordering::Acquire) {
                    return;
                }
                // A client that is gone again asks for nothing.
                let Ok(client) = client else { continue };
                thread::spawn(move || {
                    // The client sees its connection end, and knows what to do.
                    let _ = connect(client, server, delay);
                });
            }
        });
        Ok(Self { address, is_over, listening: Some(listening) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // It waits for a connection.
        let _ = TcpStream::connect(self.address);
        if let Some(listening) = self.listening.take() {
            let _ = listening.join();
        }
    }
}

/// Serves one connection until both sides have closed it.
fn connect(client: TcpStream, server: SocketAddr, delay: Duration) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (send, receive) = mpsc::sync_channel::<(Instant, Vec<u8>)>(CHUNKS_MAX);
    let mut from_client = client.try_clone()?;
    thread::spawn(move || {
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Ok(length @ 1..) = from_client.read(&mut buffer) {
            if send.send((Instant::now() + delay, buffer[..length].to_vec())).is_err() {
                return;
            }
        }
    });
    let mut to_server = server.try_clone()?;
    thread::spawn(move || {
        for (due, bytes) in receive {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to_server.write_all(&bytes).is_err() {
                return;
            }
        }
        let _ = to_server.shutdown(Shutdown::Write);
    });
    let (mut from_server, mut to_client) = (server, client);
    let answered = io::copy(&mut from_server, &mut to_client);
    to_client.shutdown(Shutdown::Both)?;
    answered.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_takes_the_delay_longer_and_bytes_come_in_order() {
        let echo = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let server = echo.local_addr().expect("bound");
        thread::spawn(move || {
            let (mut client, _) = echo.accept().expect("a client");
            let mut back = client.try_clone().expect("cloned");
            io::copy(&mut client, &mut back)
        });
        let delay = Duration::from_millis(20);
        let network = Delay::new(server, delay).expect("listening");
        let mut client = TcpStream::connect(network.address()).expect("connected");
        let sent: Vec<u8> = (0..3 * CHUNK_BYTES).map(|at| (at % 251) as u8).collect();
        let start = Instant::now();
        let mut writing = client.try_clone().expect("cloned");
        let bytes = sent.clone();
        thread::spawn(move || writing.write_all(&bytes));
        let mut answer = vec![0; sent.len()];
        client.read_exact(&mut answer).expect("an answer");
        assert!(answer == sent && start.elapsed() >= delay);
    }
}
