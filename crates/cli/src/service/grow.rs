//! Making a store larger.

use std::os::unix::fs::MetadataExt;

use kvfs_device::{Device, FileDevice};
use kvfs_service::Caller;
use kvfs_store::Store;

use super::Service;
use crate::control::Response;
use crate::error::{CliError, Code, Result};
use crate::open::OpenStore;
use crate::units::human_bytes;

impl Service {
    /// Grows the store to `bytes`, or as far as its device, or the file system below, has room.
    pub(super) fn answer_grow(store: &OpenStore, caller: &Caller, bytes: Option<u64>) -> Result<Response> {
        if !caller.may_act_for(Caller::own().uid) {
            let message = "only root and the owner of the store may make it larger";
            return Err(CliError::new(Code::Denied, message));
        }
        let device = store.device.as_ref();
        let before = store.db.space().capacity_bytes;
        let room = room(device)?;
        let wanted = bytes.unwrap_or(room).max(if bytes.is_none() { before } else { 0 });
        if wanted < before {
            return Err(CliError::new(
                Code::Usage,
                format!("the store may take {} already, and a store does not shrink", human_bytes(before)),
            ));
        }
        if device.is_block_device() && wanted > room {
            let (path, room) = (device.path().display(), human_bytes(room));
            return Err(CliError::new(Code::NoSpace, format!("the block device {path} has {room}")));
        }
        let after = store.db.grow(wanted)?;
        tracing::info!(before, after, "the store has grown");
        Ok(Response::Grown { before, after, behind: (after > room && after > before).then_some(room) })
    }
}

/// How much the store can come to (bytes): all of a block device, or what the file has and its file system can give.
fn room(device: &FileDevice) -> Result<u64> {
    let failed = |error: &std::io::Error| CliError::io("ask for space at", device.path(), error);
    if device.is_block_device() {
        return device.refresh_len().map_err(|error| failed(&error));
    }
    let has = std::fs::metadata(device.path()).map_err(|error| failed(&error))?.blocks() * 512;
    let stat = rustix::fs::statvfs(device.path()).map_err(|error| failed(&error.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize).saturating_add(has))
}
