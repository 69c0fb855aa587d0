use super::list::{Acl, PERMISSIONS};

/// Tag, rights, number.
type Raw = (u16, u16, u32);

const NONE: u32 = u32::MAX;

fn bytes(entries: &[Raw]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend([tag.to_le_bytes(), rights.to_le_bytes()].concat());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn acl(entries: &[Raw]) -> Acl {
    Acl::parse(&bytes(entries)).expect("is a list").expect("has entries")
}

const MINIMAL: [Raw; 3] = [(1, 6, NONE), (4, 4, NONE), (0x20, 0, NONE)];
const NAMED: [Raw; 6] =
    [(1, 7, NONE), (2, 5, 1000), (4, 4, NONE), (8, 2, 50), (0x10, 6, NONE), (0x20, 1, NONE)];

#[test]
fn lists_round_trip() {
    for entries in [&MINIMAL[..], &NAMED[..]] {
        assert_eq!(acl(entries).encode(), bytes(entries));
    }
    // The owner's entry needs no number.
    let mut odd = MINIMAL;
    odd[0].2 = 7;
    assert_eq!(acl(&odd).encode(), bytes(&MINIMAL));
    assert_eq!(Acl::parse(&bytes(&[])).expect("stands for none"), None);
}

#[test]
fn rights_of_a_list_are_those_that_linux_gives() {
    let list = acl(&[
        (1, 7, NONE),
        (2, 7, 1000),
        (2, 0, 1001),
        (4, 4, NONE),
        (8, 2, 50),
        (0x10, 6, NONE),
        (0x20, 1, NONE),
    ]);
    let rights = |uid, groups: &[u32]| [4, 2, 1].map(|right| list.allows(uid, groups, 100, right));
    assert_eq!(rights(1000, &[]), [true, true, false], "the mask takes the last one");
    assert_eq!(rights(1001, &[100, 50]), [false; 3], "the entry of a user has the last word");
    assert_eq!(rights(1002, &[100]), [true, false, false]);
    assert_eq!(rights(1002, &[50]), [false, true, false]);
    assert_eq!(rights(1002, &[50, 100]), [true, true, false], "any group will do");
    assert!(!list.allows(1002, &[50, 100], 100, 6), "but one of them has to have all that is wanted");
    assert_eq!(rights(1002, &[7]), [false, false, true]);
}

#[test]
fn what_is_no_list_is_refused() {
    let errno = |bytes: &[u8]| Acl::parse(bytes).map(|_| ()).map_err(|error| error.errno());
    let without = |index: usize| {
        let mut entries = NAMED.to_vec();
        entries.remove(index);
        errno(&bytes(&entries))
    };
    assert_eq!(without(1), Ok(()), "a mask needs no named entry");
    for needed in [0, 2, 4, 5] {
        assert_eq!(without(needed), Err(22), "entry {needed}");
    }
    for (index, wrong) in
        [(0, (1, 8, NONE)), (1, (2, 5, NONE)), (3, (8, 2, NONE)), (3, (0x40, 2, 1)), (1, (1, 5, NONE))]
    {
        let mut entries = NAMED;
        entries[index] = wrong;
        assert_eq!(errno(&bytes(&entries)), Err(22), "{wrong:?}");
    }
    let mut swapped = NAMED;
    swapped.swap(1, 3);
    assert_eq!(errno(&bytes(&swapped)), Err(22));
    let whole = bytes(&NAMED);
    for len in (1..whole.len()).filter(|len| *len < 4 || len % 8 != 4) {
        assert_eq!(errno(&whole[..len]), Err(22), "{len} bytes");
    }
    let mut version = whole;
    version[0] = 1;
    assert_eq!(errno(&version), Err(95));
}

#[test]
fn the_mask_stands_for_the_group() {
    assert_eq!(acl(&MINIMAL).permissions(), 0o640);
    assert_eq!(acl(&NAMED).permissions(), 0o761);
    assert!(acl(&MINIMAL).is_minimal() && !acl(&NAMED).is_minimal());
    let mut changed = acl(&NAMED);
    changed.set_permissions(0o104_523);
    let mut expected = NAMED;
    (expected[0].1, expected[4].1, expected[5].1) = (5, 2, 3);
    assert_eq!(changed, acl(&expected));
    let mut changed = acl(&MINIMAL);
    changed.set_permissions(0o753);
    assert_eq!(changed.permissions(), 0o753);
}

#[test]
fn permissions_and_lists_follow_each_other() {
    for entries in [&MINIMAL[..], &NAMED[..]] {
        for mode in 0..=PERMISSIONS {
            let mut set = acl(entries);
            set.set_permissions(mode);
            assert_eq!(set.permissions(), mode);
            let mut limited = acl(entries);
            limited.limit(mode);
            assert_eq!(limited.permissions(), mode & acl(entries).permissions());
            assert_eq!(limited.is_minimal(), acl(entries).is_minimal());
        }
    }
}

#[test]
fn list_shown_to_a_namespace_keeps_unknown_entries_out() {
    let entries: [Raw; 6] =
        [(1, 7, NONE), (2, 5, 1000), (2, 6, 1001), (4, 4, NONE), (0x10, 6, NONE), (0x20, 1, NONE)];
    let all = acl(&entries);
    let shown = all.clone().known_to(1000, 50);
    assert_eq!(shown, acl(&[entries[0], entries[1], entries[3], entries[4], entries[5]]));
    assert_eq!(shown.with_unknown_of(all.clone(), 1000, 50), all);
    let reset = acl(&MINIMAL).with_unknown_of(all, 1000, 50);
    let expected = [(1, 6, NONE), (2, 6, 1001), (4, 4, NONE), (0x10, 4, NONE), (0x20, 0, NONE)];
    assert_eq!(reset, acl(&expected));
    assert_eq!(reset.permissions(), 0o640);
}
