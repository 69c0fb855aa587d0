//! Buffers in pieces.

use super::*;

#[test]
fn buffers_are_cut_into_batches_whatever_their_lengths() {
    let data: Vec<u8> = (0..=250).cycle().take(2 * WRITE_LEN_MAX + 11).collect();
    for cuts in [vec![], vec![1, 1, 5], vec![WRITE_LEN_MAX - 1, WRITE_LEN_MAX + 3], vec![WRITE_LEN_MAX]] {
        let (mut buffers, mut from) = (vec![IoSlice::new(&[])], 0);
        for cut in cuts.into_iter().chain([data.len()]) {
            buffers.push(IoSlice::new(&data[from..cut]));
            from = cut;
        }
        let pieces: Vec<Bytes> = batches(&buffers).collect();
        assert_eq!(pieces.iter().map(Bytes::len).collect::<Vec<_>>(), [WRITE_LEN_MAX, WRITE_LEN_MAX, 11]);
        assert!(pieces.concat() == data);
    }
    assert_eq!(batches(&[]).count(), 0);
}

/// The peak of this process's memory (bytes).
fn peak_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("is told");
    line.split_whitespace().next().and_then(|text| text.parse::<usize>().ok()).expect("a number") << 10
}

#[test]
fn batch_of_a_long_write_takes_the_memory_of_one_piece() {
    // Pages that were never written take none.
    let data = vec![0; 1 << 30];
    let before = peak_bytes();
    let buffers = [IoSlice::new(&data)];
    assert_eq!(batches(&buffers).map(|piece| piece.len()).sum::<usize>(), data.len());
    assert!(peak_bytes() - before < data.len() / 4);
}
