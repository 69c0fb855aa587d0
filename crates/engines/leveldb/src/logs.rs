//! The logs of an open database, and how they become durable.
//!
//! Purpose: `LevelDB` syncs only the log that it writes to. When a memtable is full it goes on with another
//! log, and does not sync the one before, which is of no use only when that memtable is in a table. So a sync
//! here is one of all logs that may hold what is not durable. Whether there is a new one, the size of the
//! newest tells that is known: an empty batch is in it, or in another one.
//!
//! Thread safety: a lock around what is known. Invariant: what was written before a sync is in a table, in
//! the log that is known, or in later ones.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use kvfs_locks::{Mutex, class};
use kvfs_store::{Result, StoreError};

/// The name of a log in its directory.
pub(crate) fn log_name(number: u64) -> String {
    format!("{number:06}.log")
}

/// Ascending.
pub(crate) fn log_numbers(path: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in path.read_dir()? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".log")?.parse::<u64>().ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// See the module.
pub(crate) struct Logs {
    path: PathBuf,
    /// The newest that is known.
    newest: Mutex<Option<(u64, File)>, class::EngineLeveldbLogs>,
}

impl Logs {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), newest: Mutex::new(None) }
    }

    /// What was written before is durable when this returns; `mark` writes an empty batch.
    pub(crate) fn sync(&self, mark: impl FnOnce() -> Result<()>) -> Result<()> {
        let failed = |error| StoreError::io("syncing the log (LevelDB)", error);
        let mut newest = self.newest.lock();
        let size = |log: &File| log.metadata().map(|found| found.len());
        let before = newest.as_ref().map(|(_, log)| size(log)).transpose().map_err(failed)?;
        mark()?;
        if let (Some((_, log)), Some(before)) = (&*newest, before)
            && size(log).map_err(failed)? > before
        {
            return log.sync_data().map_err(failed);
        }
        let from = newest.as_ref().map_or(0, |(number, _)| *number);
        for number in log_numbers(&self.path).map_err(failed)? {
            if number < from {
                continue;
            }
            // One that has gone meanwhile is in a table.
            let log = match File::open(self.path.join(log_name(number))) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened.map_err(failed)?,
            };
            log.sync_data().map_err(failed)?;
            *newest = Some((number, log));
        }
        File::open(&self.path).and_then(|dir| dir.sync_all()).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;

    use super::*;

    #[test]
    fn sync_finds_the_log_that_the_mark_is_in() {
        let dir = tempfile::TempDir::new().unwrap();
        let append = |number: u64| {
            let log = OpenOptions::new().append(true).create(true).open(dir.path().join(log_name(number)));
            log.unwrap().write_all(b"mark").unwrap();
            Ok(())
        };
        let logs = Logs::new(dir.path());
        let newest = || logs.newest.lock().as_ref().map(|(number, _)| *number);
        for (number, is_kept) in [(3, true), (3, true), (5, false), (5, true), (1_000_007, true)] {
            logs.sync(|| append(number)).unwrap();
            assert_eq!(newest(), Some(number));
            if !is_kept {
                std::fs::remove_file(dir.path().join(log_name(3))).unwrap();
            }
        }
        assert_eq!(log_numbers(dir.path()).unwrap(), [5, 1_000_007]);
    }
}
