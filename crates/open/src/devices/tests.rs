use kvfs_device::{Call, FaultDevice, FaultError, FaultRule};
use kvfs_kvdb::Options;
use kvfs_store::clock::{Clock, SystemClock};

use super::*;
use crate::make::{CAPACITY_BYTES_MIN, NewStore, make_store, own_device};
use crate::memory::MEMORY_BYTES_MIN;

fn open(first: Arc<dyn Device>, others: &[Arc<dyn Device>]) -> Result<Arc<Db>, StoreError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    Db::open_joined(first, others, Options::with_memory(MEMORY_BYTES_MIN), clock)
}

#[test]
fn failed_flush_while_a_device_is_added_takes_no_name_away_that_the_store_needs() {
    let base = tempfile::tempdir().expect("a directory");
    let (mut fails, mut is_member) = (0, false);
    for nth in 0.. {
        let (path, slow) = (base.path().join(nth.to_string()), base.path().join(format!("slow-{nth}")));
        let size = Some(CAPACITY_BYTES_MIN);
        make_store(&path, NewStore::of_size(size), |dir| own_device(dir, size)).expect("makes");
        std::fs::File::create(&slow).expect("makes");
        let dir = StoreDir::open(&path).expect("opens");
        let devices = StoreDevices::open(&dir, false).expect("opens");
        let (first, others) = devices.for_engine();
        let first = Arc::new(FaultDevice::new(first));
        let db = open(Arc::clone(&first) as _, &others).expect("opens");
        first.add(FaultRule::once(Call::Flush, nth, FaultError::EIO));
        let new = NewDevice { path: slow, tier: Tier::Slow, size_bytes: Some(32 << 20), force: false };
        let added = devices.add(&db, &new);
        let has_failed = db.failure().is_some();
        assert_eq!(added.is_err(), has_failed, "flush {nth}: {added:?}");
        drop((db, first, others, devices));

        let devices = StoreDevices::open(&dir, false).expect("opens");
        let (first, others) = devices.for_engine();
        let db = open(first, &others).unwrap_or_else(|error| panic!("flush {nth}: {error}"));
        is_member |= has_failed && db.devices().len() == 2;
        if !has_failed {
            break;
        }
        fails += 1;
    }
    assert!(fails >= 2 && is_member, "{fails} flushes fail, and the manifest may be written nevertheless");
}
