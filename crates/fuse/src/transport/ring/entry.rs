//! The memory of one entry: a request on its way in, then its answer on the way out.
#![expect(unsafe_code, reason = "the kernel writes to this memory between two system calls")]
//!
//! Thread safety: shared. The kernel owns the memory until the completion that brings a request; then it is
//! the daemon's, where any number of threads may read, until one of them, alone, answers. Invariants:
//! `unique` is 0 while the kernel owns the memory and while it is being answered; the memory stays where it
//! is until the entry is dropped, which must be after the kernel has let go of it.

use std::cell::UnsafeCell;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use zerocopy::FromBytes;

use super::super::buffer::{PAGE_BYTES, Page};
use crate::abi::{InHeader, OutHeader, RingEntInOut, RingReqHeader};

/// Memory that the kernel reads and writes, too: whole pages, which have memory once they are used.
struct Pages(Box<[UnsafeCell<Page>]>);

// SAFETY: every access goes through `Entry`, which lets one side at a time have it.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(bytes: usize) -> Self {
        Self(Page::zeroed(bytes.div_ceil(PAGE_BYTES)).into_iter().map(UnsafeCell::new).collect())
    }

    fn page(&self) -> *mut Page {
        self.0.as_ptr().cast_mut().cast()
    }

    fn start(&self) -> *mut u8 {
        self.page().cast()
    }

    fn len(&self) -> usize {
        self.0.len() * PAGE_BYTES
    }
}

/// What a register command points to.
#[repr(C)]
struct Places {
    places: [libc::iovec; 2],
}

// SAFETY: the pointers are addresses for the kernel; nothing here follows them.
unsafe impl Send for Places {}
// SAFETY: as above.
unsafe impl Sync for Places {}

/// One entry of a queue.
pub(super) struct Entry {
    /// The queue that it belongs to: the CPU whose programs' requests it takes.
    pub(super) queue: u16,
    header: Pages,
    payload: Pages,
    places: Places,
    /// The request that the daemon has to answer.
    unique: AtomicU64,
    /// How often it was given back to the kernel.
    commits: AtomicU64,
    /// Whether its request waits for something, with no thread at it.
    pub(super) is_parked: AtomicBool,
}

/// A request or answer that isn't as the kernel and the daemon make them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Misshapen;

impl Entry {
    /// For requests and answers with up to `payload_bytes_max` beside the headers.
    pub(super) fn new(queue: u16, payload_bytes_max: usize) -> Self {
        let (header, payload) = (Pages::new(size_of::<RingReqHeader>()), Pages::new(payload_bytes_max));
        let place = |pages: &Pages, len| libc::iovec { iov_base: pages.start().cast(), iov_len: len };
        let places = [place(&header, size_of::<RingReqHeader>()), place(&payload, payload.len())];
        let places = Places { places };
        let (unique, commits, is_parked) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        Self { queue, header, payload, places, unique, commits, is_parked }
    }

    /// Gives it memory, before the kernel knows it: dirty pages of mapped files must be taken even when there
    /// is none left.
    pub(super) fn warm(&self) {
        for pages in [&self.header, &self.payload] {
            // SAFETY: nothing else uses the memory yet.
            unsafe { std::ptr::write_bytes(pages.start(), 0, pages.len()) }
        }
    }

    /// The address of the two places that a register command names.
    pub(super) fn places(&self) -> u64 {
        self.places.places.as_ptr().addr() as u64
    }

    /// The request that is to be answered; 0: none.
    pub(super) fn unique(&self) -> u64 {
        self.unique.load(Ordering::Acquire)
    }

