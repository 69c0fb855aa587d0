//! The directory of a session: working directories in the store have a real one here, whose name says which
//! they are.
//!
//! Invariant: only its user can reach it; it is gone when the session ends.

use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::error::{CliError, Result};

/// Names that are tried.
const TRIES: usize = 100;

pub(super) struct Session {
    directory: PathBuf,
}

impl Session {
    /// Makes the directory.
    pub(super) fn begin() -> Result<Self> {
        let base = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|base| base.is_absolute());
        let bases = base.into_iter().chain([std::env::temp_dir(), "/tmp".into()]);
        let mut failed = None;
        for base in bases {
            match make(&base) {
                Ok(directory) => {
                    let session = Self { directory };
                    let made = DirBuilder::new().mode(0o700).create(session.directory.join("cwd"));
                    return match made {
                        Ok(()) => Ok(session),
                        Err(error) => Err(CliError::io("make a directory in", &session.directory, &error)),
                    };
                }
                Err(error) => failed = Some(CliError::io("make a directory in", &base, &error)),
            }
        }
        Err(failed.unwrap_or_else(|| {
            CliError::io("make a directory in", "/tmp".as_ref(), &io::ErrorKind::NotFound.into())
        }))
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // What is in use by a process that goes on is gone for it, too: its files are not here.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn make(base: &Path) -> io::Result<PathBuf> {
    for _ in 0..TRIES {
        // Each state is seeded anew.
        let path = base.join(format!("kvfs-exec-{:016x}", RandomState::new().hash_one(0)));
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
