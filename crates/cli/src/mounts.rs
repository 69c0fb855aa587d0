//! Which kvfs mount a path lies on, read from the kernel's mount table.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::error::{CliError, Code, Result};

/// File system type in the mount table.
pub(crate) const FS_TYPE: &str = "fuse.kvfs";

/// The same for views of transactions, behind `fuse.`.
pub(crate) const VIEW_SUBTYPE: &str = "kvfs-txn";

/// One mounted store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountedStore {
    pub(crate) dir: PathBuf,
    pub(crate) store: PathBuf,
    /// Options of this mount, separated by commas.
    pub(crate) options: String,
    /// The view of a transaction rather than the main line.
    pub(crate) is_view: bool,
}

/// The mounts of stores that this process can see, in mount order; without views.
pub(crate) fn list() -> Result<Vec<MountedStore>> {
    Ok(list_all()?.into_iter().filter(|mount| !mount.is_view).collect())
}

fn list_all() -> Result<Vec<MountedStore>> {
    let table = Path::new("/proc/self/mountinfo");
    let text = fs::read(table).map_err(|error| CliError::io("read", table, &error))?;
    Ok(text.split(|&b| b == b'\n').filter_map(parse_line).collect())
}

/// `path` without symbolic links and dots, also when its last part is missing or a dead mount.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf> {
    let failed = |error: std::io::Error| CliError::io("resolve", path, &error);
    if let Ok(resolved) = path.canonicalize() {
        return Ok(resolved);
    }
    let absolute = std::path::absolute(path).map_err(failed)?;
    match (absolute.parent().map(Path::canonicalize), absolute.file_name()) {
        (Some(Ok(parent)), Some(name)) => Ok(parent.join(name)),
        _ => Ok(absolute),
    }
}

/// The mount that `path` lies on, if it is one of ours, or a view of one. Asks nothing of the file system at
/// `path`, so it answers for a dead mount too.
pub(crate) fn containing(path: &Path) -> Result<Option<MountedStore>> {
    let resolved = resolve(path)?;
    let mounts = list_all()?;
    Ok(mounts.into_iter().filter(|m| resolved.starts_with(&m.dir)).max_by_key(|m| m.dir.as_os_str().len()))
}

/// As [`containing`], or the error that says that nothing is mounted there.
pub(crate) fn required(path: &Path) -> Result<MountedStore> {
    containing(path)?.ok_or_else(|| {
        CliError::new(Code::NotMounted, format!("{} is not on a mounted kvfs store", path.display()))
    })
}

/// Where `store` is mounted, as far as this process can see.
pub(crate) fn of_store(store: &Path) -> Result<Option<PathBuf>> {
    Ok(list()?.into_iter().find(|mount| mount.store == store).map(|mount| mount.dir))
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`: the dash ends the optional fields.
fn parse_line(line: &[u8]) -> Option<MountedStore> {
    let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let dash = fields.iter().position(|&f| f == b"-")?;
    let (dir, kind, source) = (fields.get(4)?, fields.get(dash + 1)?, fields.get(dash + 2)?);
    let is_view = kind.strip_prefix(b"fuse.") == Some(VIEW_SUBTYPE.as_bytes());
    let options = String::from_utf8_lossy(fields.get(5)?).into_owned();
    (is_view || *kind == FS_TYPE.as_bytes()).then(|| MountedStore {
        dir: unescape(dir),
        store: unescape(source),
        options,
        is_view,
    })
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

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn finds_our_mounts_and_unescapes_them() {
        let line =
            b"91 29 0:52 / /home/me/my\\040mnt rw,nosuid shared:7 - fuse.kvfs /home/me/st\\134ore rw,user_id=0";
        let mount = parse_line(line).expect("is ours");
        assert_eq!(mount.dir, Path::new("/home/me/my mnt"));
        assert_eq!(mount.store.as_os_str().as_bytes(), b"/home/me/st\\ore");
        assert!(mount.options == "rw,nosuid" && !mount.is_view);
        let view = parse_line(b"92 29 0:53 / /mnt rw - fuse.kvfs-txn /store rw").expect("is ours");
        assert!(view.is_view);
        assert_eq!(parse_line(b"36 35 98:0 / / rw - ext4 /dev/root rw"), None);
        assert_eq!(parse_line(b""), None);
    }

    #[test]
    fn missing_names_resolve_through_their_parents() {
        let root = std::env::temp_dir().join(format!("cli-resolve-{}", std::process::id()));
        fs::create_dir_all(root.join("real")).expect("makes directories");
        std::os::unix::fs::symlink("real", root.join("link")).expect("links");
        let base = root.canonicalize().expect("resolves");
        assert_eq!(resolve(&root.join("link/../link/new")).expect("resolves"), base.join("real/new"));
        fs::remove_dir_all(&root).expect("cleans up");
    }
}
