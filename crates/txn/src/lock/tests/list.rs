//! Lists of locks, page by page.

use std::time::Duration;

use super::*;
use crate::{LockNameBuf, LockPlace, Mode, Rival, WAITERS_LISTED_MAX};

#[test]
fn pages_of_any_length_make_up_the_whole_list() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    for inode in 0..40 {
        fixture.lock(&one, &[Want::shared(identity(inode)), Want::exclusive(entry(inode, b"a"))]).unwrap();
        fixture
            .lock(&two, &[Want::shared(identity(inode)), Want::exclusive(entry(3, &[inode as u8]))])
            .unwrap();
    }
    let whole = fixture.admission.list();
    assert_eq!(whole.len(), 160);
    for len_max in [1, 7, 159, 160, 161] {
        let (mut paged, mut after) = (Vec::new(), None);
        loop {
            let page = fixture.admission.page(after, len_max);
            assert!(page.locks.len() <= len_max);
            paged.extend(page.locks);
            after = page.next.map(|next| LockPlace::from_parts(next.to_parts()).unwrap());
            if after.is_none() {
                break;
            }
        }
        assert_eq!(paged, whole, "pages of {len_max}");
    }
}

#[test]
fn locks_changed_between_pages_cost_no_other_lock_its_line() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    for inode in [1, 3, 5, 7] {
        fixture.lock(&one, &[Want::shared(identity(inode))]).unwrap();
    }
    fixture.lock(&two, &[Want::shared(identity(3))]).unwrap();
    let page = fixture.admission.page(None, 3);
    fixture.lock(&one, &[Want::shared(identity(0)), Want::shared(identity(6))]).unwrap();
    drop(two);
    let rest = fixture.admission.page(page.next, 10);
    let inodes: Vec<_> = rest.locks.iter().map(|lock| lock.name.clone()).collect();
    let identity = |directory| LockNameBuf::Identity { directory };
    assert_eq!(inodes, [identity(5), identity(6), identity(7)]);
    assert_eq!(rest.next, None);
}

#[test]
fn a_lock_names_its_first_waiters_and_counts_the_others() {
    let fixture = Fixture::new();
    let one = fixture.begin(1);
    let want = [Want::exclusive(entry(1, b"a"))];
    fixture.lock(&one, &want).unwrap();
    fixture.clock.advance(Duration::from_secs(5));
    let waiting: Vec<_> = (0..WAITERS_LISTED_MAX + 3).map(|_| ticket(fixture.main(&want))).collect();
    fixture.clock.advance(Duration::from_millis(500));
    let list = fixture.admission.list();
    assert_eq!((list.len(), list[0].mode), (1, Mode::Exclusive));
    assert_eq!(list[0].age, Duration::from_millis(5500));
    assert_eq!((list[0].waiters.len(), list[0].waiters_count), (WAITERS_LISTED_MAX, waiting.len()));
    assert_eq!(list[0].waiters[0].waiter, Rival::Main { pid: 7 });
    assert_eq!(list[0].waiters[0].waited, Duration::from_millis(500));
}
