//! Request buffers: page-aligned, recycled, and handed over whole when they carry much data.
//!
//! A WRITE request is 80 bytes of headers and then the data. Buffers are laid out so that the headers end at
//! a page boundary: the data then begins on one, and can go to a device with `O_DIRECT` as it is.
//!
//! Thread safety: the pool is shared; a buffer has one owner and returns to the pool when it is dropped,
//! wherever that happens. Invariant: the pool keeps at most `free_max` idle buffers.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_locks::{Mutex, class};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::abi::{InHeader, READ_BUFFER_BYTES_MIN, WriteIn};

pub(super) const PAGE_BYTES: usize = 4096;
/// Headers of a WRITE request.
const WRITE_HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();
/// Where a request begins, so that the data of a WRITE begins at the first page boundary.
const REQUEST_START: usize = PAGE_BYTES - WRITE_HEAD_BYTES;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
pub(super) struct Page([u8; PAGE_BYTES]);

impl Page {
    /// So many, of zeros; they have memory once they are used.
    pub(super) fn zeroed(count: usize) -> Vec<Self> {
        Self::new_vec_zeroed(count)
            .unwrap_or_else(|_| std::alloc::handle_alloc_error(std::alloc::Layout::new::<Self>()))
    }
}

/// Gives and takes back request buffers of one size.
pub struct BufferPool {
    free: Mutex<Vec<Vec<Page>>, class::FuseTransportBufferFree>,
    pages: usize,
    free_max: usize,
}

impl BufferPool {
    /// A pool of buffers for requests with up to `write_bytes_max` of data, which keeps up to `free_max`
    /// idle ones.
    pub fn new(write_bytes_max: usize, free_max: usize) -> Arc<Self> {
        let bytes = write_bytes_max.max(READ_BUFFER_BYTES_MIN);
        Arc::new(Self { free: Mutex::new(Vec::new()), pages: 1 + bytes.div_ceil(PAGE_BYTES), free_max })
    }

    /// Makes `count` buffers ready, with their memory touched: dirty pages of mapped files must be taken even
    /// when there is no memory left to take them with.
    pub fn warm(self: &Arc<Self>, count: usize) {
        let mut ready: Vec<_> = (0..count).map(|_| self.take()).collect();
        for buffer in &mut ready {
            buffer.pages.as_mut_slice().as_mut_bytes().fill(0);
        }
    }

    /// An idle buffer, or a new one.
    pub fn take(self: &Arc<Self>) -> RequestBuffer {
        let recycled = self.free.lock().pop();
        let pages = recycled.unwrap_or_else(|| Page::zeroed(self.pages));
        RequestBuffer { pages, pool: Arc::clone(self) }
    }
}

/// A buffer that one request fits into.
pub struct RequestBuffer {
    pages: Vec<Page>,
    pool: Arc<BufferPool>,
}

impl RequestBuffer {
    /// Where a transport puts the request.
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.pages.as_mut_slice().as_mut_bytes()[REQUEST_START..]
    }

    fn bytes(&self) -> &[u8] {
        &self.pages.as_slice().as_bytes()[REQUEST_START..]
    }

    /// The buffer with the `len` bytes of a received request.
    pub fn into_message(self, len: usize) -> Message {
        let len = len.min(self.bytes().len());
        Message { buffer: self, len }
    }
}

impl Drop for RequestBuffer {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock();
        if free.len() < self.pool.free_max {
            free.push(std::mem::take(&mut self.pages));
        }
    }
}

/// One received request, still as bytes.
pub struct Message {
    buffer: RequestBuffer,
    len: usize,
}

impl Message {
    /// The whole request, from its header on.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer.bytes()[..self.len]
    }

    /// Gives the buffer back for the next request.
    pub fn into_buffer(self) -> RequestBuffer {
        self.buffer
    }

    /// The bytes from `start` to `end` as an owned buffer. If they fill seven eighths of the request
    /// buffer, it is handed over without a copy, and comes back to the pool when the last clone is dropped.
    /// Less is copied, so that a count of the data is never far from the memory that it pins; the request
    /// buffer is then returned for reuse.
    pub fn into_data(self, start: usize, end: usize) -> (Bytes, Option<RequestBuffer>) {
        let end = end.min(self.len);
        let start = start.min(end);
        if (end - start) * 8 < self.buffer.bytes().len() * 7 {
            return (Bytes::copy_from_slice(&self.bytes()[start..end]), Some(self.buffer));
        }
        (Bytes::from_owner(self).slice(start..end), None)
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

#[cfg(test)]
mod tests;
