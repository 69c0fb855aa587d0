//! Connecting to a daemon that may accept nothing any more.
//!
//! Thread safety: a plain function.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// A daemon that accepts none of the connections that wait is given this time.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Connects to the socket at `path`.
///
/// # Errors
/// There is none, or no process listens there; `TimedOut`: as many connections wait as may, and the process
/// that listens accepts none of them.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    connect_within(path, CONNECT_TIME_MAX)
}

fn connect_within(path: &Path, time_max: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(time_max))?;
    match retry_on_intr(|| rustix::net::connect(&socket, &address)) {
        Ok(()) => {}
        Err(Errno::AGAIN) => {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it accepts no connection"));
        }
        Err(errno) => return Err(errno.into()),
    }
    set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn connect_to_a_full_backlog_ends_in_time() {
        let path = std::env::temp_dir().join(format!("socket-connect-{}", std::process::id()));
        let listener = UnixListener::bind(&path).expect("binds");
        rustix::net::listen(&listener, 1).expect("listens");
        let time_max = Duration::from_millis(50);
        let mut waiting = Vec::new();
        let error = loop {
            assert!(waiting.len() < 10, "the backlog is short");
            match connect_within(&path, time_max) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert_eq!(waiting[0].write_timeout().expect("is known"), None);
        listener.accept().expect("accepts");
        connect_within(&path, time_max).expect("there is place again");
        std::fs::remove_file(&path).expect("cleans up");
        assert_eq!(connect(&path).expect_err("is gone").kind(), io::ErrorKind::NotFound);
    }
}
