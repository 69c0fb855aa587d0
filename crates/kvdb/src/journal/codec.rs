//! Batches as bytes.
//!
//! A batch is its first seqno and its number of operations (varints), then each operation: a tag,
//! the keyspace (varint), and its fields in the order of the match below; byte strings have their
//! length in front. Before the operations of a transaction's commit is a tag of its own with its id.

use bytes::Bytes;
use kvfs_store::{Batch, Keyspace, Op, Seqno, TxnId};

use crate::format::{DecodeError, Decoder, Sink};

const PUT: u8 = 1;
const DELETE: u8 = 2;
const DELETE_RANGE: u8 = 3;
const MERGE: u8 = 4;
const PUT_BLOCKS: u8 = 5;
/// Not an operation: says of which transaction the batch is the commit.
const TXN: u8 = 6;

/// Most bytes of an operation beyond its payload: tag, keyspace, block number and two lengths.
const OP_BYTES_MAX: usize = 1 + 5 + 10 + 2 * 5;
/// Most bytes of a batch beyond its operations: seqno, count, and transaction.
const BATCH_BYTES_MAX: usize = 2 * 10 + 1 + 10;
/// Byte strings up to this long are copied at replay: a slice would keep its whole group in memory.
const COPY_LEN_MAX: usize = 4096;

/// No less than [`encode`] appends. O(1).
pub(super) fn encoded_len_max(batch: &Batch) -> usize {
    encoded_len_max_of(batch.len() as u64, batch.payload_bytes() as u64) as usize
}

/// No less than [`encode`] appends for `ops` operations that carry `payload_bytes`.
pub(super) fn encoded_len_max_of(ops: u64, payload_bytes: u64) -> u64 {
    BATCH_BYTES_MAX as u64 + ops * OP_BYTES_MAX as u64 + payload_bytes
}

/// Appends `batch`, the commit of `txn` if there is one, to `sink`.
pub(super) fn encode(base: Seqno, batch: &Batch, txn: Option<TxnId>, sink: &mut impl Sink) {
    sink.put_varint(base);
    sink.put_varint(batch.len() as u64);
    if let Some(txn) = txn {
        sink.put_u8(TXN);
        sink.put_varint(txn.0);
    }
    for op in batch.ops() {
        encode_op(op, sink);
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
        Op::PutBlocks { keyspace, prefix, first, data } => {
            start(PUT_BLOCKS, keyspace);
            sink.put_bytes(prefix);
            sink.put_varint(*first);
            sink.put_bytes(data);
        }
    }
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

    /// The next batch with its first seqno and its transaction; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(Seqno, Batch, Option<TxnId>)>, DecodeError> {
        if self.decoder.is_empty() {
            return Ok(None);
        }
        let base = self.decoder.varint()?;
        let ops = self.decoder.varint()?;
        if base.checked_add(ops).is_none() {
            return Err(DecodeError("a batch passes the greatest seqno"));
        }
        let mut batch = Batch::new();
        let mut txn = None;
        for at in 0..ops {
            let mut tag = self.decoder.u8()?;
            if tag == TXN && at == 0 {
                txn = Some(TxnId(self.decoder.varint()?));
                tag = self.decoder.u8()?;
            }
            batch.push(self.op(tag)?);
        }
        Ok(Some((base, batch, txn)))
    }

    fn op(&mut self, tag: u8) -> Result<Op, DecodeError> {
        let keyspace = Keyspace(self.decoder.varint_u32()?);
        Ok(match tag {
            PUT => Op::Put { keyspace, key: self.bytes()?, value: self.bytes()? },
            DELETE => Op::Delete { keyspace, key: self.bytes()? },
            DELETE_RANGE => Op::DeleteRange { keyspace, start: self.bytes()?, end: self.bytes()? },
            MERGE => Op::Merge { keyspace, key: self.bytes()?, operand: self.bytes()? },
            PUT_BLOCKS => Op::PutBlocks {
                keyspace,
                prefix: self.bytes()?,
                first: self.decoder.varint()?,
                data: self.bytes()?,
            },
            _ => return Err(DecodeError("an operation has an unknown tag")),
        })
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
