//! Images: memory of files that programs map and share.
//!
//! Purpose: processes that map the same file, shared and to be written, have one memory for it, as a kernel's pages are. It holds what
//! the file does: what processes write into it reaches the file before that is read or synced over this server, and when the last of
//! them has closed it; what calls write reaches the memory.
//!
//! Thread safety: one lock for the list, one for each image, held while content is copied.
//!
//! Invariants: a file has one image at most, for as long as an open file that was mapped is there. Nothing here maps the memory, so a
//! client that shortens it hurts itself alone. All images together are bounded, and a user takes half at most, however long files become:
//! what is behind the last page that was granted is not in the memory.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use kvfs_locks::{Mutex, class};
use kvfs_posix::{Fd, FileIdentity, Process, Result, SharedFile, close_all};
use kvfs_socket::{Exempt, Share, Shares};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};

use crate::session::refused;

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
    /// Whose it is.
    uid: u32,
    pages: Mutex<Pages, class::ServeImagesPages>,
}

/// The pages of an image.
struct Pages {
    /// Hashes of them when they held what the file does: another one was written by a program.
    hashes: Vec<u64>,
    /// So many were granted.
    count_max: usize,
    share: Share,
}

impl Pages {
    /// Takes what `count` pages need. False: there is not so much.
    fn grant(&mut self, count: usize) -> bool {
        let more = count.saturating_sub(self.count_max);
        let is_granted = more.checked_mul(PAGE).is_some_and(|bytes| self.share.grow(bytes));
        if is_granted {
            self.count_max = self.count_max.max(count);
        }
        is_granted
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
        let shares = Shares::new(IMAGE_BYTES_MAX, IMAGE_BYTES_MAX / 2, Exempt::Whole(own_uid));
        Self { known: Mutex::default(), count: AtomicUsize::new(0), shares }
    }

    /// The image of a file that is open for reading and writing; made if there is none.
    pub(crate) fn open(&self, process: &Process, fd: Fd, uid: u32) -> Result<Arc<Image>> {
        let file = SharedFile::of(process, fd)?;
        let mut known = self.known.lock();
        known.retain(|_, image| image.strong_count() > 0);
        if let Some(image) = known.get(&file.identity()).and_then(Weak::upgrade) {
            return Ok(image);
        }
        let image = Arc::new(Image::new(process, &file, uid, &self.shares)?);
        known.insert(file.identity(), Arc::downgrade(&image));
        self.count.store(known.len(), Ordering::Release);
        // Others find it, and wait for its content; who asks for another file does not.
        let mut pages = image.pages.lock();
        drop(known);
        image.load_all(&mut pages)?;
        drop(pages);
        Ok(image)
    }

    /// Whether no file is mapped.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// That of an open file.
    pub(crate) fn of(&self, process: &Process, fd: Fd) -> Option<Arc<Image>> {
        if self.is_empty() {
            return None;
        }
        let identity = SharedFile::of(process, fd).ok()?.identity();
        self.known.lock().get(&identity).and_then(Weak::upgrade)
    }

    /// Of all files. Of failures those with memory of user `uid` are told.
    pub(crate) fn write_all(&self, uid: u32) -> Result<()> {
        let all: Vec<Arc<Image>> = self.known.lock().values().filter_map(Weak::upgrade).collect();
        let mut told = Ok(());
        for image in all {
            match image.write_back() {
                // Its view has ended, and all that was written there.
                Err(error) if error.errno() == Errno::CANCELED => {}
                Err(error) if image.uid == uid && told.is_ok() => told = Err(error),
                Err(error) => {
                    tracing::warn!(%error, uid = image.uid, "memory of a mapped file can't be written");
                }
                Ok(()) => {}
            }
        }
        told
    }
}

