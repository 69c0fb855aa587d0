//! Blocks that readers have said they will ask for: read in the order of the device, in as few requests as
//! can be.
//!
//! Purpose: files are read in the order of their names, and lie in that in which they were made. Each by
//! itself costs a request and a wait; what is known beforehand is sorted, neighbours are read together, and
//! no reader waits.
//!
//! Thread safety: of the thread that reads ahead.

use std::ops::Range;
use std::sync::Arc;

use kvfs_store::{BLOCK_BYTES, Result};

use super::block_read::Location;
use super::piece::Piece;

/// A gap up to this size is read along: a request of its own takes longer (bytes).
const GAP_BYTES_MAX: u64 = 32 << 10;

/// What will be asked for of one piece, in one stretch.
struct Wanted {
    piece: Arc<Piece>,
    range: Range<u64>,
    /// Without the gaps.
    bytes: usize,
}

/// Reads the blocks at `locations` into windows, as far as they are not at hand and there is room.
pub(crate) fn load_advised(locations: Vec<Location>) {
    // What can't be read says so to the reader that asks for it.
    let mut wanted: Vec<Wanted> = locations.into_iter().filter_map(|place| wanted_at(place).ok()?).collect();
    wanted.sort_unstable_by_key(|wanted| (Arc::as_ptr(&wanted.piece), wanted.range.start));
    let mut wanted = wanted.into_iter();
    let Some(mut last) = wanted.next() else { return };
    for next in wanted {
        if !join(&mut last, &next) {
            std::mem::replace(&mut last, next).load();
        }
    }
    last.load();
}

/// Where the device has the blocks; `None`: the cache has them.
fn wanted_at(place: Location) -> Result<Option<Wanted>> {
    let Location { piece, layer, region, first, count } = place;
    let index = piece.index()?;
    let region = index.layers()[layer].region(region);
    let extent = region.extent();
    let range = if region.unit.is_some() {
        extent.addr..extent.addr + u64::from(extent.len)
    } else {
        let addr = region.addr_of(first);
        addr..addr + u64::from(count) * BLOCK_BYTES as u64
    };
    if piece.storage().is_cached(range.start) {
        return Ok(None);
    }
    let bytes = (range.end - range.start) as usize;
    drop(index);
    Ok(Some(Wanted { piece, range, bytes }))
}

/// Makes one stretch of two, if that is one request of which a window can hold the answer.
fn join(last: &mut Wanted, next: &Wanted) -> bool {
    let storage = last.piece.storage();
    let end = last.range.end.max(next.range.end);
    let goes_together = Arc::ptr_eq(&last.piece, &next.piece)
        && next.range.start <= last.range.end + GAP_BYTES_MAX
        && end - last.range.start <= storage.window_bytes_max()
        && storage.zone_extent(last.range.start) == storage.zone_extent(next.range.start);
    if goes_together {
        // Parts of one packed unit are one read.
        last.bytes += end.saturating_sub(last.range.end.max(next.range.start)) as usize;
        last.range.end = end;
    }
    goes_together
}

impl Wanted {
    fn load(self) {
        let storage = self.piece.storage();
        // A file larger than a window is a walk of its own.
        let end = self.range.end.min(self.range.start + storage.window_bytes_max());
        let (range, bytes) = (self.range.start..end, self.bytes);
        let owner = storage.read_ahead().owner();
        storage.ctx().windows.load_advised(owner, &range, bytes, |buf, addr| storage.read(buf, addr));
    }
}
