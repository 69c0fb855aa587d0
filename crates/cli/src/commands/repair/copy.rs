//! The copy of a damaged device, as far as it can be read.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvfs_device::{AlignedBuf, Device, read_around};
use kvfs_store::progress::{self, Unit};

use crate::error::{CliError, Code, Result};
use crate::store_dir::StoreDir;
use kvfs_open::{explain_device, remove_remains};

/// Copied in one request (bytes).
const CHUNK_BYTES: u64 = 4 << 20;

/// A place for the copy, which nothing opens as a store before its end.
pub(super) fn prepare(target: &Path) -> Result<StoreDir> {
    let target = StoreDir::prepare(target)?;
    match target.begin_copy() {
        Ok(()) => Ok(target),
        Err(error) => {
            remove(&target);
            Err(error.into())
        }
    }
}

/// Copies `source` into a new device in `target`, unless it is to stop; says what could not be read.
pub(super) fn fill(
    source: &Arc<dyn Device>,
    target: &StoreDir,
    is_stopping: &AtomicBool,
) -> Result<(Arc<dyn Device>, Vec<String>)> {
    let failed = |error: std::io::Error| CliError::io("copy the store to", target.path(), &error);
    let device = target.device().create();
    let device = device.map_err(|error| explain_device(target.path(), &error))?;
    let len = source.len_bytes();
    // What is a hole, or zeros, takes no space: a sparse store may be longer than the file system is large.
    device.extend(len).map_err(failed)?;
    progress::stage("copying", Unit::Bytes, len);
    let mut chunk = AlignedBuf::zeroed(CHUNK_BYTES as usize);
    let (mut at, mut bytes_missing) = (0, 0);
    while at < len {
        check_stop(is_stopping)?;
        let part = &mut chunk.as_mut()[..(len - at).min(CHUNK_BYTES) as usize];
        bytes_missing += read_around(source.as_ref(), part, at);
        if part.iter().any(|&byte| byte != 0) {
            device.write_at(part, at).map_err(failed)?;
        }
        at += part.len() as u64;
        progress::advance(part.len() as u64);
    }
    let findings = match bytes_missing {
        0 => Vec::new(),
        bytes => vec![format!("{bytes} bytes of the device can't be read; they are zeros in the copy")],
    };
    Ok((Arc::new(device), findings))
}

/// An error once the user has asked for an end.
pub(super) fn check_stop(is_stopping: &AtomicBool) -> Result<()> {
    if is_stopping.load(Ordering::Relaxed) {
        return Err(CliError::new(Code::Failed, "interrupted; what was copied is removed again"));
    }
    Ok(())
}

/// Takes an unfinished copy away.
pub(super) fn remove(target: &StoreDir) {
    if let Err(error) = remove_remains(target) {
        eprintln!("kvfs: could not clean up {}: {error}", target.path().display());
    }
}
