//! A small engine on a device, to test the sweeps with: the model, and a log of its batches.
//!
//! Sector 0 says how many records a clean close left. Records follow, each in whole sectors: magic,
//! payload length, checksum, payload (operations of one group of batches).

use std::sync::{Arc, Mutex};

use bytes::{Buf, BufMut, Bytes};
use kvfs_device::{AlignedBuf, Device, SECTOR_BYTES};
use kvfs_sim::engine::{Engine, OpenStore};
use kvfs_sim::spaces::Handles;
use kvfs_store::model::ModelStore;
use kvfs_store::{Batch, Compression, Durability, Keyspace, Op, Position, Read, Result, Store, StoreError};

const MAGIC: u64 = 0x6b76_6673_5f6c_6f67;
const HEADER_BYTES: usize = 24;

/// Which promise is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// Syncs write, but do not flush.
    NeverFlushes,
    /// Records are believed without a look at their checksum.
    NeverChecks,
    /// After a failed sync the store goes on as if nothing had happened.
    ForgetsFailures,
    /// A refused batch stays visible.
    KeepsRefused,
}

pub(crate) struct LogEngine(pub(crate) Flaw);

impl Engine for LogEngine {
    fn device_bytes_max(&self) -> u64 {
        64 << 20
    }

    fn create(&self, device: Arc<dyn Device>) -> Result<()> {
        grow(&*device, SECTOR_BYTES as u64)?;
        write_closed(&*device, 0)
    }

    fn open(&self, device: Arc<dyn Device>) -> Result<Box<dyn OpenStore>> {
        let inner = ModelStore::new();
        Handles::open(&inner)?;
        let records_closed = read_closed(&*device)?;
        let mut offset = SECTOR_BYTES as u64;
        let mut records = 0;
        while let Some(payload) = read_record(&*device, offset, self.0)? {
            offset += (HEADER_BYTES + payload.len()).next_multiple_of(SECTOR_BYTES) as u64;
            records += 1;
            for batch in decode(payload)? {
                inner.apply(batch, Durability::Buffered)?;
            }
        }
        if records < records_closed {
            return Err(StoreError::corrupt("log", format!("{records} records of {records_closed}")));
        }
        let log = Log { offset, records, pending: Vec::new(), failed: None };
        let store = Arc::new(LogStore { inner, device, flaw: self.0, log: Mutex::new(log) });
        Ok(Box::new(Open(store)))
    }
}

struct Open(Arc<LogStore>);

impl OpenStore for Open {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.0) as Arc<dyn Store>
    }

    fn flush(&self) -> Result<()> {
        self.0.write_pending()
    }

    fn compact(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.0.write_pending()?;
        let records = self.0.log.lock().unwrap().records;
        write_closed(&*self.0.device, records)
    }

    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

struct Log {
    offset: u64,
    records: u64,
    pending: Vec<Batch>,
    failed: Option<Arc<str>>,
}

struct LogStore {
    inner: ModelStore,
    device: Arc<dyn Device>,
    flaw: Flaw,
    log: Mutex<Log>,
}

impl LogStore {
    /// Makes everything durable.
    fn write_pending(&self) -> Result<()> {
        let mut log = self.log.lock().unwrap();
        self.check_failed(&log)?;
        if log.pending.is_empty() {
            return Ok(());
        }
        let record = encode(&log.pending);
        let written = self.write_record(&record, log.offset);
        if let Err(error) = &written {
            log.failed = Some(error.to_string().into());
            if self.flaw != Flaw::ForgetsFailures {
                return written;
            }
        }
        log.offset += record.len().next_multiple_of(SECTOR_BYTES) as u64;
        log.records += 1;
        log.pending.clear();
        written
    }

    fn write_record(&self, record: &[u8], offset: u64) -> Result<()> {
        let buf = AlignedBuf::from_slice(record);
        grow(&*self.device, offset + buf.len() as u64)?;
        self.device
            .write_at(buf.as_ref(), offset)
            .map_err(|error| StoreError::io("writing the log", error))?;
        if self.flaw == Flaw::NeverFlushes {
            return Ok(());
        }
        self.device.flush().map_err(|error| StoreError::io("flushing the log", error))
    }

    fn check_failed(&self, log: &Log) -> Result<()> {
        match &log.failed {
            Some(reason) if self.flaw != Flaw::ForgetsFailures => {
                Err(StoreError::Failed { reason: Arc::clone(reason) })
            }
            _ => Ok(()),
        }
    }
}

fn grow(device: &dyn Device, len: u64) -> Result<()> {
    if device.len_bytes() >= len {
        return Ok(());
    }
    device.grow(len).map_err(|error| StoreError::io("growing the log", error))
}

/// FNV-1a, which is checksum enough here.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn write_closed(device: &dyn Device, records: u64) -> Result<()> {
    let mut sector = Vec::new();
    sector.put_u64(records);
    sector.put_u64(checksum(&records.to_be_bytes()));
    let buf = AlignedBuf::from_slice(&sector);
    let written = device.write_at(buf.as_ref(), 0).and_then(|()| device.flush());
    written.map_err(|error| StoreError::io("writing sector 0", error))
}

