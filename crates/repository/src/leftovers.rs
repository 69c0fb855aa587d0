//! What commands that were killed have left half-written in a directory.
//!
//! The crate `object_store` writes a file under the name of its object, `#` and a number, and renames it;
//! lists pass over such names.
//!
//! Thread safety: functions. Invariant: no object is removed.

use std::io::{ErrorKind, Result};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

/// Removes what was written last `before` (time since 1970), in `dir` and below.
pub(crate) fn remove(dir: &Path, before: Duration) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            remove(&entry.path(), before)?;
        } else if kind.is_file() && entry.file_name().to_str().is_some_and(is_half_written) {
            match entry.metadata().and_then(|meta| meta.modified()) {
                Ok(time) if time.duration_since(UNIX_EPOCH).is_ok_and(|time| time < before) => {
                    gone(std::fs::remove_file(entry.path()))?;
                }
                looked => gone(looked.map(drop))?,
            }
        }
    }
    Ok(())
}

/// Whether a file of that name is no object yet.
pub(crate) fn is_half_written(name: &str) -> bool {
    let number = name.split_once('#').map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// That it is through meanwhile is as well.
fn gone(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_written_files_go_and_objects_stay() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("chunks/ab")).unwrap();
        let names = ["kvfs-repository", "chunks/ab/x", "chunks/ab/x#1", "chunks/ab/y#17", "chunks/ab/a#b"];
        for name in names {
            std::fs::write(dir.path().join(name), b"x").unwrap();
        }
        let left = || names.map(|name| dir.path().join(name).exists());
        remove(dir.path(), Duration::from_secs(1)).unwrap();
        assert_eq!(left(), [true; 5], "they are too young");
        remove(dir.path(), Duration::from_secs(1 << 40)).unwrap();
        assert_eq!(left(), [true, true, false, false, true]);
    }
}
