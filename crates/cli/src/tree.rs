//! All that is below a directory.
//!
//! Thread safety: functions without state. Invariants: a directory is visited before what is in it, so that what others make there
//! meanwhile is either listed or has what the visit gave; symbolic links are not followed, and other mounts are left alone.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::{CliError, Result};

/// Visits `top` and everything below it on the same mount. What is gone meanwhile is left out; `visit` says false of it.
///
/// # Errors
/// `top` is not there; something can't be listed; what `visit` says.
pub(crate) fn walk(top: &Path, visit: &mut dyn FnMut(&Path, &Metadata) -> Result<bool>) -> Result<()> {
    let found = top.symlink_metadata().map_err(|error| CliError::io("look at", top, &error))?;
    let mount = found.dev();
    let mut directories = Vec::new();
    if visit(top, &found)? && found.is_dir() {
        directories.push(top.to_owned());
    }
    while let Some(directory) = directories.pop() {
        let entries = match std::fs::read_dir(&directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            entries => entries.map_err(|error| CliError::io("list", &directory, &error))?,
        };
        for entry in entries {
            let path = entry.map_err(|error| CliError::io("list", &directory, &error))?.path();
            let found = match path.symlink_metadata() {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                found => found.map_err(|error| CliError::io("look at", &path, &error))?,
            };
            if found.dev() == mount && visit(&path, &found)? && found.is_dir() {
                directories.push(path);
            }
        }
    }
    Ok(())
}
