use std::iter::successors;

use super::{PAGE, next_stretch};

/// Where stretches start and end in words that were zeros, are `here` now, and `others` in the file.
fn stretches(here: &[u64], others: &[u64]) -> Vec<(usize, usize)> {
    let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let (bytes, now) = (bytes(here), bytes(others));
    let known = vec![0; bytes.len()];
    let next = |at| next_stretch(&bytes, &known, &now, at);
    successors(next(0), |last| next(last.end)).map(|stretch| (stretch.start, stretch.end)).collect()
}

#[test]
fn number_is_written_at_once_though_some_of_its_bytes_stay() {
    assert_eq!(stretches(&[0x02_00_06, 0, 0], &[0; 3]), [(0, 8)]);
    assert_eq!(stretches(&[0, 1 << 56, 1], &[0; 3]), [(8, 24)]);
}

#[test]
fn page_takes_one_write_unless_others_have_changed_words_in_between() {
    let counters = [1; PAGE / 8];
    assert_eq!(stretches(&counters, &[0; PAGE / 8]), [(0, PAGE)]);
    assert_eq!(stretches(&[0, 1, 0, 0, 1, 0], &[0; 6]), [(8, 40)]);
    assert_eq!(stretches(&[0, 1, 0, 0, 1, 0], &[5, 5, 0, 5, 0, 5]), [(8, 16), (32, 40)]);
    assert_eq!(stretches(&[0, 0], &[5, 5]), []);
}
