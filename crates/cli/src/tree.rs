//! All that is below a directory.
//!
//! Thread safety: functions without state. Invariants: a directory is visited before what is in it, so that
//! what others make there meanwhile is either listed or has what the visit gave; no symbolic link is followed
//! but one that is the top itself, and other mounts are left alone.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::{CliError, Result};

/// Visits `top` and everything below it on the same mount. What is gone meanwhile is left out; `visit` says
/// false of it.
///
/// # Errors
/// `top` is not there; something can't be listed; what `visit` says.
pub(crate) fn walk(top: &Path, visit: &mut dyn FnMut(&Path, &Metadata) -> Result<bool>) -> Result<()> {
    let failed = |error| CliError::io("look at", top, &error);
    let is_link = top.symlink_metadata().map_err(failed)?.is_symlink();
    let top = if is_link { top.canonicalize().map_err(failed)? } else { top.to_owned() };
    let found = top.metadata().map_err(failed)?;
    let mount = found.dev();
    let mut directories = Vec::new();
    if visit(&top, &found)? && found.is_dir() {
        directories.push(top);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_at_the_top_is_followed_and_those_below_are_not() {
        let dir = std::env::temp_dir().join(format!("kvfs-tree-{}", std::process::id()));
        let (outside, link) = (dir.join("outside"), dir.join("link"));
        std::fs::create_dir_all(dir.join("tree/inner")).expect("creates");
        std::fs::create_dir(&outside).expect("creates");
        std::fs::write(outside.join("secret"), "").expect("creates");
        symlink(&outside, dir.join("tree/inner/away")).expect("links");
        symlink("tree", &link).expect("links");
        let mut names = Vec::new();
        let walked = walk(&link, &mut |path, _| {
            names.push(path.file_name().expect("a name").to_owned());
            Ok(true)
        });
        std::fs::remove_dir_all(&dir).expect("removes");
        walked.expect("walks");
        assert_eq!(names, ["tree", "inner", "away"]);
    }
}
