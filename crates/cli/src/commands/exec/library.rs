//! Where the library for programs is: beside `kvfs`, or where `make install` puts it.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{CliError, Code, Result};

/// Its file.
pub(super) const NAME: &str = "libkvfs_preload.so";

/// Names another place.
const VARIABLE: &str = "KVFS_PRELOAD";

pub(super) fn find() -> Result<PathBuf> {
    if !cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
        return Err(CliError::new(
            Code::Failed,
            "`kvfs exec` needs Linux on x86-64 with glibc; mount the store",
        ));
    }
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    let own = std::env::current_exe().ok();
    let directory = own.as_deref().and_then(Path::parent);
    let beside = directory.into_iter().flat_map(|directory| {
        [directory.join(NAME), directory.join("../lib/kvfs").join(NAME), directory.join("deps").join(NAME)]
    });
    let found = named.into_iter().chain(beside).find_map(|path| path.canonicalize().ok());
    let found = found.ok_or_else(|| {
        let message = format!(
            "{NAME} is missing: it belongs beside kvfs or in ../lib/kvfs (`make install`); {VARIABLE} names another place"
        );
        CliError::new(Code::Failed, message)
    })?;
    // The list of libraries has no way to quote.
    if found.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        let message = format!(
            "{} has a blank or a colon in its path: copy it elsewhere, and set {VARIABLE}",
            found.display()
        );
        return Err(CliError::new(Code::Failed, message));
    }
    Ok(found)
}
