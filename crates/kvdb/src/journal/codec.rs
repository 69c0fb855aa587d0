//! Batches as bytes.
//!
//! A batch is its first seqno and its number of operations (varints), then each operation: a tag, the
//! keyspace (varint), and its fields in the order of the match below; byte strings have their length in
//! front. Before the operations of a transaction's commit is a tag of its own with its id. The commit of a
//! transaction that has spilled has another tag, its id and its runs, in the place of all operations. Before
//! either of them may be a tag with what is to be remembered of the commit.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Batch, Compression, Keyspace, NOTE_LEN_MAX, Op, Seqno, TxnId};

use crate::format::{DecodeError, Decoder, Extent, SECTOR_BYTES, Sink};
use crate::space::{Bindings, HoldsBound, Place};

const PUT: u8 = 1;
const DELETE: u8 = 2;
const DELETE_RANGE: u8 = 3;
const MERGE: u8 = 4;
const PUT_BLOCKS: u8 = 5;
/// Not an operation: says of which transaction the batch is the commit.
const TXN: u8 = 6;

/// In the place of the operations: they are in the runs of a transaction.
const SPILLED: u8 = 7;

/// Not an operation: the commit that follows can be taken back; when it was, and a note.
const NOTED: u8 = 8;
/// As `PUT_BLOCKS`, with a wish how they are stored in front.
const PUT_BLOCKS_PACKED: u8 = 9;

/// A part of one block, with a wish how the block is stored in front. Only where both superblocks announce it
/// ([`crate::format::Feature::Patches`]).
const PATCH_BLOCK: u8 = 10;

/// As `PUT_BLOCKS`, but the data lies in its final place: extents and checksums in its stead. Only where both
/// superblocks announce it ([`crate::format::Feature::Bound`]).
const PUT_BLOCKS_BOUND: u8 = 11;

/// As `PATCH_BLOCK`, without wish and without data: that is a part of the block that a later operation of its
/// group completes and binds. Only where both superblocks announce it
/// ([`crate::format::Feature::BoundPatches`]).
const PATCH_BLOCK_LATER: u8 = 12;

/// As `PATCH_BLOCK`, without wish, up to the end of a block that lies in its final place, whole: extents and
/// checksum in the data's stead. Only where both superblocks announce it.
const PATCH_BLOCK_BOUND: u8 = 13;

/// Most bytes of an extent: its address and its length, in sectors.
const EXTENT_BYTES_MAX: usize = 10 + 5;
/// Bytes of a block's checksum.
const CRC_BYTES: usize = 4;

/// Most bytes of an operation beyond its payload: tag, compression, keyspace, block number, offset and two
/// lengths.
const OP_BYTES_MAX: usize = 2 + 5 + 10 + 2 + 2 * 5;
/// Most bytes of a batch beyond its operations: seqno, count, transaction, and what is remembered of it.
const BATCH_BYTES_MAX: usize = 2 * 10 + (1 + 10) + (1 + 10 + 2 + NOTE_LEN_MAX);
/// Byte strings up to this long are copied at replay: a slice would keep its whole group in memory.
const COPY_LEN_MAX: usize = 4096;

/// What is remembered of a commit that can be taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommitNote {
    /// When it was (nanoseconds since 1970).
    pub committed: u64,
    /// The store does not read it; at most [`NOTE_LEN_MAX`] bytes.
    pub note: Bytes,
}

/// Whose commit a batch is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommitMark {
    /// The transaction.
    pub txn: TxnId,
    /// `None`: it can't be taken back.
    pub note: Option<CommitNote>,
}

/// The commit of a transaction whose operations are in runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpilledCommit {
    /// The transaction.
    pub txn: TxnId,
    /// `None`: it can't be taken back.
    pub note: Option<CommitNote>,
    /// How many seqnos it takes, at least 1.
    pub operations: u64,
    /// Numbers of all its runs.
    pub runs: Vec<u64>,
}

