//! What is mounted where.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::io::Errno;

/// Where the kernel shows it.
pub const MOUNT_TABLE: &str = "/proc/self/mountinfo";

/// One mount that this process can see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Number of this mount; `statx` tells it of a path.
    pub id: u64,
    /// Device number of the file system: major, minor.
    pub device: (u32, u32),
    /// What of the file system is shown: a path from its root.
    pub root: PathBuf,
    /// Where.
    pub point: PathBuf,
    /// For instance `fuse.kvfs`.
    pub fs_type: String,
    /// What was mounted.
    pub source: PathBuf,
    /// Options of this mount, separated by commas.
    pub options: String,
    /// Those of its file system, whichever mount shows it.
    pub fs_options: String,
}

/// Opens what `path` leads to now, for reference only. The mount table has paths without symbolic links; a
/// link that has come into one since is not followed.
///
/// # Errors
/// There is nothing, or a symbolic link on the way.
pub fn open_place(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(CWD, path, flags, Mode::empty(), resolve)?)
}

impl Mount {
    /// Opens its root, for reference only; `None`: its path does not lead to it, because something lies on
    /// top, or the directories above can't be passed.
    pub fn open(&self) -> Option<OwnedFd> {
        let opened = open_place(&self.point).ok()?;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(&opened, "", flags, StatxFlags::MNT_ID).ok()?;
        (found.stx_mnt_id == self.id).then_some(opened)
    }

    /// All options, separated by commas: those of the file system first.
    pub fn all_options(&self) -> String {
        format!("{},{}", self.fs_options, self.options)
    }
}

/// The mount table, oldest mount first. Asks nothing of the file systems in it.
///
/// # Errors
/// There is no `/proc`.
pub fn table() -> io::Result<Vec<Mount>> {
    table_in(Path::new(MOUNT_TABLE))
}

/// As [`table`], as the process sees it whose mount table this is (`/proc/PID/mountinfo`).
///
/// # Errors
/// It can't be read.
pub fn table_in(path: &Path) -> io::Result<Vec<Mount>> {
    let text = fs::read(path)?;
    Ok(text.split(|&b| b == b'\n').filter_map(parse_line).collect())
}

/// The names on the ways from roots of FUSE file systems to what is mounted inside of them, as this process
/// sees it: the kernel detaches that where it is told to forget one of them.
pub(crate) fn names_above_mounts() -> HashSet<Vec<u8>> {
    // Without a table nothing is known to be there.
    names_above(&table().unwrap_or_default())
}

fn names_above(table: &[Mount]) -> HashSet<Vec<u8>> {
    let mut names = HashSet::new();
    for outer in table.iter().filter(|mount| mount.fs_type == "fuse" || mount.fs_type.starts_with("fuse.")) {
        let inside = table.iter().filter_map(|mount| mount.point.strip_prefix(&outer.point).ok());
        for way in inside.filter(|way| !way.as_os_str().is_empty()) {
            // Of a bind mount also the names above what it shows.
            let parts = outer.root.components().chain(way.components());
            names.extend(parts.map(|part| part.as_os_str().as_bytes().to_vec()));
        }
    }
    names
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`: the dash ends the optional fields.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let dash = fields.iter().position(|&f| f == b"-")?;
    let text = |at: usize| Some(String::from_utf8_lossy(fields.get(at)?).into_owned());
    let device = text(2)?;
    let (major, minor) = device.split_once(':')?;
    Some(Mount {
        id: text(0)?.parse().ok()?,
        device: (major.parse().ok()?, minor.parse().ok()?),
        root: unescape(fields.get(3)?),
        point: unescape(fields.get(4)?),
        fs_type: text(dash + 1)?,
        source: unescape(fields.get(dash + 2)?),
        options: text(5)?,
        fs_options: text(dash + 3)?,
    })
}

/// The mount on top of `point`.
///
/// # Errors
/// The table can't be read.
pub fn on_top_of(point: &Path) -> io::Result<Option<Mount>> {
    Ok(table()?.into_iter().rfind(|mount| mount.point == point))
}

/// The kernel writes blanks and backslashes as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|_| byte == b'\\').unwrap_or_default();
        let octal =
            digits.iter().try_fold(0u32, |n, d| (d & !7 == b'0').then(|| n * 8 + u32::from(d - b'0')));
        if let Some(value) = octal.filter(|_| !digits.is_empty()) {
            out.push(value as u8);
            rest = &tail[3..];
        } else {
            out.push(byte);
            rest = tail;
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// What a directory is, as far as mounting is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PointState {
    /// Not a mount point (or not there).
    Free,
    /// A mount point; what is on top of it.
    Mounted(Mount),
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
    let Ok(table) = table() else { return PointState::Free };
    let on_top = table.into_iter().rev().find(|mount| mount.point == path);
    on_top.map_or(PointState::Free, PointState::Mounted)
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
    fn lines_are_taken_apart_and_unescaped() {
        let line =
            b"91 29 0:52 / /home/me/my\\040mnt rw,nosuid shared:7 - fuse.kvfs /home/me/st\\134ore rw,user_id=0";
        let mount = parse_line(line).expect("is a line");
        assert_eq!(mount.point, Path::new("/home/me/my mnt"));
        assert_eq!(mount.source, Path::new("/home/me/st\\ore"));
        assert_eq!((&*mount.fs_type, &*mount.options), ("fuse.kvfs", "rw,nosuid"));
        assert_eq!(mount.all_options(), "rw,user_id=0,rw,nosuid");
        assert_eq!((mount.id, mount.device, &*mount.root), (91, (0, 52), Path::new("/")));
        assert_eq!(parse_line(b""), None);
    }

    #[test]
    fn names_above_what_is_mounted_inside_of_fuse_are_found() {
        let lines = [
            "1 0 8:1 / / rw - ext4 dev rw",
            "2 1 0:52 / /mnt rw - fuse.kvfs /store rw",
            "3 2 0:53 / /mnt/a/b rw - tmpfs tmpfs rw",
            "4 1 0:52 /deep/part /bound rw - fuse.kvfs /store rw",
            "5 4 0:53 / /bound/c rw - tmpfs tmpfs rw",
            "6 1 0:54 / /mntx/d rw - tmpfs tmpfs rw",
        ];
        let table: Vec<_> = lines.iter().filter_map(|line| parse_line(line.as_bytes())).collect();
        let names = names_above(&table);
        let found = |name: &str| names.contains(name.as_bytes());
        assert!(["a", "b", "deep", "part", "c"].into_iter().all(found));
        assert!(!["mnt", "bound", "mntx", "d"].into_iter().any(found));
    }

    #[test]
    fn names_that_are_no_text_stay_apart() {
        let point = |name: &[u8]| parse_line(&[b"1 2 0:5 / /", name, b" rw - ext4 dev rw"].concat());
        let (one, other) = (point(b"\xff").expect("is a line"), point(b"\xfe").expect("is a line"));
        assert_ne!(one.point, other.point);
        assert_eq!(unescape(b"/a\\"), Path::new("/a\\"));
        assert_eq!(unescape(b"/a\\9x"), Path::new("/a\\9x"));
    }

    #[test]
    fn the_root_is_mounted_and_a_plain_directory_is_not() {
        assert!(matches!(state(Path::new("/proc")), PointState::Mounted(mount) if mount.fs_type == "proc"));
        assert_eq!(state(Path::new("/proc/self")), PointState::Free);
        assert_eq!(state(Path::new("/nowhere/at/all")), PointState::Free);
    }
}
