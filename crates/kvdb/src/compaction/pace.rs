//! Where merges give way: each tells a [`Pace`] what it has read and written, and waits there.
//!
//! Thread safety: a [`Pace`] is shared by all merges, a [`Meter`] belongs to one. A merge holds no lock while
//! it waits, only its inputs and its buffers.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{Result, Seqno};

use crate::format::{RecordIter, RecordRef};
use crate::version::Run;

/// Holds merges back so that others come first.
pub(crate) trait Pace: Send + Sync {
    /// So many bytes more were read or written. May wait.
    fn spend(&self, bytes: u64);
}

/// Adds small amounts up before it tells the pace.
pub(super) struct Meter {
    /// `None`: the merge is not slowed.
    pace: Option<Arc<dyn Pace>>,
    bytes: u64,
}

impl Meter {
    /// Told at once; small enough that a wait for it is short, large enough that the pace costs nothing.
    const STEP_BYTES: u64 = 256 << 10;

    pub(super) fn new(pace: Option<Arc<dyn Pace>>) -> Self {
        Self { pace, bytes: 0 }
    }

    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        if self.bytes >= Self::STEP_BYTES {
            let bytes = std::mem::take(&mut self.bytes);
            if let Some(pace) = &self.pace {
                pace.spend(bytes);
            }
        }
    }
}

/// The records of an input. Each that is passed counts as its share of the run's bytes on the device.
pub(super) struct PacedRecords {
    records: Box<dyn RecordIter>,
    record_bytes: u64,
    meter: Meter,
}

impl PacedRecords {
    /// `records` are those of `run`.
    pub(super) fn new(run: &Run, records: Box<dyn RecordIter>, pace: Option<Arc<dyn Pace>>) -> Self {
        let count: u64 = run.pieces.iter().map(|piece| piece.desc().records).sum();
        let record_bytes = run.data_bytes() / count.max(1);
        Self { records, record_bytes, meter: Meter::new(pace) }
    }
}

impl RecordIter for PacedRecords {
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<()> {
        self.records.seek(key, seqno)
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.records.seek_before(key)
    }

    fn first(&mut self) -> Result<()> {
        self.records.first()
    }

    fn last(&mut self) -> Result<()> {
        self.records.last()
    }

    fn next(&mut self) -> Result<()> {
        self.meter.add(self.record_bytes);
        self.records.next()
    }

    fn prev(&mut self) -> Result<()> {
        self.meter.add(self.record_bytes);
        self.records.prev()
    }

    fn record(&self) -> Option<RecordRef<'_>> {
        self.records.record()
    }

    fn value(&mut self) -> Result<Bytes> {
        self.records.value()
    }
}
