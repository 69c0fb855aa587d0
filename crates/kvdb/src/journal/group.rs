//! A group under construction: header space and payload in aligned chunks.
//!
//! The chunks never move, so a payload is copied once, from the batch into the buffer that is
//! written; and they are used again, so that nothing is zeroed or allocated per group. Blocks that are
//! bound are not copied at all: they stay where the memtable has them, until they are written in their place.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_device::{AlignedBuf, Device};
use kvfs_store::{Op, Seqno};
use zerocopy::IntoBytes;

use super::JournalArea;
use super::codec::Record;
use super::header::{GroupFields, Header};
use crate::cache::{Accountant, Charge, Pool};
use crate::format::{Crc32c, FRAME_HEADER_BYTES as HEADER_BYTES, Sink, group_len};
use crate::space::Bound;

/// Size of a chunk, and so of a device write (bytes).
pub(super) const CHUNK_BYTES: usize = 1 << 20;
/// Spare chunks that are kept; more are given back after a large group.
const SPARE_CHUNKS_MAX: usize = 6;

/// Memory for a part of a group.
struct Chunk {
    buf: AlignedBuf,
    _charge: Option<Charge>,
}

/// Batches that go to the device together.
pub(super) struct Group {
    /// Where it begins in the stream.
    pub(super) lsn: u64,
    /// Bytes so far, header space included.
    len: usize,
    chunks: Vec<Chunk>,
    /// Chunks for groups to come.
    spare: Vec<Chunk>,
    /// Is told of chunks, if it is there.
    accountant: Option<Arc<Accountant>>,
    /// Blocks that are written, in their place, before the group is.
    bound: Vec<(Bytes, Arc<Bound>)>,
    bytes_bound: usize,
    pub(super) first_seqno: Seqno,
    pub(super) batches: u32,
}

impl Group {
    /// An empty group at `lsn`.
    pub(super) fn new(lsn: u64) -> Self {
        Self {
            lsn,
            len: HEADER_BYTES,
            chunks: Vec::new(),
            spare: Vec::new(),
            accountant: None,
            bound: Vec::new(),
            bytes_bound: 0,
            first_seqno: 0,
            batches: 0,
        }
    }

    /// Chunks that this group and those behind it take from now on are charged.
    pub(super) fn charge_to(&mut self, accountant: Arc<Accountant>) {
        self.accountant = Some(accountant);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches == 0
    }

    /// Bytes so far, header included.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that its writing writes so far, bound blocks included.
    pub(super) fn bytes(&self) -> usize {
        self.len + self.bytes_bound
    }

    /// Bound blocks (bytes).
    pub(super) fn bytes_bound(&self) -> usize {
        self.bytes_bound
    }

    /// Takes the blocks of a batch along that are bound.
    pub(super) fn bind(&mut self, record: Record<'_>) {
        for (at, bound) in record.bindings.iter() {
            if let Some(Op::PutBlocks { data, .. }) = record.batch.ops().get(at) {
                self.bytes_bound += data.len();
                self.bound.push((data.clone(), Arc::clone(bound)));
            }
        }
    }

    /// Where the next group begins; `lsn` while this one is empty.
    pub(super) fn end(&self) -> u64 {
        if self.is_empty() { self.lsn } else { self.lsn + group_len(self.len as u64) }
    }

    /// Takes the content out, to be written; leaves an empty group behind it.
    pub(super) fn take(&mut self) -> Self {
        let mut next = Self::new(self.end());
        next.spare = std::mem::take(&mut self.spare);
        next.accountant.clone_from(&self.accountant);
        std::mem::replace(self, next)
    }

    /// The chunks of a written group serve again. Its bound blocks belong to the memtable alone from here on.
    pub(super) fn recycle(&mut self, written: Self) {
        self.spare.extend(written.chunks);
        self.spare.truncate(SPARE_CHUNKS_MAX);
    }

    /// Writes the bound blocks to their place, not durably.
    pub(super) fn write_bound(&self, device: &dyn Device) -> io::Result<()> {
        for (data, bound) in &self.bound {
            let mut rest = &data[..];
            for extent in &bound.place().extents {
                let (here, more) = rest.split_at(extent.len as usize);
                device.write_at(here, extent.addr)?;
                rest = more;
            }
        }
        Ok(())
    }

    fn new_chunk(&self) -> Chunk {
        let charge = |accountant: &Arc<Accountant>| accountant.charge(Pool::Io, CHUNK_BYTES as u64);
        Chunk { buf: AlignedBuf::zeroed(CHUNK_BYTES), _charge: self.accountant.as_ref().map(charge) }
    }

    /// Computes the checksums and writes the group, not durably.
    pub(super) fn write(
        &mut self,
        device: &dyn Device,
        area: JournalArea,
        epoch: u64,
        flushed_before: u64,
    ) -> io::Result<()> {
        self.seal(area.salt, epoch, flushed_before);
        let end = group_len(self.len as u64) as usize;
        for (index, chunk) in self.chunks.iter().enumerate() {
            let from = index * CHUNK_BYTES;
            let bytes = &chunk.buf.as_ref()[..CHUNK_BYTES.min(end - from)];
            area.for_each_stretch(self.lsn + from as u64, bytes.len(), |addr, range| {
                device.write_at(&bytes[range], addr)
            })?;
        }
        Ok(())
    }

    /// Zeroes the padding (a recycled chunk holds old bytes there) and fills in the header.
    fn seal(&mut self, salt: u32, epoch: u64, flushed_before: u64) {
        let padding = self.len..group_len(self.len as u64) as usize;
        if !padding.is_empty() {
            let chunk = &mut self.chunks[padding.start / CHUNK_BYTES];
            let first = padding.start % CHUNK_BYTES;
            chunk.buf.as_mut()[first..first + padding.len()].fill(0);
        }
        let mut crc = Crc32c::salted(salt);
        for (index, chunk) in self.chunks.iter().enumerate() {
            let from = if index == 0 { HEADER_BYTES } else { 0 };
            let to = CHUNK_BYTES.min(self.len - index * CHUNK_BYTES);
            crc.update(&chunk.buf.as_ref()[from..to]);
        }
        let fields = GroupFields {
            lsn: self.lsn.into(),
            epoch: epoch.into(),
            flushed_before: flushed_before.into(),
            first_seqno: self.first_seqno.into(),
            batches: self.batches.into(),
            reserved: [0; 12],
        };
        let header = Header::new(fields, self.len - HEADER_BYTES, crc.finish(), salt);
        self.chunks[0].buf.as_mut()[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    }
}

impl Sink for Group {
    #[inline]
    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (index, offset) = (self.len / CHUNK_BYTES, self.len % CHUNK_BYTES);
            if index == self.chunks.len() {
                let chunk = self.spare.pop().unwrap_or_else(|| self.new_chunk());
                self.chunks.push(chunk);
            }
            let room = &mut self.chunks[index].buf.as_mut()[offset..];
            let (now, later) = bytes.split_at(bytes.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            self.len += now.len();
            bytes = later;
        }
    }
}
