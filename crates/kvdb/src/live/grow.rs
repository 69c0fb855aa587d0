//! A store that reaches further than it was made to.
//!
//! Thread safety: any thread; one at a time, and no device comes or goes meanwhile, since the zones of one
//! that comes begin where those of the first device end. Invariant: zones beyond the old capacity are given
//! out only when both superblocks have the new one.

use kvfs_store::{Result, StoreError};

use crate::live::LiveSet;

/// See `Db::grow`; the caller keeps devices from coming and going.
pub(crate) fn grow(live: &LiveSet, capacity_bytes: u64) -> Result<u64> {
    let runtime = &live.runtime;
    runtime.check_accepting()?;
    let zones = &runtime.ctx.zones;
    let zone_bytes = u64::from(zones.zone_bytes());
    let device = &runtime.ctx.device;
    device.refresh_len().map_err(|error| StoreError::io("asking the device for its size", error))?;
    let wanted = u32::try_from(capacity_bytes / zone_bytes).unwrap_or(u32::MAX);
    let ledger = live.ledger.lock();
    let zones_now = zones.space().zones_total;
    if wanted > zones_now && zones.members().len() > 1 {
        let message = "its first device can't grow, since others lie behind it; add a device";
        let error = std::io::Error::new(std::io::ErrorKind::Unsupported, message);
        return Err(StoreError::io("growing the store", error));
    }
    if wanted > zones_now {
        runtime.health.observe(ledger.manifest.set_capacity(u64::from(wanted) * zone_bytes))?;
        zones.set_total(wanted);
    }
    drop(ledger);
    // What found no space may find some now.
    live.note_garbage();
    runtime.work.notify();
    runtime.progress.notify();
    Ok(u64::from(wanted.max(zones_now)) * zone_bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use kvfs_device::{CrashDevice, CrashMode, Device};
    use kvfs_store::clock::ManualClock;
    use kvfs_store::{Batch, Durability, KeyspaceKind, Read, Store};

    use crate::{Background, CreateOptions, Db, Options};

    const ZONE_BYTES: u64 = 256 << 10;
    const BEFORE: u64 = 100 * ZONE_BYTES;
    const AFTER: u64 = 160 * ZONE_BYTES;

    fn open(device: Arc<dyn Device>) -> Arc<Db> {
        let options = Options { background: Background::Manual, ..Options::with_memory(64 << 20) };
        Db::open(device, options, Arc::new(ManualClock::at(Duration::from_secs(1)))).expect("opens")
    }

    /// Rows of 64 KiB from `from` on, until the store is full; how many fit.
    fn fill(db: &Db, from: u32) -> u32 {
        let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
        let mut count = 0;
        loop {
            let mut batch = Batch::new();
            batch.put(rows, (from + count).to_be_bytes().to_vec(), vec![count as u8; 64 << 10]);
            if db.apply(batch, Durability::Buffered).is_err() {
                return count;
            }
            count += 1;
        }
    }

    #[test]
    fn power_cut_at_any_step_of_growing_leaves_the_old_capacity_or_the_new_one() {
        let device = Arc::new(CrashDevice::in_memory(0, AFTER).with_log().expect("is new"));
        let create = CreateOptions {
            zone_bytes: ZONE_BYTES as u32,
            journal_bytes: Some(4 << 20),
            ..CreateOptions::new(BEFORE, [5; 16])
        };
        Db::create(Arc::clone(&device) as _, &create).expect("creates");
        let db = open(Arc::clone(&device) as _);
        let fitted = fill(&db, 0);
        assert!(fitted > 100, "{fitted} rows fitted");
        db.flush().expect("flushes");
        assert_eq!(db.grow(BEFORE - 1).expect("changes nothing"), BEFORE);
        let before = device.events_len();
        assert_eq!(db.grow(AFTER + 1).expect("grows"), AFTER);
        let after = device.events_len();
        assert_eq!(db.space().capacity_bytes, AFTER);
        assert!(fill(&db, fitted) > 100, "there is space again");
        db.flush().expect("flushes");
        for event in before..=device.events_len() {
            for mode in [CrashMode::KeepSubset, CrashMode::Tear] {
                let opened = open(Arc::new(device.image_at(event, 7, mode).expect("is in the log")));
                let capacity = opened.space().capacity_bytes;
                assert!(
                    capacity == AFTER || (capacity == BEFORE && event < after),
                    "event {event}: {capacity}"
                );
                let rows = opened.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
                let last = opened.get(rows, &(fitted - 1).to_be_bytes()).expect("reads");
                assert_eq!(last.map(|value| value.len()), Some(64 << 10), "event {event}");
            }
        }
    }
}
