//! Pieces against sorted maps, under many sizes of zones and blocks.

mod advice;
mod blocks;
mod faults;
mod hostile;
mod tuples;
mod verify;

use std::sync::Arc;

use kvfs_device::{Device, FaultDevice, MemoryDevice};
use kvfs_store::{KeyspaceKind, Seqno};

use super::{Piece, PieceWriter, RunContext, RunOptions};
use crate::cache::Policy;
use crate::format::{PieceId, RecordKind, ZoneId};
use crate::space::{Budget, Stream, Zones};

const KEYSPACE: u32 = 5;

/// Of the store that the pieces are in.
const SALT: u32 = 0x5eed;

/// A key, its version, and what it is: in record order.
type Record = (Vec<u8>, Seqno, RecordKind, Vec<u8>);

/// A device in memory with an allocator, a cache and an accountant over it.
struct Rig {
    device: Arc<FaultDevice<MemoryDevice>>,
    ctx: Arc<RunContext>,
}

impl Rig {
    fn new(zone_bytes: u32, options: RunOptions) -> Self {
        let device = Arc::new(FaultDevice::new(MemoryDevice::new(256 << 20)));
        let seam: Arc<dyn Device> = device.clone();
        let zones = Zones::new(seam.clone(), zone_bytes, 256 << 20, ZoneId(1));
        Self { device, ctx: Self::context(seam, zones, options) }
    }

    fn context(device: Arc<dyn Device>, zones: Arc<Zones>, options: RunOptions) -> Arc<RunContext> {
        RunContext::new(device, zones, SALT, 64 << 20, Policy::default(), options)
    }

    fn writer(&self, kind: KeyspaceKind, id: u64) -> PieceWriter {
        let stream = match kind {
            KeyspaceKind::Tuple => Stream::FlushTuple,
            KeyspaceKind::Block => Stream::FlushBlock,
        };
        PieceWriter::new(Arc::clone(&self.ctx), KEYSPACE, kind, stream, Budget::Ordinary, PieceId(id))
    }

    /// Opens a piece a second time, from the device. It gets references of its own.
    fn reopen(&self, piece: &Piece) -> Arc<Piece> {
        for zone_use in &piece.desc().zones {
            self.ctx.zones.retain_use(zone_use);
        }
        Piece::open(Arc::clone(&self.ctx), KEYSPACE, piece.kind(), piece.desc(), 0).expect("own piece")
    }

    /// Forgets what was read and read ahead.
    fn make_cold(&self, piece: &Piece) {
        self.ctx.cache.shrink_to(0);
        self.ctx.windows.forget(piece.storage().read_ahead().owner());
    }

    fn bytes_live(&self) -> u64 {
        self.ctx.zones.space().bytes_live
    }
}

/// Small sizes, so that few records make many blocks, windows and chunks.
fn small_options() -> RunOptions {
    RunOptions {
        tuple_block_bytes: 1024,
        read_ahead_bytes: 64 << 10,
        write_chunk_bytes: 32 << 10,
        region_blocks_max: 16,
        bypass_bytes: 16 << 10,
    }
}