impl Image {
    fn new(process: &Process, file: &SharedFile, uid: u32, shares: &Shares) -> Result<Self> {
        let writer = process.fork();
        close_all(&writer);
        let fd = file.adopt(&writer, true)?;
        let size = writer.stat(fd)?.size;
        let share = shares.take(uid, 0).ok_or(refused(Errno::NOMEM))?;
        let mut pages = Pages { hashes: Vec::new(), count_max: 0, share };
        if !pages.grant(page_count(size).max(1)) {
            return Err(refused(Errno::NOMEM));
        }
        let memory = memfd_create("kvfs-image", MemfdFlags::CLOEXEC).map_err(refused)?;
        Ok(Self { memory, process: writer, fd, uid, pages: Mutex::new(pages) })
    }

    /// Reads the file for the first time.
    fn load_all(&self, pages: &mut Pages) -> Result<()> {
        self.reload_in(pages, 0..u64::MAX)
    }

    /// Takes what the memory needs when the file ends at `end` or behind. Refused: nothing has changed, and the file is not to grow so far.
    pub(crate) fn reserve(&self, end: u64) -> Result<()> {
        if self.pages.lock().grant(page_count(end)) { Ok(()) } else { Err(refused(Errno::NOMEM)) }
    }

    /// The memory, to be mapped.
    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// The file was written in `range`, or has another size.
    pub(crate) fn reload(&self, range: Range<u64>) -> Result<()> {
        self.reload_in(&mut self.pages.lock(), range)
    }

    fn reload_in(&self, pages: &mut Pages, range: Range<u64>) -> Result<()> {
        let size = self.process.stat(self.fd)?.size;
        let mut count = page_count(size);
        // It may have been lengthened elsewhere.
        if !pages.grant(count) {
            count = count.min(pages.count_max);
        }
        // What a program has written there is not read anew.
        let kept = pages.hashes.len().min(count);
        ftruncate(&self.memory, (count * PAGE) as u64).map_err(refused)?;
        pages.hashes.resize(count, hash(&[0; PAGE]));
        let first = (range.start / PAGE as u64) as usize;
        let last = page_count(range.end.min(size)).min(count);
        self.load(&mut pages.hashes, first..last)?;
        // The old end and the new one lie within a page each.
        let ends = [kept.checked_sub(1), count.checked_sub(1)].into_iter().flatten();
        ends.filter(|page| !(first..last).contains(page))
            .try_for_each(|page| self.load(&mut pages.hashes, page..page + 1))
    }

    fn load(&self, pages: &mut [u64], mut range: Range<usize>) -> Result<()> {
        let mut space = vec![0; PIECE];
        while !range.is_empty() {
            let len = (range.len() * PAGE).min(PIECE);
            let at = (range.start * PAGE) as u64;
            let got = self.process.pread(self.fd, &mut space[..len], at)?;
            space[got..len].fill(0);
            let mut done = 0;
            while done < len {
                done += pwrite(&self.memory, &space[done..len], at + done as u64).map_err(refused)?;
            }
            for (known, page) in pages[range.start..].iter_mut().zip(space[..len].chunks(PAGE)) {
                *known = hash(page);
            }
            range.start += len / PAGE;
        }
        Ok(())
    }

    /// What programs have written into the memory reaches the file. O(size of the file).
    pub(crate) fn write_back(&self) -> Result<()> {
        let pages = &mut self.pages.lock().hashes;
        let size = self.process.stat(self.fd)?.size;
        let mut space = vec![0; PIECE];
        let mut first = 0;
        while first < pages.len() {
            let len = ((pages.len() - first) * PAGE).min(PIECE);
            let at = (first * PAGE) as u64;
            // A client may have shortened it.
            let got = pread(&self.memory, &mut space[..len], at).map_err(refused)?;
            space[got..len].fill(0);
            let known = pages[first..].iter_mut();
            for ((known, page), at) in known.zip(space[..len].chunks(PAGE)).zip((at..).step_by(PAGE)) {
                let found = hash(page);
                if *known == found {
                    continue;
                }
                let len = size.saturating_sub(at).min(PAGE as u64) as usize;
                if len > 0 {
                    self.process.pwrite(self.fd, &page[..len], at)?;
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
        if let Err(error) = self.write_back() {
            tracing::error!(%error, "what a program wrote into mapped memory is lost");
        }
    }
}
