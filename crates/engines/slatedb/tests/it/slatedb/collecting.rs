//! What collections of garbage remove, and what they leave to readers elsewhere.

use std::collections::BTreeSet;

use kvfs_store::EngineStore;

use super::faults::Cloud;
use super::named::{Outside, made, make_tables, open_over};
use super::*;

const OLD: Duration = Duration::from_hours(2);

/// Of one whose garbage is collected all the time.
fn collecting(kept: Duration) -> SlateOptions {
    SlateOptions { kept, collection_interval: Duration::from_millis(50), ..options() }
}

/// Writes until no state of the store has one of these tables.
fn replace(outside: &Outside, tables: &BTreeSet<String>, (f, store): &(Fixture<Slate>, Arc<SlateStore>)) {
    let mut round = 10;
    wait_until("they are merged into others", || {
        make_tables(f, store, round..round + 1);
        round += 1;
        outside.expire_checkpoints();
        tables.is_disjoint(&outside.live_tables())
    });
}

#[test]
fn tables_that_a_reader_elsewhere_has_are_kept_when_the_writer_needs_them_no_more() {
    let cloud = Cloud::new(1, 0);
    let outside = Outside::of(&cloud);
    let old = SlateOptions { wall: || SystemClock::new().wall().saturating_sub(OLD), ..options() };
    let (f, store) = made(&cloud, &old);
    make_tables(&f, &store, 0..3);
    let state = entries(&*store, f.plain);
    store.close().unwrap();
    drop((f, store));
    let tables = outside.live_tables();
    let (of_reader, reader) =
        open_over(cloud.beside(), &SlateOptions { read_only: true, memory_bytes: 1 << 20, ..options() });
    reader.set_memory_bytes(0);
    let opened = open_over(cloud.crash(), &collecting(Duration::from_hours(1)));
    replace(&outside, &tables, &opened);
    let collections = || cloud.count("list", "compacted");
    let before = collections();
    wait_until("they could be collected", || {
        outside.expire_checkpoints();
        collections() > before + 3
    });
    assert!(tables.is_subset(&outside.tables()));
    assert!(entries(&*reader, of_reader.plain) == state);
    assert_eq!(reader.verify().unwrap().findings, [] as [String; 0]);
    opened.1.close().unwrap();
    // Where nothing is kept they go.
    let opened = open_over(cloud.crash(), &collecting(Duration::ZERO));
    wait_until("they are collected", || {
        make_tables(&opened.0, &opened.1, 0..1);
        outside.expire_checkpoints();
        tables.is_disjoint(&outside.tables())
    });
    assert_eq!(opened.1.failure(), None);
    opened.1.close().unwrap();
}
