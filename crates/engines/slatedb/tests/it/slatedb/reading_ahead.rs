//! What is fetched before it is asked for.

use kvfs_store::{BLOCK_BYTES, BlockRange, EngineStore};

use super::faults::{Cloud, Outage};
use super::*;

const BLOCKS: u64 = 4096;
const READ_BLOCKS: u64 = 32;

/// A store whose tables have a file of 16 MiB, opened anew over storage that takes a moment for each answer.
fn with_file(cloud: &Arc<Cloud>) -> Fixture<Slate> {
    let service = cloud.crash();
    SlateStore::create_over(Arc::clone(&service), &options(), [7; 16]).unwrap();
    let store = Arc::new(SlateStore::open_over(Arc::clone(&service), &options()).unwrap());
    let f = Fixture::<Slate>::over(Arc::clone(&store) as Arc<dyn Store>);
    for first in (0..BLOCKS).step_by(READ_BLOCKS as usize) {
        f.apply(|b| b.put_blocks(f.blocks, "f", first, content(first..first + READ_BLOCKS)));
    }
    store.close().unwrap();
    drop((f, store));
    cloud.set_latency(Duration::from_millis(20));
    // A cache that the file is a small part of.
    let options = SlateOptions { memory_bytes: 512 << 20, ..options() };
    let store = Arc::new(SlateStore::open_over(service, &options).unwrap());
    let f = Fixture::over(Arc::clone(&store) as Arc<dyn Store>);
    cloud.reads_at_once_max();
    f
}

fn content(blocks: std::ops::Range<u64>) -> Vec<u8> {
    blocks.flat_map(|block| [(block % 251) as u8; BLOCK_BYTES]).collect()
}

fn check(f: &Fixture<Slate>, first: u64) {
    let mut buf = vec![0; READ_BLOCKS as usize * BLOCK_BYTES];
    f.store.read_blocks(f.blocks, b"f", first, &mut buf).unwrap();
    assert_eq!(buf, content(first..first + READ_BLOCKS));
}

#[test]
fn file_that_is_read_in_order_is_fetched_ahead_of_its_reader() {
    let cloud = Cloud::new(1, 0);
    let f = with_file(&cloud);
    for first in (0..BLOCKS).step_by(READ_BLOCKS as usize) {
        check(&f, first);
    }
    let ahead = cloud.reads_at_once_max();
    assert!(ahead > 8, "only {ahead} at once");
}

#[test]
fn reader_that_tells_what_it_will_need_finds_it_in_memory() {
    let cloud = Cloud::new(2, 0);
    let f = with_file(&cloud);
    // From behind, which is no order to guess.
    let wanted = [2048, 1024, 0].map(|first| BlockRange { prefix: "f".into(), first, count: READ_BLOCKS });
    f.store.will_need(f.blocks, wanted.to_vec());
    for range in &wanted {
        check(&f, range.first);
    }
    let before = cloud.requests();
    for range in &wanted {
        check(&f, range.first);
    }
    // All but those of the compactor and the sign of life, which come by the clock.
    assert!(cloud.requests() - before < 10);
}

#[test]
fn what_is_fetched_ahead_in_vain_changes_no_answer() {
    let cloud = Cloud::new(3, 0);
    let f = with_file(&cloud);
    cloud.set(Outage::Down);
    f.store.will_need(f.blocks, vec![BlockRange { prefix: "f".into(), first: 0, count: BLOCKS }]);
    cloud.set(Outage::None);
    for first in [0, 32, 64, 96] {
        check(&f, first);
    }
    // Beyond its end, and of a file that is not there.
    for (prefix, first) in [("f", u64::MAX - 3), ("none", 0)] {
        f.store.will_need(f.blocks, vec![BlockRange { prefix: prefix.into(), first, count: 9 }]);
    }
    check(&f, 128);
}
