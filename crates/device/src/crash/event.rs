//! What happened to a crash device.
//!
//! Thread safety: plain values. Invariant: events are never changed once recorded.

use crate::{Device, MemoryDevice, SECTOR_BYTES};
use bytes::Bytes;
use std::io;

/// What kind of event it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashEventKind {
    /// A write took effect.
    Write,
    /// The device grew; `offset` is 0 and `len` the new length.
    Grow,
    /// A flush completed; `offset` and `len` are 0.
    Flush,
}

/// One event, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashEvent {
    /// Its number, from 0; an image "after n events" includes those with index below n.
    pub index: usize,
    /// What happened.
    pub kind: CrashEventKind,
    /// Where (bytes).
    pub offset: u64,
    /// How much (bytes).
    pub len: u64,
}

/// What a write leaves in its range.
#[derive(Clone, Debug)]
pub(super) struct Payload(pub(super) Bytes);

impl Payload {
    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    pub(super) fn slice(&self, start: u64, end: u64) -> Self {
        Self(self.0.slice(start as usize..end as usize))
    }

    /// Copies the whole payload to `target`, which has its length.
    pub(super) fn copy_to(&self, target: &mut [u8]) {
        target.copy_from_slice(&self.0);
    }

    /// Cuts the payload, which starts at `offset`, at sector boundaries: sector number, place
    /// within the sector, part.
    pub(super) fn by_sector(&self, offset: u64) -> impl Iterator<Item = (u64, usize, Self)> {
        let sector_bytes = SECTOR_BYTES as u64;
        let end = offset + self.len();
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let sector = at / sector_bytes;
            let next = ((sector + 1) * sector_bytes).min(end);
            let part = (sector, (at % sector_bytes) as usize, self.slice(at - offset, next - offset));
            at = next;
            Some(part)
        })
    }
}

/// The newest unflushed content of one sector.
pub(super) struct Held {
    pub(super) event_index: usize,
    pub(super) content: Payload,
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Write { offset: u64, payload: Payload },
    Grow { len: u64 },
    Flush { covered: usize },
}

impl Event {
    pub(super) fn describe(&self, index: usize) -> CrashEvent {
        let (kind, offset, len) = match self {
            Self::Write { offset, payload } => (CrashEventKind::Write, *offset, payload.len()),
            Self::Grow { len } => (CrashEventKind::Grow, 0, *len),
            Self::Flush { .. } => (CrashEventKind::Flush, 0, 0),
        };
        CrashEvent { index, kind, offset, len }
    }

    /// Where a write changes bytes, and to what.
    pub(super) fn bytes(&self) -> Option<(u64, &Payload)> {
        match self {
            Self::Write { offset, payload } => Some((*offset, payload)),
            Self::Grow { .. } | Self::Flush { .. } => None,
        }
    }

    /// Memory that the event's data take (bytes).
    pub(super) fn bytes_held(&self) -> u64 {
        match self {
            Self::Write { payload, .. } => payload.len(),
            _ => 0,
        }
    }

    /// How many events a flush has made durable.
    pub(super) fn covered_by_flush(&self) -> Option<usize> {
        match self {
            Self::Flush { covered } => Some(*covered),
            _ => None,
        }
    }

    pub(super) fn grown_to(&self) -> Option<u64> {
        match self {
            Self::Grow { len } => Some(*len),
            _ => None,
        }
    }

    /// A part of a write, by range within it.
    pub(super) fn part(&self, start: u64, end: u64) -> Self {
        match self {
            Self::Write { offset, payload } => {
                Self::Write { offset: offset + start, payload: payload.slice(start, end) }
            }
            whole => whole.clone(),
        }
    }

    /// Applies the event to an image. What lies beyond its end is lost: the write survived, but
    /// the growth before it did not.
    pub(super) fn apply(&self, image: &MemoryDevice) {
        if let Self::Grow { len } = self {
            image.extend_to(*len);
        }
        let Some((offset, payload)) = self.bytes() else { return };
        let len = payload.len().min(image.len_bytes().saturating_sub(offset));
        image.write_bytes(&payload.0[..len as usize], offset);
    }

    /// Applies the event to the device beneath, which has grown already.
    pub(super) fn write_to(&self, device: &dyn Device) -> io::Result<()> {
        match self {
            Self::Write { offset, payload } => device.write_at(&payload.0, *offset),
            Self::Grow { .. } | Self::Flush { .. } => Ok(()),
        }
    }
}
