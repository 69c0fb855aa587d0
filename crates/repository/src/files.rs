//! The objects of a directory.
//!
//! Thread safety: functions. Invariant: a file that can't be looked at is an error, and is never left out.

use std::io::{Error, ErrorKind};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use crate::error::{RepositoryError, Result};
use crate::leftovers::is_half_written;

/// Calls `each` with the name of every object below `dir`, and when it was written (time since 1970). A
/// directory that is not there has none.
pub(crate) fn list(dir: &Path, each: &mut dyn FnMut(&str, Duration) -> Result<()>) -> Result<()> {
    walk(dir, "", each)
}

fn walk(dir: &Path, prefix: &str, each: &mut dyn FnMut(&str, Duration) -> Result<()>) -> Result<()> {
    let Some(entries) = there(dir, std::fs::read_dir(dir))? else { return Ok(()) };
    for entry in entries {
        let path = entry.map_err(|error| failed(dir, &error))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if is_half_written(name) {
            continue;
        }
        // One that has gone meanwhile is none.
        let Some(meta) = there(&path, std::fs::metadata(&path))? else { continue };
        let name = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
        if meta.is_dir() {
            walk(&path, &name, each)?;
        } else if meta.is_file() {
            let written = meta.modified().map_err(|error| failed(&path, &error))?;
            each(&name, written.duration_since(UNIX_EPOCH).unwrap_or_default())?;
        }
    }
    Ok(())
}

fn there<T>(path: &Path, looked: std::io::Result<T>) -> Result<Option<T>> {
    match looked {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(path, &error)),
    }
}

fn failed(path: &Path, error: &Error) -> RepositoryError {
    RepositoryError::Machine(format!("cannot look at {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_listed_and_one_that_cannot_be_looked_at_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("chunks/ab")).unwrap();
        for name in ["kvfs-repository", "chunks/ab/x", "chunks/ab/x#1"] {
            std::fs::write(dir.path().join(name), b"x").unwrap();
        }
        let listed = |dir: &Path| {
            let mut names = Vec::new();
            list(dir, &mut |name, written| {
                assert!(written > Duration::from_hours(24));
                names.push(name.to_owned());
                Ok(())
            })
            .map(|()| {
                names.sort();
                names
            })
        };
        assert_eq!(listed(dir.path()).unwrap(), ["chunks/ab/x", "kvfs-repository"]);
        assert_eq!(listed(&dir.path().join("chunks")).unwrap(), ["ab/x"]);
        assert!(listed(&dir.path().join("snapshots")).unwrap().is_empty());
        std::os::unix::fs::symlink("circle", dir.path().join("circle")).unwrap();
        let error = listed(dir.path()).unwrap_err().to_string();
        assert!(error.contains("/circle: "), "{error}");
    }
}
