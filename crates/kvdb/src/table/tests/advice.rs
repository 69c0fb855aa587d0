//! Advice: what is read of it, how often, and what becomes of windows that no reader asks for.

use kvfs_device::{AlignedBuf, Call, FaultError, FaultRule, Rng};
use kvfs_store::{BLOCK_BYTES, Compression, KeyspaceKind, Seqno};

use super::*;
use crate::cache::Pool;
use crate::format::SeqnoSpan;
use crate::memtable::BlockFill;
use crate::table::{Location, load_advised};

/// Files of one piece, in the order in which they were made.
pub(super) struct Files {
    pub(super) rig: Rig,
    pub(super) piece: Arc<Piece>,
    contents: Vec<Vec<u8>>,
}

impl Files {
    pub(super) fn new(count: u64, compression: Compression) -> Self {
        let mut rng = Rng::new(7);
        let rig = Rig::new(8 << 20, RunOptions::default());
        let mut writer = rig.writer(KeyspaceKind::Block, 1);
        let mut contents = Vec::new();
        for number in 0..count {
            let blocks: Vec<Vec<u8>> = (0..rng.range(1, 30)).map(|_| block(&mut rng)).collect();
            let span = SeqnoSpan { count: blocks.len() as u32, seqno: number + 1 };
            let data: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
            writer.add_blocks(0, &number.to_be_bytes(), 0, &[span], &data, compression).expect("space");
            contents.push(blocks.concat());
        }
        let (_, piece) = writer.finish().expect("space");
        Self { rig, piece, contents }
    }

    fn advise(&self, numbers: &[u64]) {
        let mut locations: Vec<Location> = Vec::new();
        for number in numbers {
            let (prefix, blocks) =
                (number.to_be_bytes(), self.contents[*number as usize].len() / BLOCK_BYTES);
            let mut fill = BlockFill::presence(&prefix, 0, blocks, Seqno::MAX);
            self.piece.locate_from(&mut fill, &[], &mut locations).expect("readable");
        }
        load_advised(locations);
    }

    fn read(&self, number: u64) {
        let expected = &self.contents[number as usize];
        let (mut buf, prefix) = (AlignedBuf::zeroed(expected.len()), number.to_be_bytes());
        let mut fill = BlockFill::new(&prefix, 0, Seqno::MAX, buf.as_mut());
        self.piece.fill(&mut fill).expect("readable");
        assert!(fill.is_complete(), "file {number}");
        drop(fill);
        assert!(buf.as_ref() == &expected[..], "file {number}");
    }

    fn read_all(&self, numbers: &[u64]) {
        for &number in numbers {
            self.read(number);
        }
    }

    pub(super) fn requests(&self, body: impl FnOnce()) -> u64 {
        let before = self.rig.device.counts().of(Call::Read);
        body();
        self.rig.device.counts().of(Call::Read) - before
    }
}

/// A block that can be packed.
fn block(rng: &mut Rng) -> Vec<u8> {
    let mut block = vec![0; BLOCK_BYTES];
    rng.fill(&mut block[..BLOCK_BYTES / 2]);
    block
}

/// `0 .. count` in an order of its own.
fn scattered(count: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    order.sort_by_key(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    order
}

#[test]
fn advised_files_are_read_together_and_once_whatever_their_order() {
    for compression in [Compression::None, Compression::Lz4] {
        let files = Files::new(600, compression);
        let order = scattered(600);
        let requests = files.requests(|| {
            for group in order.chunks(30) {
                files.advise(group);
                let at_hand = files.requests(|| files.read_all(group));
                assert_eq!(at_hand, 0, "{compression:?}");
            }
        });
        // A file may go on in the next zone.
        assert!(requests <= 610, "{requests}, {compression:?}");
    }
}

#[test]
fn neighbours_are_one_request_and_what_is_read_ahead_is_not_read_again() {
    let files = Files::new(60, Compression::None);
    let order = scattered(60);
    let bytes: usize = files.contents.iter().map(Vec::len).sum();
    let windows = (bytes as u64).div_ceil(files.rig.ctx.windows.window_bytes_max());
    let requests = files.requests(|| files.advise(&order));
    assert!(requests <= windows + 2, "{requests} for {bytes} bytes");
    assert_eq!(files.requests(|| files.advise(&order[..1])), 0, "it is at hand");
    assert_eq!(files.requests(|| files.read_all(&order)), 0);
}

#[test]
fn advice_that_is_not_followed_makes_room_for_what_is() {
    let files = Files::new(3000, Compression::None);
    // Nothing of this is read.
    files.advise(&scattered(3000)[..500]);
    let order: Vec<u64> = (2000..2900).collect();
    let by_themselves: u64 = files.requests(|| {
        for group in order.chunks(10) {
            files.advise(group);
            files.read_all(group);
        }
    });
    assert!(by_themselves <= 400, "{by_themselves} requests for 90 pieces of advice");
    let used = files.rig.ctx.accountant.used(Pool::Io);
    assert!(used <= 4 << 20, "{used} bytes, of a sixteenth of 64 MiB");
}

#[test]
fn what_can_not_be_read_is_told_to_the_reader_alone() {
    let files = Files::new(10, Compression::None);
    files.rig.device.add(FaultRule::once(Call::Read, 0, FaultError::EIO));
    files.advise(&[3]);
    files.read(3);
}
