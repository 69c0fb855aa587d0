use super::*;

#[test]
fn deletions_are_allowed_however_much_was_brought_before() {
    for bytes in [0, GROWTH_MAX, GROWTH_MAX + 1, u64::MAX] {
        assert!(is_within(bytes, 0) && is_within(bytes, -1));
        assert_eq!(is_within(bytes, 1), bytes < GROWTH_MAX);
    }
    assert!(is_within(0, GROWTH_MAX as i64) && !is_within(0, i64::MAX));
}
