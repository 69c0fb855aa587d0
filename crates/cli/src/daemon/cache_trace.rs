//! Recording what is asked of the block cache from the mount to the end: `-o cache_trace=FILE`.
//!
//! Thread safety: called once, by the thread that starts the daemon. Invariant: no file that is there is
//! written to.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use kvfs_open::OpenedEngine;
use kvfs_store::StoreError;

use crate::error::{CliError, Result};
use crate::open::OpenStore;

/// A trace gets no longer than this (bytes): about a hundred million accesses.
const TRACE_BYTES_MAX: u64 = 1 << 30;

/// Begins a trace in a new file, which only the caller can read; it ends when the store is closed, or when it
/// is full.
pub(super) fn start(path: &Path, open: &OpenStore) -> Result<()> {
    let OpenedEngine::Kvdb { db, .. } = &open.engine else {
        let engine = open.fs.store().engine_name();
        return Err(StoreError::Unsupported { engine, what: "trace of its cache" }.into());
    };
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(|error| CliError::io("make a new file", path, &error))?;
    Ok(db.start_cache_trace(Box::new(file), TRACE_BYTES_MAX)?)
}
