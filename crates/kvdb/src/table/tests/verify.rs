//! Verifying a piece: by how many requests, and that damage is found in whatever is read together.

use kvfs_device::Rng;
use kvfs_store::{BLOCK_BYTES, Compression};

use super::advice::Files;
use crate::format::{Layer, Region};

#[test]
fn what_lies_together_is_verified_by_one_request() {
    const FILES: u64 = 500;
    for compression in [Compression::None, Compression::Lz4] {
        let files = Files::new(FILES, compression);
        let requests = files.requests(|| {
            files.piece.verify().expect("sound");
        });
        let bytes = files.piece.desc().data_bytes;
        let at_once = files.rig.ctx.options.read_ahead_bytes as u64;
        let zones = files.piece.desc().zones.len() as u64;
        // A request ends where the next region does not fit, and with its zone; the index takes a few, too.
        let requests_max = 2 * bytes.div_ceil(at_once) + zones + 8;
        assert!(requests <= requests_max && requests_max < FILES / 2, "{requests} of {requests_max}");
    }
}

#[test]
fn damage_of_any_block_is_found_and_named() {
    let files = Files::new(60, Compression::None);
    let index = files.piece.index().expect("readable");
    let regions: Vec<Region<'_>> = index.layers().iter().flat_map(Layer::regions).collect();
    let mut rng = Rng::new(3);
    for region in &regions {
        let block = region.first + rng.below(region.count.into());
        let addr = region.addr_of(block);
        files.rig.device.flip(addr + rng.below(BLOCK_BYTES as u64), 1 << rng.below(8));
        let error = files.piece.verify().expect_err("damaged").to_string();
        assert!(error.contains(&format!("{addr:#x}")), "block {block} at {addr:#x}: {error}");
        files.rig.device.clear();
    }
    files.piece.verify().expect("sound");
}
