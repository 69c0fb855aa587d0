//! Where the sockets are for users that see a mount of root's and can't enter the store's directory:
//! `/run/kvfs/ID/control.sock` and `/run/kvfs/ID/kv.sock`. `ID` follows from what every mount of the store
//! shows as its source: it is the SHA-256 of that, so that no store can be given a name with which it takes
//! another one's place.
//!
//! Thread safety: plain functions.

use std::fmt::Write;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// What all daemons share.
pub const BASE: &str = "/run/kvfs";

/// What the kernel shows for users that a namespace has no number for.
const UID_UNMAPPED: u32 = 65534;

/// The directory for the store whose mounts show `source`.
pub fn directory(source: &Path) -> PathBuf {
    let hash = Sha256::digest(source.as_os_str().as_encoded_bytes());
    let name = hash.iter().fold(String::with_capacity(64), |mut name, byte| {
        // Writing to a string does not fail.
        let _ = write!(name, "{byte:02x}");
        name
    });
    Path::new(BASE).join(name)
}

/// The socket `name` for the mounts that show `source`, with the user of its daemon: root, as it is seen
/// here.
///
/// # Errors
/// `NotFound`; `PermissionDenied`: another user than root may write to its directory.
pub fn socket(source: &Path, name: &str) -> io::Result<(PathBuf, u32)> {
    let directory = directory(source);
    let found = std::fs::symlink_metadata(&directory)?;
    if !found.is_dir() || !is_root(found.uid()) || found.mode() & 0o022 != 0 {
        let message = format!("{} is not root's alone", directory.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok((directory.join(name), found.uid()))
}

/// Whether the number is root's. In a user namespace without root (`kvfs txn run` of an ordinary user) the
/// kernel shows root, as all users that are not in it, as one number.
fn is_root(uid: u32) -> bool {
    uid == 0 || (uid == UID_UNMAPPED && is_in_user_namespace())
}

fn is_in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    // In the first namespace it is the one line of all numbers.
    map.split_ascii_whitespace().ne(["0", "0", "4294967295"])
}

/// Whether a user may serve a store whose directory is `owner`'s.
pub fn may_serve(uid: u32, owner: Option<u32>) -> bool {
    uid == 0 || Some(uid) == owner || uid == rustix::process::geteuid().as_raw()
}

/// Refuses a daemon of a user that may not serve the store: others than root, this process's user, and
/// `owner`, the owner of the store's directory. For a client that has connected, before it sends anything.
///
/// # Errors
/// `PermissionDenied`: it is of another user; the kernel does not tell.
pub fn expect_daemon_of(stream: impl AsFd, owner: Option<u32>) -> io::Result<()> {
    let uid = crate::peer_credentials(&stream)?.uid;
    if may_serve(uid, owner) {
        return Ok(());
    }
    let message = format!("the process behind the socket is of user {uid}, which may not serve the store");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn directory_of_a_source_never_changes_and_is_no_other_sources() {
        let empty = "/run/kvfs/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let a = "/run/kvfs/ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
        assert_eq!(directory(Path::new("")), Path::new(empty));
        assert_eq!(directory(Path::new("a")), Path::new(a));
        assert_ne!(directory(Path::new("/srv/store")), directory(Path::new("/srv/store2")));
        // An address has room for 107 bytes.
        assert!(directory(Path::new("a")).join("control.sock").as_os_str().len() <= 107);
    }

    #[test]
    fn daemon_of_this_user_is_taken() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        assert!(expect_daemon_of(&one, None).is_ok());
    }
}
