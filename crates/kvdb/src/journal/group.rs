//! A group under construction: header space and payload in aligned chunks.
//!
//! The chunks never move, so a payload is copied once, from the batch into the buffer that is
//! written; and they are used again, so that nothing is zeroed or allocated per group. Blocks that are
//! bound are not copied at all: they stay where the memtable has them, until they are written in their place.
//! Small writes that are bound when the group is complete are taken out of it again ([`super::gather`]).
//!
//! Thread safety: belongs to one thread, or is behind the log's lock.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_device::{AlignedBuf, Device};
use kvfs_store::{BLOCK_BYTES, Op, Seqno};
use zerocopy::IntoBytes;

use super::JournalArea;
use super::codec::{Entry, RecordSink, encode};
use super::gather::{Gathering, PlacedSequence, Sequence, Told};
use super::header::{GroupFields, Header};
use crate::cache::{Accountant, Charge, Pool};
use crate::format::{Crc32c, FRAME_HEADER_BYTES as HEADER_BYTES, Sink, crc32c, group_len};
use crate::space::{Bound, HoldsBound};

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
    /// Which of its writes are small.
    small: Gathering,
    /// Small writes that lie in a place of their own when the group is written.
    sequences: Vec<(Sequence, Bound)>,
    /// What the group is shorter without their data (bytes).
    bytes_saved: usize,
    /// Who is to know of them when that is written.
    told: Vec<Told>,
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
            small: Gathering::default(),
            sequences: Vec::new(),
            bytes_saved: 0,
            told: Vec::new(),
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

    /// Appends a record, whose first seqno is `base`.
    pub(super) fn append(&mut self, base: Seqno, entry: Entry<'_>) {
        if self.is_empty() {
            self.first_seqno = base;
        }
        if let Entry::Batch(record) = entry {
            for (at, bound) in record.bindings.iter() {
                if let Some(Op::PutBlocks { data, .. }) = record.batch.ops().get(at) {
                    self.bytes_bound += data.len();
                    self.bound.push((data.clone(), Arc::clone(bound)));
                }
            }
        }
        encode(base, entry, self);
        self.batches += 1;
    }

    /// Its small writes.
    pub(super) fn small(&self) -> &Gathering {
        &self.small
    }

    /// These sequences of it have been given places. The next thing is [`Group::take`].
    pub(super) fn bind(&mut self, found: Vec<(Sequence, Bound)>) {
        for (sequence, bound) in found {
            let (mut before, mut after) = (0, Counter(0));
            for op in self.small.ops(&sequence) {
                before += op.encoded.len();
                op.encode(sequence.first, bound.place(), &mut after);
            }
            // Else they are patches of so few bytes that their places are longer.
            if after.0 < before {
                self.bytes_saved += before - after.0;
                self.bytes_bound += sequence.blocks * BLOCK_BYTES;
                self.small.count(&sequence);
                self.sequences.push((sequence, bound));
            }
        }
    }

    /// Where the next group begins; `lsn` while this one is empty.
    pub(super) fn end(&self) -> u64 {
        if self.is_empty() { self.lsn } else { self.lsn + group_len((self.len - self.bytes_saved) as u64) }
    }

    /// Takes the content out, to be written; leaves an empty group behind it.
    pub(super) fn take(&mut self) -> Self {
        let mut next = Self::new(self.end());
        next.spare = std::mem::take(&mut self.spare);
        // What is left of it then goes to other chunks.
        self.spare.extend(if self.sequences.is_empty() { None } else { next.spare.pop() });
        next.accountant.clone_from(&self.accountant);
        std::mem::replace(self, next)
    }

    /// Takes the small writes out that were given places, and puts these in.
    pub(super) fn gather(&mut self) {
        if self.sequences.is_empty() {
            return;
        }
        let small = std::mem::take(&mut self.small);
        let (chunks, len) = (std::mem::take(&mut self.chunks), self.len);
        let mut sequences = Vec::new();
        for (sequence, mut bound) in std::mem::take(&mut self.sequences) {
            let mut data = AlignedBuf::zeroed(sequence.blocks * BLOCK_BYTES);
            let mut rest = data.as_mut();
            for part in small.ops(&sequence).flat_map(|op| parts(&chunks, op.data())) {
                let (here, more) = rest.split_at_mut(part.len());
                here.copy_from_slice(part);
                rest = more;
            }
            bound.set_crcs(data.as_ref().chunks_exact(BLOCK_BYTES).map(crc32c).collect());
            let bound = Arc::new(bound);
            self.bound.push((Bytes::from_owner(data), Arc::clone(&bound)));
            sequences.push(PlacedSequence { sequence, bound });
        }
        self.len = HEADER_BYTES;
        let mut from = HEADER_BYTES;
        let moved = small.in_order(&sequences);
        for (op, PlacedSequence { sequence, bound }) in &moved {
            self.put_parts(&chunks, from..op.encoded.start);
            op.encode(sequence.first, bound.place(), self);
            from = op.encoded.end;
        }
        self.put_parts(&chunks, from..len);
        assert_eq!(self.len + self.bytes_saved, len, "a group is as long as it said");
        self.spare.extend(chunks);
        self.told = small.to_tell(&moved);
    }

    fn put_parts(&mut self, chunks: &[Chunk], range: Range<usize>) {
        parts(chunks, range).for_each(|part| self.put(part));
    }

    /// Tells who has the small writes where they lie now, and are written.
    pub(super) fn tell_holders(&mut self) {
        self.told.drain(..).for_each(Told::tell);
    }

    /// The chunks of a written group serve again. Its bound blocks belong to the memtable alone from here on.
    pub(super) fn recycle(&mut self, written: Self) {
        self.spare.extend(written.chunks);
        self.spare.extend(written.spare);
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

/// The bytes of a range that lies in these chunks.
fn parts(chunks: &[Chunk], range: Range<usize>) -> impl Iterator<Item = &[u8]> {
    let (first, last) = (range.start / CHUNK_BYTES, range.end.div_ceil(CHUNK_BYTES));
    chunks[first..last.max(first)].iter().zip(first..).map(move |(chunk, index)| {
        let begin = index * CHUNK_BYTES;
        let (from, to) = (range.start.max(begin) - begin, range.end.min(begin + CHUNK_BYTES) - begin);
        &chunk.buf.as_ref()[from..to]
    })
}

/// Counts what is appended to it (bytes).
struct Counter(usize);

impl Sink for Counter {
    fn put(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

impl RecordSink for Group {
    fn begin_op(&mut self, seqno: Seqno, op: &Op, holder: Option<&Arc<dyn HoldsBound>>) {
        self.small.begin_op(self.len, seqno, op, holder);
    }

    fn end_op(&mut self) {
        self.small.end_op(self.len);
    }

    fn begin_spilled(&mut self) {
        self.small.part_all();
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