/// A batch on its way into the journal.
#[derive(Clone, Copy)]
pub(crate) struct Record<'a> {
    /// The operations.
    pub batch: &'a Batch,
    /// Those whose blocks have a place of their own: the journal writes them there before it writes the
    /// group.
    pub bindings: &'a Bindings,
    /// The transaction whose commit they are.
    pub mark: Option<&'a CommitMark>,
    /// Has their blocks in memory, and is told when the journal binds small ones together that follow each
    /// other in their file; `None`: it is not to.
    pub holder: Option<&'a Arc<dyn HoldsBound>>,
}

impl Record<'_> {
    /// The blocks that are bound (bytes).
    pub(super) fn bytes_bound(&self) -> usize {
        self.bindings.blocks() as usize * BLOCK_BYTES
    }
}

/// What one record of the journal says.
#[derive(Clone, Copy)]
pub(super) enum Entry<'a> {
    Batch(Record<'a>),
    Spilled(&'a SpilledCommit),
}

impl Entry<'_> {
    /// How many seqnos it takes.
    pub(super) fn operations(&self) -> u64 {
        match self {
            Self::Batch(record) => record.batch.len() as u64,
            Self::Spilled(commit) => commit.operations,
        }
    }

    /// Blocks that are written in a place of their own (bytes).
    pub(super) fn bytes_bound(&self) -> usize {
        match self {
            Self::Batch(record) => record.bytes_bound(),
            Self::Spilled(_) => 0,
        }
    }

    /// Keys and values (bytes), but for bound blocks.
    pub(super) fn payload_bytes(&self) -> usize {
        match self {
            Self::Batch(record) => record.batch.payload_bytes() - record.bytes_bound(),
            Self::Spilled(_) => 0,
        }
    }
}

/// No less than [`encode`] appends. O(bound operations).
pub(super) fn encoded_len_max(entry: Entry<'_>) -> usize {
    match entry {
        Entry::Batch(record) => {
            let places: usize = record.bindings.iter().map(|(_, bound)| place_len_max(bound.place())).sum();
            let ops = record.batch.len() as u64;
            encoded_len_max_of(ops, entry.payload_bytes() as u64) as usize + places
        }
        Entry::Spilled(commit) => BATCH_BYTES_MAX + 10 * (1 + commit.runs.len()),
    }
}

/// No less than [`encode`] appends for `ops` operations that carry `payload_bytes`.
pub(super) fn encoded_len_max_of(ops: u64, payload_bytes: u64) -> u64 {
    BATCH_BYTES_MAX as u64 + ops * OP_BYTES_MAX as u64 + payload_bytes
}

fn place_len_max(place: &Place) -> usize {
    5 + place.extents.len() * EXTENT_BYTES_MAX + place.crcs.len() * CRC_BYTES
}

/// Where records are appended.
pub(super) trait RecordSink: Sink {
    /// What comes now is this operation. `_holder`: it may be bound yet, and who has its blocks then.
    fn begin_op(&mut self, _seqno: Seqno, _op: &Op, _holder: Option<&Arc<dyn HoldsBound>>) {}
    /// The operation that began last ends here.
    fn end_op(&mut self) {}
    /// What comes now has operations that lie elsewhere.
    fn begin_spilled(&mut self) {}
}

impl RecordSink for Vec<u8> {}

/// Appends `entry`, whose first seqno is `base`, to `sink`.
pub(super) fn encode(base: Seqno, entry: Entry<'_>, sink: &mut impl RecordSink) {
    sink.put_varint(base);
    sink.put_varint(entry.operations());
    match entry {
        Entry::Batch(record) => encode_batch(base, record, sink),
        Entry::Spilled(commit) => {
            sink.begin_spilled();
            encode_note(commit.note.as_ref(), sink);
            sink.put_u8(SPILLED);
            sink.put_varint(commit.txn.0);
            sink.put_varint(commit.runs.len() as u64);
            for &run in &commit.runs {
                sink.put_varint(run);
            }
        }
    }
}

fn encode_note(note: Option<&CommitNote>, sink: &mut impl Sink) {
    if let Some(CommitNote { committed, note }) = note {
        sink.put_u8(NOTED);
        sink.put_varint(*committed);
        sink.put_bytes(note);
    }
}

