use std::sync::Barrier;
use std::sync::atomic::AtomicUsize;

use kvfs_device::Rng;
use kvfs_store::StoreError;

use super::*;

const KIB: usize = 1 << 10;

/// Pages under a ceiling of which their share is half.
fn pages(ceiling: usize) -> (Arc<Accountant>, Arc<Pages>) {
    let accountant = Accountant::new(ceiling as u64);
    (Arc::clone(&accountant), Pages::new(accountant))
}

fn page(pages: &Arc<Pages>) -> Page<u64> {
    Page::new(pages, Pool::Index)
}

#[test]
fn what_is_in_memory_is_not_read_again() {
    let (accountant, pages) = pages(64 * KIB);
    let page = page(&pages);
    assert!(page.peek().is_none());
    for _ in 0..3 {
        assert_eq!(*page.get(|| Ok((7, KIB))).expect("loads"), 7);
    }
    assert_eq!(pages.stats(), PagesStats { loads: 1, evictions: 0 });
    assert_eq!(accountant.used(Pool::Index), KIB as u64);
    drop(page);
    assert_eq!(accountant.used(Pool::Index), 0);
}

#[test]
fn the_share_is_kept_and_what_is_used_stays() {
    let (accountant, pages) = pages(32 * KIB);
    let all: Vec<Page<u64>> = (0..64).map(|_| page(&pages)).collect();
    let mut rng = Rng::new(3);
    let mut loads_of_hot = 0;
    for round in 0..10_000_u64 {
        // Every second question goes to one of four pages.
        let at = if round % 2 == 0 { rng.index(4) } else { rng.index(all.len()) };
        let mut load = || {
            loads_of_hot += u32::from(at < 4);
            Ok((at as u64, KIB))
        };
        assert_eq!(*all[at].get(&mut load).expect("loads"), at as u64);
        assert!(accountant.used(Pool::Index) <= accountant.index_budget(), "round {round}");
    }
    assert!(pages.stats().evictions > 1000, "{:?}", pages.stats());
    assert!(loads_of_hot < 200, "the hot ones were read {loads_of_hot} times");
}

#[test]
fn what_is_held_stays_counted_and_is_not_read_again() {
    let (accountant, pages) = pages(4 * KIB);
    let (large, small) = (page(&pages), page(&pages));
    let held = large.get(|| Ok((1, 8 * KIB))).expect("loads").keep();
    assert_eq!(accountant.used(Pool::Index), 8 * KIB as u64, "counted, although larger than the share");
    assert_eq!(*small.get(|| Ok((2, KIB))).expect("loads"), 2);
    assert_eq!(*large.get(|| panic!("its value is held")).expect("is there"), 1);
    drop(held);
    pages.shrink();
    assert!(accountant.used(Pool::Index) <= accountant.index_budget());
    assert_eq!(*large.get(|| Ok((3, 8 * KIB))).expect("loads again"), 3);
}

#[test]
fn a_load_that_fails_leaves_the_page_as_it_was() {
    let (accountant, pages) = pages(64 * KIB);
    let page = page(&pages);
    let failed = page.get(|| Err(StoreError::corrupt("an index", "flipped")));
    assert!(matches!(failed.map(|_| ()), Err(StoreError::Corrupt { .. })));
    assert_eq!(accountant.used(Pool::Index), 0);
    assert_eq!(*page.get(|| Ok((7, KIB))).expect("loads"), 7);
    assert_eq!(pages.stats().loads, 1);
}

#[test]
fn what_is_pinned_stays() {
    let (accountant, pages) = pages(4 * KIB);
    let pinned = page(&pages);
    pinned.pin(9, 8 * KIB);
    let others: Vec<Page<u64>> = (0..8).map(|_| page(&pages)).collect();
    for other in &others {
        other.put(1, KIB);
    }
    pages.shrink();
    assert_eq!(*pinned.get(|| panic!("it is pinned")).expect("is there"), 9);
    assert_eq!(accountant.used(Pool::Index), 8 * KIB as u64, "the others went");
}

#[test]
fn what_cannot_go_leaves_the_others_their_floor() {
    let (accountant, pages) = pages(256 * KIB);
    let pinned = page(&pages);
    pinned.pin(9, 400 * KIB);
    let all: Vec<Page<u64>> = (0..16).map(|_| page(&pages)).collect();
    for _ in 0..3 {
        for (at, page) in all.iter().enumerate() {
            assert_eq!(*page.get(|| Ok((at as u64, KIB))).expect("loads"), at as u64);
        }
    }
    assert_eq!(accountant.index_floor(), 16 * KIB as u64);
    assert_eq!(pages.stats(), PagesStats { loads: 16, evictions: 0 });
}

#[test]
fn a_page_larger_than_the_floor_stays_until_another_is_asked_for() {
    let (_accountant, pages) = pages(16 * KIB);
    let pinned = page(&pages);
    pinned.pin(9, 32 * KIB);
    let (first, second) = (page(&pages), page(&pages));
    for _ in 0..3 {
        assert_eq!(*first.get(|| Ok((1, 2 * KIB))).expect("loads"), 1);
    }
    assert_eq!(pages.stats().loads, 1);
    assert_eq!(*second.get(|| Ok((2, 2 * KIB))).expect("loads"), 2);
    assert_eq!(pages.stats(), PagesStats { loads: 2, evictions: 1 });
}

#[test]
fn page_wanted_by_many_is_read_once_and_delays_no_other_page() {
    let (_accountant, pages) = pages(64 * KIB);
    let (page, other) = (page(&pages), page(&pages));
    let (reads, inside) = (AtomicUsize::new(0), Barrier::new(2));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let load = || {
                    reads.fetch_add(1, Ordering::Relaxed);
                    // Until the main thread has got the other page.
                    inside.wait();
                    Ok((5, KIB))
                };
                assert_eq!(*page.get(load).expect("loads"), 5);
            });
        }
        assert_eq!(*other.get(|| Ok((6, KIB))).expect("loads"), 6);
        inside.wait();
    });
    assert_eq!(reads.load(Ordering::Relaxed), 1);
}

#[test]
fn many_threads_get_right_values_under_pressure() {
    let (accountant, pages) = pages(16 * KIB);
    let all: Vec<Page<u64>> = (0..32).map(|_| page(&pages)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let all = &all;
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                let mut kept = None;
                for _ in 0..5000 {
                    let at = rng.index(all.len());
                    let found = all[at].get(|| Ok((at as u64, KIB))).expect("loads");
                    assert_eq!(*found, at as u64, "thread {thread}");
                    if rng.chance(1, 8) {
                        kept = Some(found.keep());
                    }
                }
                drop(kept);
            });
        }
    });
    pages.shrink();
    assert!(accountant.used(Pool::Index) <= accountant.index_budget());
    drop(all);
    assert_eq!(accountant.used(Pool::Index), 0);
}
