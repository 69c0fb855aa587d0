//! Images: memory of files that programs map and share.
//!
//! Purpose: processes that map the same file, shared and to be written, have one memory for it, as a kernel's
//! pages are. It holds what the file does: what processes write into it reaches the file before that is read
//! or synced over this server, and when the last of them has closed it; what calls write reaches the memory.
//!
//! Thread safety: one lock for the list, one for each image, held while content is copied and while a call
//! writes to the file.
//!
//! Invariants: a file has one image at most, for as long as an open file that was mapped is there. Nothing
//! here maps the memory, so a client that shortens it hurts itself alone. All images together are bounded,
//! and a user takes half at most: no image is larger than what was taken for it, even if its file is. What
//! its user has mapped grows by a call only if there is room for it.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use kvfs_locks::{Mutex, MutexGuard, class};
use kvfs_posix::{Fd, FileIdentity, Process, Result, SharedFile};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};

use crate::session::refused;
use crate::shares::{Share, Shares, shares};

/// Most bytes of all images.
const IMAGE_BYTES_MAX: usize = 1 << 30;

const PAGE: usize = 4096;
/// Content is copied in pieces of so many pages.
const PIECE: usize = 64 * PAGE;

/// Those of all files.
pub(crate) struct Images {
    known: Mutex<HashMap<FileIdentity, Weak<Image>>, class::ServeImagesKnown>,
    /// Of `known`, so that a server without any costs nothing.
    count: AtomicUsize,
    shares: Shares,
}

/// The memory of a file.
pub(crate) struct Image {
    memory: OwnedFd,
    /// Writes what comes from it.
    process: Process,
    fd: Fd,
    /// Who has mapped it first.
    uid: u32,
    pages: Mutex<Pages, class::ServeImagesPages>,
}

/// An image whose memory and file no other call brings together.
pub(crate) struct Held<'i> {
    image: &'i Image,
    pages: MutexGuard<'i, Pages, class::ServeImagesPages>,
}

/// The memory is as long as its pages that are known.
struct Pages {
    /// Their hashes when they held what the file does: another one was written by a program.
    hashes: Vec<u64>,
    /// Of the file (bytes), as far as it was read.
    size: u64,
    /// Of so many bytes, or more.
    share: Share,
}

impl Pages {
    /// Takes or gives back, until there is room for so many. How many there is room for.
    fn make_room(&mut self, count: usize) -> usize {
        let has_room = self.share.resize(count.saturating_mul(PAGE).max(PAGE));
        if has_room { count } else { count.min(self.share.amount() / PAGE) }
    }
}

fn hash(page: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(page);
    hasher.finish()
}

fn page_count(len: u64) -> usize {
    len.div_ceil(PAGE as u64) as usize
}

impl Images {
    pub(crate) fn new(own_uid: u32) -> Self {
        let shares = shares(IMAGE_BYTES_MAX, own_uid);
        Self { known: Mutex::default(), count: AtomicUsize::new(0), shares }
    }

    /// The image of a file that is open for reading and writing; made if there is none.
    pub(crate) fn open(&self, process: &Process, file: &SharedFile, uid: u32) -> Result<Arc<Image>> {
        let image = self.find_or_make(process, file, uid)?;
        // Only now: the others are not to wait until it is read.
        image.fill()?;
        Ok(image)
    }

    fn find_or_make(&self, process: &Process, file: &SharedFile, uid: u32) -> Result<Arc<Image>> {
        let mut known = self.known.lock();
        known.retain(|_, image| image.strong_count() > 0);
        if let Some(image) = known.get(&file.identity()).and_then(Weak::upgrade) {
            return Ok(image);
        }
        let image = Arc::new(Image::new(process, file, uid, &self.shares)?);
        known.insert(file.identity(), Arc::downgrade(&image));
        self.count.store(known.len(), Ordering::Release);
        Ok(image)
    }

    /// Whether no file is mapped.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// That of an open file.
    pub(crate) fn of(&self, file: &SharedFile) -> Option<Arc<Image>> {
        if self.is_empty() {
            return None;
        }
        self.known.lock().get(&file.identity()).and_then(Weak::upgrade)
    }

    /// Of all files. What fails of other users is not told to this one.
    pub(crate) fn write_all(&self, uid: u32) -> Result<()> {
        let all: Vec<Arc<Image>> = self.known.lock().values().filter_map(Weak::upgrade).collect();
        let mut outcome = Ok(());
        for image in all {
            match image.write_back() {
                // Its transaction has ended: there is no file for it.
                Err(error) if error.errno() == Errno::STALE => {}
                Err(error) if image.uid == uid => outcome = outcome.and(Err(error)),
                Err(error) => {
                    tracing::warn!(%error, uid = image.uid, "what a program wrote into mapped memory has not reached its file");
                }
                Ok(()) => {}
            }
        }
        outcome
    }
}

impl Image {
    /// An empty one.
    fn new(process: &Process, file: &SharedFile, uid: u32, shares: &Shares) -> Result<Self> {
        let share = shares.take(uid, PAGE).ok_or(refused(Errno::NOMEM))?;
        let (writer, fd) = file.alone(process)?;
        let memory = memfd_create("kvfs-image", MemfdFlags::CLOEXEC).map_err(refused)?;
        let pages = Mutex::new(Pages { hashes: Vec::new(), size: 0, share });
        Ok(Self { memory, process: writer, fd, uid, pages })
    }