fn encode_batch(base: Seqno, record: Record<'_>, sink: &mut impl RecordSink) {
    if let Some(CommitMark { txn, note }) = record.mark {
        encode_note(note.as_ref(), sink);
        sink.put_u8(TXN);
        sink.put_varint(txn.0);
    }
    let mut bindings = record.bindings.iter().peekable();
    for ((at, op), seqno) in record.batch.ops().iter().enumerate().zip(base..) {
        let binding = bindings.next_if(|(bound, _)| *bound == at);
        sink.begin_op(seqno, op, record.holder.filter(|_| binding.is_none()));
        match (op, binding) {
            (Op::PutBlocks { keyspace, prefix, first, .. }, Some((_, bound))) => {
                encode_bound(*keyspace, prefix, *first, bound.place(), sink);
            }
            _ => encode_op(op, sink),
        }
        sink.end_op();
    }
}

/// Appends a put of blocks that lie in their place.
pub(super) fn encode_bound(
    keyspace: Keyspace,
    prefix: &[u8],
    first: u64,
    place: &Place,
    sink: &mut impl Sink,
) {
    sink.put_u8(PUT_BLOCKS_BOUND);
    sink.put_varint(u64::from(keyspace.0));
    sink.put_bytes(prefix);
    sink.put_varint(first);
    encode_place(place, sink);
}

/// A patch whose bytes lie in the block that it is a part of.
#[derive(Clone, Copy)]
pub(super) struct PlacedPatch<'a> {
    pub(super) keyspace: Keyspace,
    pub(super) prefix: &'a [u8],
    pub(super) block: u64,
    pub(super) offset: usize,
}

/// Appends a patch of `len` bytes that lies in a block that a later operation binds.
pub(super) fn encode_patch_later(patch: PlacedPatch<'_>, len: usize, sink: &mut impl Sink) {
    encode_patch(PATCH_BLOCK_LATER, patch, sink);
    sink.put_varint(len as u64);
}

/// Appends a patch that completes its block, which lies in its place.
pub(super) fn encode_patch_bound(patch: PlacedPatch<'_>, place: &Place, sink: &mut impl Sink) {
    encode_patch(PATCH_BLOCK_BOUND, patch, sink);
    encode_place(place, sink);
}

fn encode_patch(tag: u8, patch: PlacedPatch<'_>, sink: &mut impl Sink) {
    sink.put_u8(tag);
    sink.put_varint(patch.keyspace.0.into());
    sink.put_bytes(patch.prefix);
    sink.put_varint(patch.block);
    sink.put_varint(patch.offset as u64);
}

fn encode_place(place: &Place, sink: &mut impl Sink) {
    sink.put_varint(place.extents.len() as u64);
    for extent in &place.extents {
        sink.put_varint(extent.addr / SECTOR_BYTES);
        sink.put_varint(u64::from(extent.len) / SECTOR_BYTES);
    }
    for crc in &place.crcs {
        sink.put_u32(*crc);
    }
}

fn encode_op(op: &Op, sink: &mut impl Sink) {
    let mut start = |tag: u8, keyspace: &Keyspace| {
        sink.put_u8(tag);
        sink.put_varint(keyspace.0.into());
    };
    match op {
        Op::Put { keyspace, key, value } => {
            start(PUT, keyspace);
            sink.put_bytes(key);
            sink.put_bytes(value);
        }
        Op::Delete { keyspace, key } => {
            start(DELETE, keyspace);
            sink.put_bytes(key);
        }
        Op::DeleteRange { keyspace, start: from, end } => {
            start(DELETE_RANGE, keyspace);
            sink.put_bytes(from);
            sink.put_bytes(end);
        }
        Op::Merge { keyspace, key, operand } => {
            start(MERGE, keyspace);
            sink.put_bytes(key);
            sink.put_bytes(operand);
        }
        Op::PutBlocks { keyspace, prefix, first, data, compression } => {
            if *compression == Compression::None {
                start(PUT_BLOCKS, keyspace);
            } else {
                start(PUT_BLOCKS_PACKED, keyspace);
                sink.put_u8(compression.code());
            }
            sink.put_bytes(prefix);
            sink.put_varint(*first);
            sink.put_bytes(data);
        }
        Op::PatchBlock { keyspace, prefix, block, offset, data, compression } => {
            start(PATCH_BLOCK, keyspace);
            sink.put_u8(compression.code());
            sink.put_bytes(prefix);
            sink.put_varint(*block);
            sink.put_varint(u64::from(*offset));
            sink.put_bytes(data);
        }
    }
}

