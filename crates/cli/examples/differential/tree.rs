//! Whole trees: compared, and removed.

use std::fmt::Write;
use std::fs as std_fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{self, AtFlags, CWD};

use crate::Failed;
use crate::actor::xattr_names;
use crate::outcome::Summary;

/// How much is read at each end of a file: no operation writes farther from both.
const CONTENT_LEN_MAX: u64 = 1 << 20;

/// A hash over both ends of a file: one of 2⁴⁰ bytes is mostly a hole.
fn content_hash(path: &Path) -> Result<u64, Failed> {
    let file = std_fs::File::open(path)?;
    let size = file.metadata()?.len();
    let mut piece = vec![0; size.min(CONTENT_LEN_MAX) as usize];
    let mut hash = 0_u64;
    for offset in [0, size.saturating_sub(CONTENT_LEN_MAX)] {
        file.read_exact_at(&mut piece, offset)?;
        let values = piece.iter().map(|byte| u64::from(*byte) + 1);
        hash = values.fold(hash, |sum, value| sum.wrapping_mul(31).wrapping_add(value));
    }
    Ok(hash)
}

/// Everything that can be seen of `path`, but for what is below it.
fn describe(path: &Path) -> Result<String, Failed> {
    let stat = fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    let mut text = format!("{:?}", Summary::of(&stat));
    let metadata = std_fs::symlink_metadata(path)?;
    if metadata.is_symlink() {
        write!(text, " -> {}", std_fs::read_link(path)?.display())?;
    } else if metadata.is_file() {
        write!(text, " content {:x}", content_hash(path)?)?;
    }
    for name in xattr_names(path)? {
        let mut value = vec![0; 1 << 16];
        // An error is as much of an answer: the kernel refuses to show capabilities that it does not
        // understand.
        let value = fs::lgetxattr(path, &*name, &mut value).map(|count| &value[..count]);
        write!(text, " {}={value:?}", String::from_utf8_lossy(&name))?;
    }
    Ok(text)
}

fn names(dir: &Path) -> io::Result<Vec<std::ffi::OsString>> {
    let mut names =
        std_fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Where the trees differ first. A tree may have removed itself.
pub(crate) fn compare(one: &Path, other: &Path) -> Result<Option<String>, Failed> {
    let is_there = |path| std_fs::symlink_metadata(path).is_ok();
    let are_there = (is_there(one), is_there(other));
    if are_there != (true, true) {
        let text = || format!("{}\n    one, other are there: {are_there:?}", one.display());
        return Ok((are_there != (false, false)).then(text));
    }
    let (got, wanted) = (describe(one)?, describe(other)?);
    if got != wanted {
        return Ok(Some(format!("{}\n    one:   {got}\n    other: {wanted}", one.display())));
    }
    if !std_fs::symlink_metadata(one)?.is_dir() {
        return Ok(None);
    }
    let (got, wanted) = (names(one)?, names(other)?);
    if got != wanted {
        return Ok(Some(format!("{}\n    one:   {got:?}\n    other: {wanted:?}", one.display())));
    }
    for name in got {
        if let Some(text) = compare(&one.join(&name), &other.join(&name))? {
            return Ok(Some(text));
        }
    }
    Ok(None)
}

/// Removes what is at `path`, if anything is.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match std_fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            let name = String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned();
            Err(io::Error::other(format!("cannot remove {name}: {error}")))
        }
        _ => Ok(()),
    }
}
