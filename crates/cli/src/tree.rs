//! All that is below a directory.
//!
//! Thread safety: functions without state. Invariants: a directory is visited before what is in it, so that
//! what others make there meanwhile is either listed or has what the visit gave; no symbolic link is followed
//! but one that is the top itself, and other mounts are left alone. That holds whatever is replaced or moved
//! meanwhile: directories are opened below the descriptor of the top, and visits go by descriptors.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use crate::error::{CliError, Result};

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What is visited.
pub(crate) struct Found<'a> {
    /// As the user would write it.
    pub(crate) path: &'a Path,
    /// For calls that follow no link at its end: whatever becomes of the names above it, this is in the same
    /// directory.
    pub(crate) at: &'a Path,
    pub(crate) metadata: &'a Metadata,
}

/// Visits `top` and everything below it on the same mount. What is gone meanwhile is left out; `visit` says
/// false of it.
///
/// # Errors
/// `top` is not there; something can't be listed; what `visit` says.
pub(crate) fn walk(top: &Path, visit: &mut dyn FnMut(&Found<'_>) -> Result<bool>) -> Result<()> {
    let failed = |error| CliError::io("look at", top, &error);
    let is_link = top.symlink_metadata().map_err(failed)?.is_symlink();
    let top = if is_link { top.canonicalize().map_err(failed)? } else { top.to_owned() };
    let metadata = top.symlink_metadata().map_err(failed)?;
    if !metadata.is_dir() {
        return visit(&Found { path: &top, at: &top, metadata: &metadata }).map(drop);
    }
    let opened = openat(CWD, &top, DIRECTORY, Mode::empty()).map_err(|error| failed(error.into()))?;
    let at = inside(opened.as_fd(), ".".as_ref());
    let metadata = at.metadata().map_err(failed)?;
    let mount = metadata.dev();
    let mut directories = Vec::new();
    if visit(&Found { path: &top, at: &at, metadata: &metadata })? {
        directories.push(PathBuf::new());
    }
    while let Some(below) = directories.pop() {
        let directory = top.join(&below);
        let listed = |error| CliError::io("list", &directory, &error);
        let Some(opened) = open_below(&opened, &below).map_err(|error| listed(error.into()))? else {
            continue;
        };
        for entry in inside(opened.as_fd(), ".".as_ref()).read_dir().map_err(listed)? {
            let name = entry.map_err(listed)?.file_name();
            let (path, at) = (directory.join(&name), inside(opened.as_fd(), &name));
            let metadata = match at.symlink_metadata() {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                found => found.map_err(|error| CliError::io("look at", &path, &error))?,
            };
            let found = Found { path: &path, at: &at, metadata: &metadata };
            if metadata.dev() == mount && visit(&found)? && metadata.is_dir() {
                directories.push(below.join(&name));
            }
        }
    }
    Ok(())
}

/// A path to what is in an open directory.
fn inside(directory: BorrowedFd<'_>, name: &OsStr) -> PathBuf {
    Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name)
}

/// `None`: there is no such directory any more, or something else in the place of a part of its path.
fn open_below(top: &OwnedFd, below: &Path) -> rustix::io::Result<Option<OwnedFd>> {
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    loop {
        return match openat2(top, below, DIRECTORY, Mode::empty(), resolve) {
            // A name above it has changed in the middle of that.
            Err(Errno::AGAIN) => continue,
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => Ok(None),
            opened => opened.map(Some),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A directory of its own with `tree/inner` and `outside/secret`.
    fn make(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("kvfs-tree-{name}-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("tree/inner")).expect("creates");
        std::fs::create_dir(dir.join("outside")).expect("creates");
        std::fs::write(dir.join("outside/secret"), "").expect("creates");
        dir
    }

    fn name_of(path: &Path) -> String {
        path.file_name().expect("a name").to_str().expect("is UTF-8").to_owned()
    }

    #[test]
    fn a_link_at_the_top_is_followed_and_those_below_are_not() {
        let dir = make("links");
        let link = dir.join("link");
        symlink(dir.join("outside"), dir.join("tree/inner/away")).expect("links");
        symlink("tree", &link).expect("links");
        let mut names = Vec::new();
        let walked = walk(&link, &mut |found| {
            names.push(name_of(found.path));
            Ok(true)
        });
        std::fs::remove_dir_all(&dir).expect("removes");
        walked.expect("walks");
        assert_eq!(names, ["tree", "inner", "away"]);
    }

    #[test]
    fn directories_replaced_by_links_on_the_way_lead_nowhere() {
        for replaced_at in ["inner", "deeper", "file"] {
            let dir = make(replaced_at);
            std::fs::create_dir(dir.join("tree/inner/deeper")).expect("creates");
            std::fs::write(dir.join("tree/inner/deeper/file"), "").expect("creates");
            std::fs::create_dir(dir.join("outside/deeper")).expect("creates");
            std::fs::write(dir.join("outside/deeper/file"), "").expect("creates");
            let outside = std::fs::metadata(dir.join("outside/deeper/file")).expect("is there").ino();
            let mut names = Vec::new();
            let walked = walk(&dir.join("tree"), &mut |found| {
                names.push(name_of(found.path));
                if name_of(found.path) == replaced_at {
                    std::fs::rename(dir.join("tree/inner"), dir.join("moved")).expect("moves");
                    symlink(dir.join("outside"), dir.join("tree/inner")).expect("links");
                }
                assert_ne!(found.at.symlink_metadata().expect("is there").ino(), outside);
                Ok(true)
            });
            std::fs::remove_dir_all(&dir).expect("removes");
            walked.expect("walks");
            let visited = ["tree", "inner", "deeper", "file"];
            let until = visited.iter().position(|name| *name == replaced_at).expect("is one of them");
            assert_eq!(names, visited[..=until]);
        }
    }
}