/// A record of the journal, read back.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) base: Seqno,
    /// How many seqnos it takes.
    pub(super) operations: u64,
    /// Bound blocks are missing in it.
    pub(super) ops: Vec<Op>,
    /// Where those lie, by the numbers of their operations, ascending.
    pub(super) places: Vec<(usize, Place)>,
    /// Patches whose bytes are in a block that a later operation of the group binds: their numbers,
    /// ascending, and lengths.
    pub(super) later: Vec<(usize, usize)>,
    /// What [`super::bound::fetch`] could not read: numbers of operations, in any order, and how many blocks
    /// each has put.
    pub(super) unreadable: Vec<(usize, u64)>,
    pub(super) mark: Option<CommitMark>,
    pub(super) spilled: Option<SpilledCommit>,
}

impl Read {
    /// Seqno of the last operation.
    pub(super) fn last_seqno(&self) -> Seqno {
        self.base + self.operations.max(1) - 1
    }
}

/// Where the data of an operation is.
enum Data {
    Here,
    /// In its final place.
    Placed(Place),
    /// In the block that a later operation of the group binds: so many bytes.
    Later(usize),
}

fn check_patch(offset: usize, len: usize) -> Result<(), DecodeError> {
    if len == 0 || offset >= BLOCK_BYTES || len > BLOCK_BYTES - offset {
        return Err(DecodeError("a patch is no part of its block"));
    }
    Ok(())
}

/// Reads the batches of one group in order. Long values share the group's memory.
pub(super) struct BatchReader<'a> {
    payload: &'a Bytes,
    decoder: Decoder<'a>,
}

impl<'a> BatchReader<'a> {
    pub(super) fn new(payload: &'a Bytes) -> Self {
        Self { payload, decoder: Decoder::new(payload) }
    }

