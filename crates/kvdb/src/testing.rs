//! A store in memory for unit tests.

use std::sync::Arc;
use std::time::Duration;

use kvfs_device::{Device, MemoryDevice};
use kvfs_store::clock::ManualClock;

use crate::{Background, CreateOptions, Db, Options};

/// Size of a zone (bytes).
pub(crate) const ZONE_BYTES: u32 = 256 << 10;

/// A new store of so many zones, without threads unless `change` says otherwise.
pub(crate) fn small_store(zones: u64, change: impl FnOnce(&mut Options)) -> Arc<Db> {
    let capacity = zones * u64::from(ZONE_BYTES);
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::growable(0, capacity));
    let create = CreateOptions {
        zone_bytes: ZONE_BYTES,
        journal_bytes: Some(4 << 20),
        ..CreateOptions::new(capacity, [7; 16])
    };
    Db::create(Arc::clone(&device), &create).expect("creates");
    let mut options = Options { background: Background::Manual, ..Options::with_memory(64 << 20) };
    change(&mut options);
    Db::open(device, options, Arc::new(ManualClock::at(Duration::from_secs(1)))).expect("opens")
}
