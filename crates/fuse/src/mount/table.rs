//! What is mounted where.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;

/// What a directory is, as far as mounting is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PointState {
    /// Not a mount point (or not there).
    Free,
    /// A mount point; its file system type and source.
    Mounted {
        /// For instance `fuse.kvfs`.
        fs_type: String,
        /// What was mounted.
        source: String,
    },
    /// A FUSE mount whose daemon has died.
    Stale,
}

/// Looks at `point`; the mount on top counts.
pub fn state(point: &Path) -> PointState {
    // Attributes of the root may be cached for long after the daemon has died; figures of the file system
    // never are. (A daemon that was killed in the middle of the question: ECONNABORTED.)
    if let Err(Errno::NOTCONN | Errno::CONNABORTED) = rustix::fs::statfs(point) {
        return PointState::Stale;
    }
    let Ok(path) = point.canonicalize() else { return PointState::Free };
    let Ok(table) = fs::read("/proc/self/mountinfo") else { return PointState::Free };
    let table = String::from_utf8_lossy(&table);
    let mounted = table.lines().rev().find_map(|line| {
        let (head, tail) = line.split_once(" - ")?;
        let on = unescape(head.split(' ').nth(4)?);
        if on != path.to_string_lossy() {
            return None;
        }
        let mut fields = tail.split(' ');
        Some(PointState::Mounted { fs_type: fields.next()?.to_owned(), source: unescape(fields.next()?) })
    });
    mounted.unwrap_or(PointState::Free)
}

/// Undoes the octal escapes of mountinfo.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Raises (or lowers) how far the kernel reads ahead on the mount at `point`. FUSE itself can't ask for more
/// than the kernel's default of 128 KiB.
///
/// # Errors
/// Needs root, and `/sys`.
pub fn set_read_ahead(point: &Path, bytes: u32) -> io::Result<()> {
    let device = fs::metadata(point)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), (bytes / 1024).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octal_escapes() {
        assert_eq!(unescape("/a\\040b\\134c"), "/a b\\c");
        assert_eq!(unescape("/a\\"), "/a\\");
    }

    #[test]
    fn the_root_is_mounted_and_a_plain_directory_is_not() {
        assert!(
            matches!(state(Path::new("/proc")), PointState::Mounted { fs_type, .. } if fs_type == "proc")
        );
        assert_eq!(state(Path::new("/proc/self")), PointState::Free);
        assert_eq!(state(Path::new("/nowhere/at/all")), PointState::Free);
    }
}
