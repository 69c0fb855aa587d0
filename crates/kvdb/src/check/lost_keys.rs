//! Which keys are concerned when a part of a run can't be read.
//!
//! Thread safety: pure functions over a view.

use bytes::Bytes;
use kvfs_store::{Result, Seqno};

use crate::layers::view::View;
use crate::memtable::{BlockFill, BlockState, split_block_key};
use crate::table::LostPart;
use crate::version::RunId;

/// Blocks are asked for so many at a time.
const BLOCKS_AT_ONCE: u64 = 1024;

/// What is lost of a keyspace's newest state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LostKeys {
    /// Keys that are there with an older value, or although they had been deleted.
    pub older: Vec<Bytes>,
    /// At most so many keys are gone of which only the range is known; `None`: any number.
    pub gone_max: Option<u64>,
    /// Stretches of blocks that read as holes: prefix, first block, count.
    pub blocks: Vec<(Bytes, u64, u64)>,
}

/// What is lost with a part of the run at `place` of a keyspace of blocks. Nothing of that run, or of older
/// ones, is read.
pub(crate) fn blocks_of(
    view: &View,
    seqno: Seqno,
    keyspace: u32,
    (part, place): (&LostPart, (Seqno, RunId)),
) -> Result<LostKeys> {
    let mut found = LostKeys::default();
    if !part.is_hole {
        return Ok(found);
    }
    let ends = (split_block_key(&part.first), split_block_key(&part.last));
    let (Some((prefix, first)), Some((_, last))) = ends else { return Ok(found) };
    let prefix = Bytes::copy_from_slice(prefix);
    let mut from = first;
    while from <= last {
        let count = (last - from + 1).min(BLOCKS_AT_ONCE);
        let states = undecided_above(view, keyspace, (&prefix, from, count), seqno, place)?;
        for (block, is_lost) in (from..).zip(states) {
            match found.blocks.last_mut() {
                _ if !is_lost => {}
                Some((_, first, count)) if *first + *count == block => *count += 1,
                _ => found.blocks.push((prefix.clone(), block, 1)),
            }
        }
        from += count;
    }
    found.gone_max = Some(found.blocks.iter().map(|(.., count)| count).sum());
    Ok(found)
}

/// Of each block, whether no layer above the damaged run says what it is.
fn undecided_above(
    view: &View,
    keyspace: u32,
    (prefix, first, count): (&[u8], u64, u64),
    seqno: Seqno,
    place: (Seqno, RunId),
) -> Result<Vec<bool>> {
    let mut fill = BlockFill::bases(prefix, first, count as usize, seqno);
    view.fill_above(keyspace, &mut fill, place)?;
    Ok((0..count as usize).map(|at| fill.state(at) == BlockState::Unknown).collect())
}
