//! Maps of how often what lies where is asked for.

use super::*;
use crate::{DeviceHeat, HeatCell, HeatMap};

const CELLS: usize = 60;

fn map(db: &Db) -> HeatMap {
    db.heat_map(CELLS, &mut || true).expect("goes over the pieces").expect("goes through")
}

fn counts(device: &DeviceHeat) -> Vec<u8> {
    let count = |cell: &HeatCell| match cell {
        HeatCell::Counted(count) => Some(*count),
        _ => None,
    };
    device.cells.iter().filter_map(count).collect()
}

#[test]
fn heat_map_tells_where_what_is_read_lies_and_counts_from_the_first_one_on() {
    let first = first();
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    db.add_device(memory(SLOW_BYTES), Tier::Slow).expect("adds");
    (0..FILES).for_each(|file| write(&db, file, 1).expect("writes"));
    db.flush().expect("flushes");

    let cold = map(&db);
    assert!(!cold.was_counted);
    let [fast, slow] = &cold.devices[..] else { panic!("{cold:?}") };
    assert_eq!([(fast.id, fast.tier), (slow.id, slow.tier)], [(0, Tier::Fast), (1, Tier::Slow)]);
    let bytes_all = FILES * BLOCKS * BLOCK_BYTES as u64;
    assert_eq!([fast.bytes_counted, slow.bytes_counted, slow.bytes_hot], [0, bytes_all, 0]);
    assert!(counts(fast).is_empty() && counts(slow).iter().all(|&count| count == 0));
    for device in [fast, slow] {
        assert!(device.cells.len() <= CELLS / 2, "{device:?}");
    }
    assert!(slow.cells.len() as u64 * slow.cell_bytes >= slow.bytes_total, "{slow:?}");
    assert!(fast.cells.len() as u64 * fast.cell_bytes < fast.bytes_total, "it has not grown so far");
    assert_eq!(fast.cells[0], HeatCell::Other, "there are the superblocks");

    let mut blocks = AlignedBuf::zeroed(BLOCKS as usize * BLOCK_BYTES);
    for _ in 0..100 {
        db.read_blocks(files(&db), &0_u64.to_be_bytes(), 0, blocks.as_mut()).expect("reads");
    }
    let warm = map(&db);
    let slow = &warm.devices[1];
    assert!(warm.was_counted && slow.bytes_hot == BLOCKS * BLOCK_BYTES as u64, "{warm:?}");
    assert_eq!(counts(slow).iter().filter(|&&count| count > 0).count(), 1, "{slow:?}");
    // Nothing else has changed by that.
    assert!(!db.parts.runtime.ctx.zones.is_heat_unsettled());
    assert_eq!(db.migration_plan().expect("plans").bytes(), 0);
    assert_eq!(db.heat_map(CELLS, &mut || false).expect("is told to end"), None);
}
