//! Where metrics are served: a Unix socket, or a port of this host alone.
//!
//! Thread safety: values. Invariant: nothing is replaced at the path of a socket but one that no process
//! listens on, and what is removed at the end is what was made.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use kvfs_socket::address::Address;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The user that runs the daemon, and root.
const MODE: u32 = 0o600;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MetricsPlace {
    /// An absolute path.
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl FromStr for MetricsPlace {
    type Err = String;

    /// `unix:PATH` or `ADDRESS:PORT`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let absolute = std::path::absolute(path).ok().filter(|path| path.file_name().is_some());
            return absolute.map(Self::Unix).ok_or_else(|| "the path of a socket follows unix:".to_owned());
        }
        let address: SocketAddr = text
            .parse()
            .map_err(|_| "say unix:PATH, or an address and a port such as 127.0.0.1:9100".to_owned())?;
        if !address.ip().is_loopback() {
            return Err("only addresses of this host alone, such as 127.0.0.1:9100 or [::1]:9100: there is \
                        neither a password nor encryption; for other hosts put a proxy in front"
                .to_owned());
        }
        Ok(Self::Tcp(address))
    }
}

impl std::fmt::Display for MetricsPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// What accepts.
#[derive(Debug)]
pub(super) enum Listener {
    /// Its name goes with it.
    Unix(UnixListener, SocketName),
    Tcp(TcpListener),
}

/// The name of a socket that this process has made.
#[derive(Debug)]
pub(super) struct SocketName {
    path: PathBuf,
    inode: (u64, u64),
}

impl Drop for SocketName {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|found| found == self.inode)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove the socket for metrics");
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

impl MetricsPlace {
    pub(super) fn listen(&self) -> io::Result<Listener> {
        match self {
            Self::Unix(path) => {
                clear(path)?;
                let (listener, name) = bind(path)?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Unix(listener, name))
            }
            Self::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Tcp(listener))
            }
        }
    }
}

/// Removes a socket of this user's that a process has left which is gone.
fn clear(path: &Path) -> io::Result<()> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "its name is no text"));
    };
    let own = rustix::process::geteuid().as_raw();
    let address = match Address::beneath(fs::File::open(directory)?, name, |uid| uid == own) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    match rustix::net::connect(&socket()?, &SocketAddrUnix::new(address.path())?) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        Err(errno) => Err(errno.into()),
        Ok(()) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")),
    }
}

fn bind(path: &Path) -> io::Result<(UnixListener, SocketName)> {
    let socket = socket()?;
    // A socket is bound with the mode of its descriptor, as far as the umask lets it.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(MODE))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(Address::of(path)?.path())?)?;
    let name = SocketName { path: path.to_owned(), inode: inode(path)? };
    rustix::net::listen(&socket, BACKLOG)?;
    Ok((UnixListener::from(socket), name))
}

fn socket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    Ok(rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn places_are_sockets_and_ports_of_this_host() {
        let parse = |text: &str| text.parse::<MetricsPlace>();
        assert_eq!(parse("unix:/run/m.sock"), Ok(MetricsPlace::Unix("/run/m.sock".into())));
        assert!(matches!(parse("unix:m.sock"), Ok(MetricsPlace::Unix(path)) if path.is_absolute()));
        assert_eq!(parse("127.0.0.1:9100"), Ok(MetricsPlace::Tcp(([127, 0, 0, 1], 9100).into())));
        assert!(parse("[::1]:9100").is_ok());
        for (bad, word) in [
            ("unix:", "path"),
            ("unix:/", "path"),
            ("0.0.0.0:9100", "this host alone"),
            ("[::]:9100", "this host alone"),
            ("10.0.0.1:9100", "this host alone"),
            ("localhost:9100", "127.0.0.1:9100"),
            ("9100", "127.0.0.1:9100"),
            ("", "unix:PATH"),
        ] {
            let error = parse(bad).expect_err("is refused");
            assert!(error.contains(word), "{bad}: {error}");
        }
    }

    #[test]
    fn socket_replaces_only_one_that_no_process_listens_on_and_removes_its_own() {
        let dir = std::env::temp_dir().join(format!("kvfs-metrics-place-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("makes a directory");
        let place = MetricsPlace::Unix(dir.join("socket"));
        let MetricsPlace::Unix(path) = &place else { unreachable!() };
        // Left by a process that was killed.
        drop(UnixListener::bind(path).expect("binds"));
        let listener = place.listen().expect("replaces it");
        assert_eq!(fs::metadata(path).expect("is there").permissions().mode() & 0o777, 0o600);
        assert_eq!(place.listen().expect_err("is in use").kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(!path.exists());
        fs::write(path, "mine").expect("writes");
        assert!(place.listen().expect_err("is no socket").to_string().contains("not a socket"));
        fs::remove_file(path).expect("is there still");
        let listener = place.listen().expect("listens");
        fs::remove_file(path).expect("removes");
        fs::write(path, "mine").expect("writes");
        drop(listener);
        assert!(path.exists(), "that is another one's");
        fs::remove_dir_all(&dir).expect("removes it");
    }
}