    /// The next record; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Read>, DecodeError> {
        if self.decoder.is_empty() {
            return Ok(None);
        }
        let base = self.decoder.varint()?;
        let ops = self.decoder.varint()?;
        if base.checked_add(ops).is_none() {
            return Err(DecodeError("a batch passes the greatest seqno"));
        }
        let mut read = Read { base, operations: ops, ..Read::default() };
        for at in 0..ops {
            let mut tag = self.decoder.u8()?;
            let mut note = None;
            if tag == NOTED && at == 0 {
                let committed = self.decoder.varint()?;
                // A copy: it is kept for long.
                let bytes = Bytes::copy_from_slice(self.decoder.bytes()?);
                note = Some(CommitNote { committed, note: bytes });
                tag = self.decoder.u8()?;
            }
            if tag == SPILLED && at == 0 {
                read.spilled = Some(self.spilled(ops, note)?);
                break;
            }
            if tag == TXN && at == 0 {
                read.mark = Some(CommitMark { txn: TxnId(self.decoder.varint()?), note });
                tag = self.decoder.u8()?;
            }
            let number = read.ops.len();
            let (op, elsewhere) = self.op(tag)?;
            match elsewhere {
                Data::Here => {}
                Data::Placed(place) => read.places.push((number, place)),
                Data::Later(len) => read.later.push((number, len)),
            }
            read.ops.push(op);
        }
        Ok(Some(read))
    }

    fn spilled(&mut self, operations: u64, note: Option<CommitNote>) -> Result<SpilledCommit, DecodeError> {
        let txn = TxnId(self.decoder.varint()?);
        let count = self.decoder.varint()?;
        // An absurd count fails at the first missing number, not at an allocation.
        let runs = (0..count).map(|_| self.decoder.varint()).collect::<Result<_, _>>()?;
        Ok(SpilledCommit { txn, note, operations, runs })
    }

    /// An operation, and where its data is; without it where that is not here.
    fn op(&mut self, tag: u8) -> Result<(Op, Data), DecodeError> {
        let keyspace = Keyspace(self.decoder.varint_u32()?);
        let op = match tag {
            PUT_BLOCKS_BOUND => {
                let (prefix, first) = (self.bytes()?, self.decoder.varint()?);
                let (data, compression) = (Bytes::new(), Compression::None);
                let op = Op::PutBlocks { keyspace, prefix, first, data, compression };
                return Ok((op, Data::Placed(self.place()?)));
            }
            PATCH_BLOCK_LATER | PATCH_BLOCK_BOUND => return self.placed_patch(tag, keyspace),
            PUT => Op::Put { keyspace, key: self.bytes()?, value: self.bytes()? },
            DELETE => Op::Delete { keyspace, key: self.bytes()? },
            DELETE_RANGE => Op::DeleteRange { keyspace, start: self.bytes()?, end: self.bytes()? },
            MERGE => Op::Merge { keyspace, key: self.bytes()?, operand: self.bytes()? },
            PUT_BLOCKS | PUT_BLOCKS_PACKED => Op::PutBlocks {
                keyspace,
                compression: if tag == PUT_BLOCKS { Compression::None } else { self.compression()? },
                prefix: self.bytes()?,
                first: self.decoder.varint()?,
                data: self.bytes()?,
            },
            PATCH_BLOCK => {
                let compression = self.compression()?;
                let (prefix, block) = (self.bytes()?, self.decoder.varint()?);
                let offset = self.decoder.varint_u32()? as usize;
                let data = self.bytes()?;
                check_patch(offset, data.len())?;
                Op::PatchBlock { keyspace, prefix, block, offset: offset as u16, data, compression }
            }
            _ => return Err(DecodeError("an operation has an unknown tag")),
        };
        Ok((op, Data::Here))
    }

    /// A patch whose data lies in the block that it is a part of.
    fn placed_patch(&mut self, tag: u8, keyspace: Keyspace) -> Result<(Op, Data), DecodeError> {
        let (prefix, block) = (self.bytes()?, self.decoder.varint()?);
        let offset = self.decoder.varint_u32()? as usize;
        let data = if tag == PATCH_BLOCK_LATER {
            let len = self.decoder.varint_u32()? as usize;
            check_patch(offset, len)?;
            Data::Later(len)
        } else {
            let place = self.place()?;
            if offset >= BLOCK_BYTES || place.crcs.len() != 1 {
                return Err(DecodeError("a bound patch does not end its block"));
            }
            Data::Placed(place)
        };
        let (offset, empty, compression) = (offset as u16, Bytes::new(), Compression::None);
        Ok((Op::PatchBlock { keyspace, prefix, block, offset, data: empty, compression }, data))
    }

    fn place(&mut self) -> Result<Place, DecodeError> {
        let wrong = DecodeError("a place of blocks is none");
        let mut place = Place::default();
        let mut sectors = 0_u64;
        for _ in 0..self.decoder.varint()? {
            let addr = self.decoder.varint()?.checked_mul(SECTOR_BYTES).ok_or(wrong)?;
            let len = self.decoder.varint_u32()?;
            sectors += u64::from(len);
            let len = u64::from(len).checked_mul(SECTOR_BYTES).and_then(|len| u32::try_from(len).ok());
            place.extents.push(Extent { addr, len: len.ok_or(wrong)? });
        }
        // An absurd count fails at the first missing checksum, not at an allocation.
        for _ in 0..sectors {
            place.crcs.push(self.decoder.u32()?);
        }
        Ok(place)
    }

    fn compression(&mut self) -> Result<Compression, DecodeError> {
        let code = self.decoder.u8()?;
        Compression::from_code(code).ok_or(DecodeError("blocks wish for an unknown compression"))
    }

    fn bytes(&mut self) -> Result<Bytes, DecodeError> {
        let bytes = self.decoder.bytes()?;
        Ok(if bytes.len() <= COPY_LEN_MAX {
            Bytes::copy_from_slice(bytes)
        } else {
            self.payload.slice_ref(bytes)
        })
    }
}
