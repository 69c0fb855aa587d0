//! A device in memory: for tests, the reference model, and crash images.
//!
//! Thread safety: contents are spread over independently locked shards by chunk, so calls on
//! different places run in parallel.
//!
//! Invariants: chunks that were never written take no memory and read as zeros. A [`MemoryDevice::fork`]
//! shares unchanged chunks with its origin (copy on write).

use crate::{Device, SECTOR_BYTES, request};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Unit of allocation and of copy on write (bytes).
const CHUNK_BYTES: u64 = 16 * 1024;
/// Number of independently locked parts.
const SHARDS: u64 = 64;

const _: () = assert!(CHUNK_BYTES.is_multiple_of(SECTOR_BYTES as u64));

type Shard = HashMap<u64, Arc<[u8]>>;

/// A sparse device in memory that can grow up to a limit.
pub struct MemoryDevice {
    len_bytes: AtomicU64,
    len_bytes_max: u64,
    grow_lock: Mutex<()>,
    shards: Vec<RwLock<Shard>>,
}

/// One request's part within one chunk.
struct Piece {
    chunk: u64,
    in_chunk: usize,
    in_request: usize,
    len: usize,
}

impl MemoryDevice {
    /// A zeroed device of `len_bytes` (rounded up to whole sectors) that cannot grow.
    pub fn new(len_bytes: u64) -> Self {
        Self::growable(len_bytes, len_bytes)
    }

    /// A zeroed device of `len_bytes` that grows up to `len_bytes_max`.
    pub fn growable(len_bytes: u64, len_bytes_max: u64) -> Self {
        let len_bytes = len_bytes.next_multiple_of(SECTOR_BYTES as u64);
        Self {
            len_bytes: AtomicU64::new(len_bytes),
            len_bytes_max: len_bytes_max.max(len_bytes),
            grow_lock: Mutex::new(()),
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
        }
    }

    /// A device that holds `image`, zero-padded to whole sectors, and cannot grow.
    pub fn from_image(image: &[u8]) -> Self {
        let device = Self::new(image.len() as u64);
        for (index, piece) in image.chunks(CHUNK_BYTES as usize).enumerate() {
            if piece.iter().any(|&byte| byte != 0) {
                device.write_bytes(piece, index as u64 * CHUNK_BYTES);
            }
        }
        device
    }

    /// A copy of all of `source`, `len_bytes` long; it grows up to `len_bytes_max`.
    ///
    /// # Errors
    /// Any error of reading `source`.
    pub fn copy_of(source: &dyn Device, len_bytes: u64, len_bytes_max: u64) -> io::Result<Self> {
        let device = Self::growable(len_bytes, len_bytes_max);
        let mut buf = crate::AlignedBuf::zeroed(CHUNK_BYTES as usize);
        let mut offset = 0;
        while offset < len_bytes {
            let len = (len_bytes - offset).min(CHUNK_BYTES) as usize;
            let piece = &mut buf.as_mut()[..len];
            source.read_at(piece, offset)?;
            if piece.iter().any(|&byte| byte != 0) {
                device.write_bytes(piece, offset);
            }
            offset += len as u64;
        }
        Ok(device)
    }

    /// All bytes of the device. Takes its whole length in memory; meant for small images.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut image = vec![0; self.len_bytes() as usize];
        self.read_bytes(&mut image, 0);
        image
    }

    /// An independent device with the same contents, limit and length, in O(chunks) without
    /// copying them. Writes that run at the same time may be in the copy or not.
    #[must_use]
    pub fn fork(&self) -> Self {
        let _same_length_throughout = self.grow_lock.lock();
        Self {
            len_bytes: AtomicU64::new(self.len_bytes()),
            len_bytes_max: self.len_bytes_max,
            grow_lock: Mutex::new(()),
            shards: self.shards.iter().map(|shard| RwLock::new(shard.read().clone())).collect(),
        }
    }

    /// Memory that the contents take (bytes), shared chunks counted in full.
    pub fn bytes_allocated(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().len() as u64 * CHUNK_BYTES).sum()
    }

    /// Reads any range within the device, without demands on alignment.
    pub(crate) fn read_bytes(&self, buf: &mut [u8], offset: u64) {
        for piece in pieces(offset, buf.len()) {
            let target = &mut buf[piece.in_request..piece.in_request + piece.len];
            match self.shard(piece.chunk).read().get(&piece.chunk) {
                Some(chunk) => target.copy_from_slice(&chunk[piece.in_chunk..piece.in_chunk + piece.len]),
                None => target.fill(0),
            }
        }
    }

    /// Writes any range within the device, without demands on alignment.
    pub(crate) fn write_bytes(&self, buf: &[u8], offset: u64) {
        for piece in pieces(offset, buf.len()) {
            let source = &buf[piece.in_request..piece.in_request + piece.len];
            self.change(&piece, |target| target.copy_from_slice(source));
        }
    }

    /// Makes the device at least `len` bytes long, whatever its limit.
    pub(crate) fn extend_to(&self, len: u64) {
        self.len_bytes.fetch_max(len, Ordering::AcqRel);
    }

    fn change(&self, piece: &Piece, write: impl FnOnce(&mut [u8])) {
        let mut shard = self.shard(piece.chunk).write();
        let chunk = shard.entry(piece.chunk).or_insert_with(|| Arc::from(vec![0; CHUNK_BYTES as usize]));
        write(&mut Arc::make_mut(chunk)[piece.in_chunk..piece.in_chunk + piece.len]);
    }

    fn shard(&self, chunk: u64) -> &RwLock<Shard> {
        &self.shards[(chunk % SHARDS) as usize]
    }
}

/// Cuts `[offset, offset + len)` at chunk boundaries.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut in_request = 0;
    std::iter::from_fn(move || {
        if in_request == len {
            return None;
        }
        let at = offset + in_request as u64;
        let in_chunk = (at % CHUNK_BYTES) as usize;
        let piece_len = (CHUNK_BYTES as usize - in_chunk).min(len - in_request);
        let piece = Piece { chunk: at / CHUNK_BYTES, in_chunk, in_request, len: piece_len };
        in_request += piece_len;
        Some(piece)
    })
}

impl Device for MemoryDevice {
    fn len_bytes(&self) -> u64 {
        self.len_bytes.load(Ordering::Acquire)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        request::check_read(self.len_bytes(), offset, buf.len())?;
        self.read_bytes(buf, offset);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        request::check_write("write", self.len_bytes(), offset, buf.len() as u64)?;
        self.write_bytes(buf, offset);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        request::check_grow(len)?;
        let _one_at_a_time = self.grow_lock.lock();
        let len_now = self.len_bytes();
        if len > self.len_bytes_max {
            let why = format_args!("the memory device is limited to {} bytes", self.len_bytes_max);
            return Err(request::storage_full(len_now, len, &why));
        }
        self.len_bytes.store(len.max(len_now), Ordering::Release);
        Ok(())
    }
}

impl fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryDevice")
            .field("len_bytes", &self.len_bytes())
            .field("len_bytes_max", &self.len_bytes_max)
            .field("bytes_allocated", &self.bytes_allocated())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