    /// How often it was given back.
    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Acquire)
    }

    /// The kernel has it again.
    pub(super) fn note_commit(&self) {
        self.commits.fetch_add(1, Ordering::AcqRel);
    }

    fn header(&self) -> *mut RingReqHeader {
        self.header.page().cast()
    }

    /// A completion has brought a request: from now on it is the daemon's to answer.
    pub(super) fn arrive(&self) {
        // SAFETY: the kernel wrote the header before the completion, and does not touch it until the next
        // command.
        let head = unsafe { &*self.header() };
        // There are more bytes than a header has.
        let unique = InHeader::read_from_prefix(&head.in_out).map_or(0, |(header, _)| header.unique);
        self.unique.store(unique, Ordering::Release);
    }

    /// Copies the request that has arrived, in the form in which a device brings it. Returns its length.
    ///
    /// # Errors
    /// Its lengths contradict one another, or it is longer than `into`.
    pub(super) fn copy_request(&self, into: &mut [u8]) -> Result<usize, Misshapen> {
        // SAFETY: the daemon owns the memory between arrival and answer, and only reads it until it answers.
        let head = unsafe { &*self.header() };
        let (header, _) = InHeader::read_from_prefix(&head.in_out).map_err(|_| Misshapen)?;
        let payload_len = head.ring_ent_in_out.payload_sz as usize;
        let len = header.len as usize;
        let args_len = len.checked_sub(size_of::<InHeader>() + payload_len).ok_or(Misshapen)?;
        let args = head.op_in.get(..args_len).ok_or(Misshapen)?;
        if payload_len > self.payload.len() {
            return Err(Misshapen);
        }
        // SAFETY: as above; the length was checked.
        let payload = unsafe { std::slice::from_raw_parts(self.payload.start(), payload_len) };
        let (start, rest) = into.get_mut(..len).ok_or(Misshapen)?.split_at_mut(size_of::<InHeader>());
        start.copy_from_slice(&head.in_out[..size_of::<InHeader>()]);
        rest[..args_len].copy_from_slice(args);
        rest[args_len..].copy_from_slice(payload);
        Ok(len)
    }

    /// Makes `parts` the answer to the request `unique`: a header, and what goes with it. False: it has been
    /// answered, or is another.
    ///
    /// # Errors
    /// The answer does not fit. The request is unanswered then.
    pub(super) fn answer(&self, unique: u64, parts: &[IoSlice<'_>]) -> Result<bool, Misshapen> {
        let [head, rest @ ..] = parts else { return Err(Misshapen) };
        let payload_len: usize = rest.iter().map(|part| part.len()).sum();
        if head.len() != size_of::<OutHeader>() || payload_len > self.payload.len() {
            return Err(Misshapen);
        }
        if self.unique.compare_exchange(unique, 0, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Ok(false);
        }
        // SAFETY: the exchange gave the memory to this thread alone, until the entry is given back to the
        // kernel; lengths were checked above.
        unsafe {
            let header = self.header();
            std::ptr::copy_nonoverlapping(head.as_ptr(), (&raw mut (*header).in_out).cast(), head.len());
            let state: *mut RingEntInOut = &raw mut (*header).ring_ent_in_out;
            (*state).flags = 0;
            (*state).payload_sz = payload_len as u32;
            let mut at = self.payload.start();
            for part in rest {
                std::ptr::copy_nonoverlapping(part.as_ptr(), at, part.len());
                at = at.add(part.len());
            }
        }
        Ok(true)
    }

    /// The number by which the kernel knows the answered request.
    pub(super) fn commit_id(&self) -> u64 {
        // SAFETY: the daemon owns the memory until the commit that this number is for.
        unsafe { (*self.header()).ring_ent_in_out.commit_id }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    /// Puts a request there as the kernel does.
    fn bring(entry: &Entry, unique: u64, args: &[u8], payload: &[u8]) {
        let len = (size_of::<InHeader>() + args.len() + payload.len()) as u32;
        let header = InHeader { len, unique, opcode: 1, ..InHeader::default() };
        // SAFETY: the test plays the kernel, and nothing else uses the entry.
        unsafe {
            let head = &mut *entry.header();
            head.in_out[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
            head.op_in[..args.len()].copy_from_slice(args);
            head.ring_ent_in_out = RingEntInOut {
                commit_id: unique,
                payload_sz: payload.len() as u32,
                ..RingEntInOut::default()
            };
            std::ptr::copy_nonoverlapping(payload.as_ptr(), entry.payload.start(), payload.len());
        }
    }

    #[test]
    fn request_is_joined_and_answered_once() {
        let entry = Entry::new(0, 8192);
        bring(&entry, 6, b"argument", b"name\0");
        entry.arrive();
        assert_eq!(entry.unique(), 6);
        let mut message = [0; 256];
        let len = entry.copy_request(&mut message).expect("well-formed");
        assert_eq!(&message[size_of::<InHeader>()..len], b"argumentname\0");
        let head = OutHeader { len: 20, error: 0, unique: 6 };
        let parts = [IoSlice::new(head.as_bytes()), IoSlice::new(b"ab"), IoSlice::new(b"cd")];
        assert_eq!(entry.answer(8, &parts), Ok(false), "another request");
        assert_eq!(entry.answer(6, &parts), Ok(true));
        assert_eq!(entry.answer(6, &parts), Ok(false), "it has been answered");
        assert_eq!(entry.commit_id(), 6);
        // SAFETY: the test plays the kernel.
        let (state, payload) = unsafe {
            let state = (*entry.header()).ring_ent_in_out;
            (state, std::slice::from_raw_parts(entry.payload.start(), 4))
        };
        assert_eq!((state.payload_sz, payload), (4, &b"abcd"[..]));
    }

    #[test]
    fn lengths_that_contradict_one_another_are_refused() {
        let entry = Entry::new(0, 8192);
        let mut message = [0; 256];
        bring(&entry, 6, &[0; 128], &[0; 100]);
        assert_eq!(entry.copy_request(&mut message), Err(Misshapen), "longer than the buffer");
        bring(&entry, 6, b"", b"name\0");
        // SAFETY: the test plays the kernel.
        let state = unsafe { &mut (*entry.header()).ring_ent_in_out };
        for payload_sz in [6, 8193, u32::MAX] {
            state.payload_sz = payload_sz;
            assert_eq!(entry.copy_request(&mut message), Err(Misshapen), "{payload_sz}");
        }
        entry.arrive();
        let long = vec![0; 8193];
        let head = OutHeader { len: 0, error: 0, unique: 6 };
        let parts = [IoSlice::new(head.as_bytes()), IoSlice::new(&long)];
        assert_eq!(entry.answer(6, &parts), Err(Misshapen));
        assert_eq!(entry.unique(), 6, "still unanswered");
    }
}