fn read_closed(device: &dyn Device) -> Result<u64> {
    let mut buf = AlignedBuf::zeroed(SECTOR_BYTES);
    device.read_at(buf.as_mut(), 0).map_err(|error| StoreError::io("reading sector 0", error))?;
    let mut sector = buf.as_ref();
    let records = sector.get_u64();
    if sector.get_u64() != checksum(&records.to_be_bytes()) {
        return Err(StoreError::corrupt("sector 0", "checksum"));
    }
    Ok(records)
}

fn read_record(device: &dyn Device, offset: u64, flaw: Flaw) -> Result<Option<Bytes>> {
    let len = device.len_bytes();
    if offset >= len {
        return Ok(None);
    }
    let read = |buf: &mut AlignedBuf| {
        device.read_at(buf.as_mut(), offset).map_err(|error| StoreError::io("reading the log", error))
    };
    let mut buf = AlignedBuf::zeroed(SECTOR_BYTES);
    read(&mut buf)?;
    let mut header = buf.as_ref();
    let (magic, payload_len, sum) = (header.get_u64(), header.get_u64(), header.get_u64());
    if magic != MAGIC || payload_len > len - offset {
        return Ok(None);
    }
    let payload_len = payload_len as usize;
    let record_bytes = (HEADER_BYTES + payload_len).next_multiple_of(SECTOR_BYTES);
    if record_bytes as u64 > len - offset {
        return Ok(None);
    }
    buf = AlignedBuf::zeroed(record_bytes);
    read(&mut buf)?;
    let payload = &buf.as_ref()[HEADER_BYTES..HEADER_BYTES + payload_len];
    if checksum(payload) != sum && flaw != Flaw::NeverChecks {
        return Ok(None);
    }
    Ok(Some(Bytes::copy_from_slice(payload)))
}

fn encode(batches: &[Batch]) -> Vec<u8> {
    let mut payload = Vec::new();
    for batch in batches {
        payload.put_u64(batch.len() as u64);
        for op in batch.ops() {
            let (tag, first, parts): (u8, u64, [&[u8]; 2]) = match op {
                Op::Put { key, value, .. } => (0, 0, [key, value]),
                Op::Delete { key, .. } => (1, 0, [key, &[]]),
                Op::DeleteRange { start, end, .. } => (2, 0, [start, end]),
                Op::Merge { key, operand, .. } => (3, 0, [key, operand]),
                Op::PutBlocks { prefix, first, data, .. } => (4, *first, [prefix, data]),
                Op::PatchBlock { prefix, block, data, .. } => (5, *block, [prefix, data]),
            };
            payload.put_u8(tag);
            payload.put_u16(op.keyspace().0 as u16);
            payload.put_u16(if let Op::PatchBlock { offset, .. } = op { *offset } else { 0 });
            payload.put_u64(first);
            for part in parts {
                payload.put_u64(part.len() as u64);
                payload.put_slice(part);
            }
        }
    }
    let mut record = Vec::with_capacity(HEADER_BYTES + payload.len());
    record.put_u64(MAGIC);
    record.put_u64(payload.len() as u64);
    record.put_u64(checksum(&payload));
    record.put_slice(&payload);
    record
}

fn decode(mut payload: Bytes) -> Result<Vec<Batch>> {
    let mut batches = Vec::new();
    while payload.has_remaining() {
        let mut batch = Batch::new();
        for _ in 0..payload.get_u64() {
            let (tag, keyspace) = (payload.get_u8(), Keyspace(payload.get_u16().into()));
            let (offset, first) = (payload.get_u16(), payload.get_u64());
            let [a, b] = [(); 2].map(|()| {
                let len = payload.get_u64() as usize;
                payload.split_to(len)
            });
            batch.push(match tag {
                0 => Op::Put { keyspace, key: a, value: b },
                1 => Op::Delete { keyspace, key: a },
                2 => Op::DeleteRange { keyspace, start: a, end: b },
                3 => Op::Merge { keyspace, key: a, operand: b },
                4 => {
                    let compression = Compression::None;
                    Op::PutBlocks { keyspace, prefix: a, first, data: b, compression }
                }
                5 => {
                    let compression = Compression::None;
                    Op::PatchBlock { keyspace, prefix: a, block: first, offset, data: b, compression }
                }
                _ => return Err(StoreError::corrupt("log", "operation")),
            });
        }
        batches.push(batch);
    }
    Ok(batches)
}

impl Read for LogStore {
    kvfs_store::pass_on!(inner: get, multi_get, cursor, read_blocks, next_extent);
}

impl Store for LogStore {
    kvfs_store::pass_on!(inner: open_keyspace, keyspaces, snapshot, position, capabilities, space, stats);

    fn apply(&self, batch: Batch, durability: Durability) -> Result<Position> {
        let mut log = self.log.lock().unwrap();
        if let Err(error) = self.check_failed(&log) {
            if self.flaw == Flaw::KeepsRefused {
                self.inner.apply(batch, durability)?;
            }
            return Err(error);
        }
        let position = self.inner.apply(batch.clone(), durability)?;
        log.pending.push(batch);
        drop(log);
        if durability == Durability::Synced {
            self.write_pending()?;
        }
        Ok(position)
    }

    fn sync(&self, _position: Position) -> Result<()> {
        self.write_pending()
    }
}
