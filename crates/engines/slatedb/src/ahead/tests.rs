use super::*;

/// What is fetched at each of these reads.
fn fetched(reads: &[Range<u64>]) -> Vec<Option<Range<u64>>> {
    let mut stream = Stream::default();
    reads.iter().map(|blocks| stream.note(blocks, AHEAD_BLOCKS_MAX)).collect()
}

#[test]
fn a_sequential_reader_is_ahead_of_more_and_more() {
    let reads: Vec<_> = (0..200).map(|read| read * 32..(read + 1) * 32).collect();
    let found = fetched(&reads);
    assert_eq!(found[0], Some(32..288));
    assert_eq!(found[1], Some(288..544));
    // Each block once, in order, and at last as far ahead as it goes.
    let mut at = 32;
    for (read, range) in reads.iter().zip(&found) {
        if let Some(range) = range {
            assert_eq!(range.start, at);
            at = range.end;
        }
        assert!(at <= read.end + AHEAD_BLOCKS_MAX);
    }
    assert!(at > reads.last().unwrap().end + AHEAD_BLOCKS_MAX - PIECE_BLOCKS);
}

#[test]
fn a_reader_here_and_there_has_nothing_fetched_ahead() {
    let reads = [70_000..70_001, 3000..3001, 90_000..90_008, 10_000..10_001];
    assert!(fetched(&reads).iter().all(Option::is_none));
    let last = u64::MAX - 4..u64::MAX;
    assert!(fetched(&[last.clone(), last]).iter().all(Option::is_none), "there is nothing behind it");
    assert!(fetched(&[0..2, 9000..9032]).iter().all(Option::is_none), "a short first read");
}

#[test]
fn reads_that_overtake_each_other_are_one_stream() {
    let found = fetched(&[0..32, 64..96, 32..64, 128..160, 96..128]);
    let total: u64 = found.iter().flatten().map(|range| range.end - range.start).sum();
    assert!(found[0].is_some() && total >= AHEAD_BLOCKS_MAX - PIECE_BLOCKS, "{found:?}");
}

#[test]
fn who_comes_to_a_piece_under_way_waits_for_that_alone() {
    let mut stream = Stream::default();
    let (first, second) = (stream.add(0..256), stream.add(256..512));
    assert_eq!(stream.waited_for(&(0..8)).len(), 1);
    assert_eq!(stream.waited_for(&(250..260)).len(), 2);
    assert!(stream.waited_for(&(512..520)).is_empty());
    drop(first);
    let _third = stream.add(512..768);
    assert!(stream.waited_for(&(0..8)).is_empty(), "it has come");
    assert_eq!(stream.waited_for(&(0..600)).len(), 2);
    drop(second);
}