    /// The memory, to be mapped.
    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Reads what is not there yet.
    ///
    /// # Errors
    /// ENOMEM: there is no room for all of the file.
    fn fill(&self) -> Result<()> {
        let mut held = self.hold();
        let count = page_count(self.process.stat(self.fd)?.size);
        if count <= held.pages.hashes.len() {
            return Ok(());
        }
        held.write_back()?;
        held.reload(0..0)?;
        if count <= held.pages.hashes.len() { Ok(()) } else { Err(refused(Errno::NOMEM)) }
    }

    /// One of those that keep it ends. What it holds reaches the file while others still find it.
    pub(crate) fn leave(self: Arc<Self>) {
        if Arc::strong_count(&self) == 1 {
            // Its end tries again, and tells what fails.
            let _ = self.write_back();
        }
    }

    /// What programs have written into the memory reaches the file. O(size of the file).
    pub(crate) fn write_back(&self) -> Result<()> {
        self.hold().write_back()
    }

    /// Keeps others from it.
    pub(crate) fn hold(&self) -> Held<'_> {
        Held { image: self, pages: self.pages.lock() }
    }
}

impl Held<'_> {
    /// A process of the user `uid` is about to make the file as long as `size`, or longer. What others do is
    /// not refused for lack of this user's room.
    ///
    /// # Errors
    /// EFBIG: there is no room for that.
    pub(crate) fn reserve(&mut self, size: u64, uid: u32) -> Result<()> {
        let count = page_count(size);
        let is_larger = uid == self.image.uid && count > self.pages.hashes.len();
        if is_larger && self.pages.make_room(count) < count { Err(refused(Errno::FBIG)) } else { Ok(()) }
    }

    /// The file was written in `moved`, or has another size. Of a longer one as much as there is room for is
    /// held.
    pub(crate) fn reload(&mut self, moved: Range<u64>) -> Result<()> {
        let size = self.image.process.stat(self.image.fd)?.size;
        let count = self.pages.make_room(page_count(size));
        self.pages.hashes.truncate(count);
        let kept = self.pages.hashes.len();
        let first = (moved.start / PAGE as u64) as usize;
        let last = page_count(moved.end.min(size)).min(kept);
        // From the old end or the new one on all is another.
        let end = self.pages.size.min(size).min((kept * PAGE) as u64);
        let changed = [moved, end..u64::MAX];
        self.pages.size = end;
        let loaded = self
            .load(first..last, &changed)
            .and_then(|()| self.load((end / PAGE as u64) as usize..count, &changed))
            .map(|()| self.pages.size = size);
        ftruncate(&self.image.memory, (self.pages.hashes.len() * PAGE) as u64).map_err(refused)?;
        loaded
    }

    /// Reads pages of the file. Into the memory comes what lies in a range that has changed: the rest of a
    /// page may hold what a program has written meanwhile. New memory is zeros.
    fn load(&mut self, mut pages: Range<usize>, changed: &[Range<u64>]) -> Result<()> {
        let zeros = hash(&[0; PAGE]);
        let mut space = vec![0; PIECE];
        while !pages.is_empty() {
            let len = pages.len().saturating_mul(PAGE).min(PIECE);
            let at = (pages.start * PAGE) as u64;
            let got = self.image.process.pread(self.image.fd, &mut space[..len], at)?;
            space[got..len].fill(0);
            for page in space[..len].chunks(PAGE) {
                let found = hash(page);
                let known = self.pages.hashes.get(pages.start).copied().unwrap_or(zeros);
                if known != found {
                    self.put(page, (pages.start * PAGE) as u64, changed)?;
                }
                match self.pages.hashes.get_mut(pages.start) {
                    Some(known) => *known = found,
                    None => self.pages.hashes.push(found),
                }
                pages.start += 1;
            }
        }
        Ok(())
    }

    /// Puts what has changed of a page into the memory.
    fn put(&self, page: &[u8], at: u64, changed: &[Range<u64>]) -> Result<()> {
        for range in changed {
            let within = |place: u64| place.saturating_sub(at).min(PAGE as u64) as usize;
            let (mut done, end) = (within(range.start), within(range.end));
            while done < end {
                done += pwrite(&self.image.memory, &page[done..end], at + done as u64).map_err(refused)?;
            }
        }
        Ok(())
    }

    /// See [`Image::write_back`].
    pub(crate) fn write_back(&mut self) -> Result<()> {
        let Self { image, pages } = self;
        let hashes = &mut pages.hashes;
        let size = image.process.stat(image.fd)?.size;
        let mut space = vec![0; PIECE];
        let mut first = 0;
        while first < hashes.len() {
            let len = ((hashes.len() - first) * PAGE).min(PIECE);
            let at = (first * PAGE) as u64;
            // A client may have shortened it.
            let got = pread(&image.memory, &mut space[..len], at).map_err(refused)?;
            space[got..len].fill(0);
            let known = hashes[first..].iter_mut();
            for ((known, page), at) in known.zip(space[..len].chunks(PAGE)).zip((at..).step_by(PAGE)) {
                let found = hash(page);
                if *known == found {
                    continue;
                }
                let len = size.saturating_sub(at).min(PAGE as u64) as usize;
                if len > 0 {
                    image.process.pwrite(image.fd, &page[..len], at)?;
                }
                *known = found;
            }
            first += len / PAGE;
        }
        Ok(())
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        match self.write_back() {
            // Its transaction has ended: there is no file for it.
            Err(error) if error.errno() != Errno::STALE => {
                tracing::error!(%error, "what a program wrote into mapped memory is lost");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
