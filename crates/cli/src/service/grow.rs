//! Making a store larger: the engine and the device of it.

use std::os::unix::fs::MetadataExt;

use kvfs_device::{Device, FileDevice};
use kvfs_service::{Caller, Growing, Grown, ServedStore, ServiceError};
use kvfs_store::StoreError;

use super::Service;
use crate::control::Response;
use crate::error::Result;
use crate::open::OpenStore;

impl Service {
    /// Grows the store to `bytes`, or as far as there is room.
    pub(super) fn answer_grow(
        served: &ServedStore<'_>,
        store: &OpenStore,
        caller: &Caller,
        bytes: Option<u64>,
    ) -> Result<Response> {
        let Grown { before, after, behind } = served.grow(caller, store, bytes)?;
        Ok(Response::Grown { before, after, behind })
    }
}

impl Growing for OpenStore {
    fn room(&self) -> Result<u64, ServiceError> {
        room(&self.device)
    }

    fn block_device(&self) -> Option<String> {
        self.device.is_block_device().then(|| self.device.path().display().to_string())
    }

    fn grow(&self, bytes: u64) -> Result<u64, StoreError> {
        self.db.grow(bytes)
    }
}

fn room(device: &FileDevice) -> Result<u64, ServiceError> {
    let failed = |error: &std::io::Error| ServiceError::io("ask for space at", device.path(), error);
    if device.is_block_device() {
        return device.refresh_len().map_err(|error| failed(&error));
    }
    let has = std::fs::metadata(device.path()).map_err(|error| failed(&error))?.blocks() * 512;
    let stat = rustix::fs::statvfs(device.path()).map_err(|error| failed(&error.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize).saturating_add(has))
}
