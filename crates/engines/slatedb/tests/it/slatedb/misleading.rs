//! Answers of a service that are true, and tell another story than the request that they are of.

use kvfs_device::Rng;
use kvfs_store::EngineStore;

use super::faults::{Cloud, Misleading};
use super::flaky::{made, open_over};
use super::*;

/// Larger than what is sent as a whole.
const TABLE_BYTES: usize = 20 << 20;

fn filled(bytes: usize) -> Vec<u8> {
    let mut value = vec![0; bytes];
    Rng::new(1).fill(&mut value);
    value
}

#[test]
fn upload_whose_end_is_done_and_not_known_any_more_is_made_again_and_ends_no_store() {
    let cloud = Cloud::new(1, 0);
    let options = SlateOptions { memory_bytes: 512 << 20, ..options() };
    let store = made(&cloud, &options);
    let f = Fixture::<Slate>::over(Arc::clone(&store) as Arc<dyn Store>);
    for number in 0..20_u8 {
        f.apply(|b| b.put(f.plain, vec![number], filled(TABLE_BYTES / 20)));
    }
    cloud.mislead(Misleading::NoSuchUpload, 2);
    // All that is in memory goes to a table.
    store.snapshots().unwrap().create_snapshot("s").unwrap();
    assert_eq!(cloud.misleads(Misleading::NoSuchUpload), 0, "it has come in parts, again and again");
    assert_eq!(store.failure(), None);
    store.close().unwrap();
    let store = open_over(&cloud.crash(), &options);
    assert_eq!(store.get(f.plain, &[7]).unwrap().unwrap(), filled(TABLE_BYTES / 20));
    store.close().unwrap();
}

#[test]
fn object_whose_making_is_refused_though_there_is_none_is_no_other_writer() {
    let cloud = Cloud::new(2, 0);
    let store = made(&cloud, &options());
    let f = Fixture::<Slate>::over(Arc::clone(&store) as Arc<dyn Store>);
    for number in 0..5_u8 {
        cloud.mislead(Misleading::Conflict, u64::from(number));
        store.sync(f.apply(|b| b.put(f.plain, vec![number], "1"))).unwrap();
        store.snapshots().unwrap().create_snapshot(&number.to_string()).unwrap();
        assert_eq!(store.failure(), None);
    }
    // A writer that takes over meets it at its first objects, and the one before is at work.
    let mut stores = vec![(f, store)];
    for number in 5..9_u8 {
        cloud.mislead(Misleading::Conflict, u64::from(number));
        let claimant = Claimant { takes_over: true, ..options().claimant };
        let store = open_over(&cloud.beside(), &SlateOptions { claimant, ..options() });
        let f = Fixture::<Slate>::over(Arc::clone(&store) as Arc<dyn Store>);
        store.sync(f.apply(|b| b.put(f.plain, vec![number], "1"))).unwrap();
        assert_eq!(entries(&*store, f.plain).len(), usize::from(number) + 1);
        stores.push((f, store));
    }
    let (_, last) = stores.pop().unwrap();
    assert_eq!(last.failure(), None);
    for (_, before) in &stores {
        wait_until("it has noticed", || before.failure().is_some());
    }
    last.close().unwrap();
}

#[test]
fn place_is_claimed_once_also_where_the_answer_is_lost() {
    for by in [Misleading::LostCreate, Misleading::RepeatedCreate, Misleading::Conflict] {
        let cloud = Cloud::new(3, 0);
        cloud.mislead(by, 1);
        SlateStore::claim_over(&cloud.crash(), [7; 16]).unwrap();
        assert_eq!(cloud.misleads(by), 0);
        for uuid in [[7; 16], [8; 16]] {
            let again = SlateStore::claim_over(&cloud.crash(), uuid).unwrap_err();
            assert!(again.to_string().contains("there are objects already"), "{again}");
        }
    }
}
