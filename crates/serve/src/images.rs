//! Images: memory of files that programs map and share.
//!
//! Purpose: processes that map the same file, shared and to be written, have one memory for it, as a kernel's
//! pages are. It holds what the file does: what processes write into it reaches the file before that is read
//! or synced over this server, and when the last of them has closed it; what is changed of the file
//! otherwise, by calls, on a mount or by a commit, reaches the memory before anything is written back.
//!
//! Thread safety: one lock for the list, one for each image, held while content is copied and while a call
//! writes to the file. What waits for a transaction meanwhile ends with the process for which it is done. A
//! thread of its own writes back what is kept no more, and waits for no transaction: it tries again. Memory
//! is written back in rounds, and one that begins while others wait is for all of them.
//!
//! Invariants: a file has one image at most, from when it is mapped until what programs have written there
//! has reached it, or its transaction has ended. Nothing here maps the memory, so a client that shortens it
//! hurts itself alone. All images together are bounded, and a user takes half at most: no image is larger
//! than what was taken for it, even if its file is. What its user has mapped grows by a call only if there is
//! room for it. Of a page that a program and others change, the bytes of both stay; where it is not known
//! which bytes a commit has changed, what the program has stored there meanwhile is lost, and told (EIO).

mod stale;

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kvfs_fs::{ByteRanges, ContentWatch};
use kvfs_locks::{Condvar, Mutex, MutexGuard, class};
use kvfs_posix::{Fd, FileIdentity, Process, Result, SharedFile, fork_for, interrupt, write_memory};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};

use self::stale::{Changes, Stale};
use crate::session::refused;
use crate::shares::{Share, Shares, shares};

/// Most bytes of all images.
const IMAGE_BYTES_MAX: usize = 1 << 30;

/// Most images: each has a descriptor.
const IMAGES_MAX: usize = 8192;

/// When what waits for a transaction is tried again: at first, and at last.
const AGAIN_MIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_secs(2);

const PAGE: usize = 4096;
/// Content is copied in pieces of so many pages.
const PIECE: usize = 64 * PAGE;

/// Those of all files.
pub(crate) struct Images {
    known: Mutex<HashMap<FileIdentity, Known>, class::ServeImagesKnown>,
    /// Of `known`, so that a server without any costs nothing.
    count: AtomicUsize,
    shares: Shares,
    /// One for each image.
    places: Shares,
    ends: Arc<Ends>,
}

#[derive(Clone)]
struct Known {
    content: Arc<Content>,
    /// What keeps it; none: it ends once it is written back.
    image: Weak<Image>,
}

/// Tells the thread that writes back.
#[derive(Default)]
struct Ends {
    orders: Mutex<Orders, class::ServeImagesEnds>,
    changed: Condvar,
}

#[derive(Default)]
struct Orders {
    /// Some image is kept no more.
    are_some: bool,
    is_stopping: bool,
}

/// Keeps the memory of a file.
pub(crate) struct Image {
    content: Arc<Content>,
    ends: Arc<Ends>,
}

/// The memory of a file, and the file.
struct Content {
    memory: OwnedFd,
    /// For the user of what has mapped it first, with the file alone.
    process: Process,
    fd: Fd,
    uid: u32,
    pages: Mutex<Pages, class::ServeImagesPages>,
    /// How often it was begun to write back.
    rounds: AtomicU64,
    stale: Arc<Stale>,
    watch: ContentWatch,
    _place: Share,
}

/// An image whose memory and file no other call brings together.
pub(crate) struct Held<'i> {
    content: &'i Content,
    /// Does it, as long as the one for which it does it is there.
    process: Process,
    /// The last round that had begun when this one came.
    came_in: u64,
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
    /// The last round in which all was written back.
    done_round: u64,
    /// What a program has stored in a page is lost, and no sync has told so.
    has_lost: bool,
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
        Self {
            known: Mutex::default(),
            count: AtomicUsize::new(0),
            shares: shares(IMAGE_BYTES_MAX, own_uid),
            places: shares(IMAGES_MAX, own_uid),
            ends: Arc::default(),
        }
    }

    /// The image of a file that is open for reading and writing; made if there is none.
    pub(crate) fn open(&self, process: &Process, file: &SharedFile, uid: u32) -> Result<Arc<Image>> {
        let opened = self.try_open(process, file, uid);
        if opened.as_ref().is_err_and(|error| error.errno() == Errno::NOMEM) {
            // What is kept no more may have it.
            self.end_unkept(false);
            return self.try_open(process, file, uid);
        }
        opened
    }

    fn try_open(&self, process: &Process, file: &SharedFile, uid: u32) -> Result<Arc<Image>> {
        let image = self.find_or_make(process, file, uid)?;
        // Only now: the others are not to wait until it is read.
        image.fill(process)?;
        Ok(image)
    }

    fn find_or_make(&self, process: &Process, file: &SharedFile, uid: u32) -> Result<Arc<Image>> {
        let mut known = self.known.lock();
        if let Some(found) = known.get_mut(&file.identity()) {
            return Ok(found.keep(&self.ends));
        }
        let content = Arc::new(self.content(process, file, uid)?);
        let mut new = Known { content, image: Weak::new() };
        let image = new.keep(&self.ends);
        known.insert(file.identity(), new);
        self.count.store(known.len(), Ordering::Release);
        Ok(image)
    }

    /// An empty one.
    fn content(&self, process: &Process, file: &SharedFile, uid: u32) -> Result<Content> {
        let place = self.places.take(uid, 1).ok_or(refused(Errno::NOMEM))?;
        let share = self.shares.take(uid, PAGE).ok_or(refused(Errno::NOMEM))?;
        let (writer, fd) = file.alone(process)?;
        let memory = memfd_create("kvfs-image", MemfdFlags::CLOEXEC).map_err(refused)?;
        let pages = Pages { hashes: Vec::new(), size: 0, share, done_round: 0, has_lost: false };
        let (pages, rounds) = (Mutex::new(pages), AtomicU64::new(0));
        let stale = Arc::<Stale>::default();
        let watch = file.watch(process, Arc::clone(&stale) as _);
        Ok(Content { memory, process: writer, fd, uid, pages, rounds, stale, watch, _place: place })
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
        self.known.lock().get_mut(&file.identity()).map(|found| found.keep(&self.ends))
    }

    /// Of all files of the view that a process of the user `uid` sees: what is in another transaction
    /// concerns that one alone. What fails of other users is not told to this one.
    pub(crate) fn write_all(&self, process: &Process, uid: u32) -> Result<()> {
        let seen: Vec<Arc<Content>> = {
            let known = self.known.lock();
            let seen = known.iter().filter(|(identity, _)| identity.is_seen_by(process));
            seen.map(|(_, one)| Arc::clone(&one.content)).collect()
        };
        let mut outcome = Ok(());
        for content in seen {
            match content.hold(process).and_then(|mut held| held.sync()) {
                // Its transaction has ended: there is no file for it.
                Err(error) if error.errno() == Errno::STALE => {}
                Err(error) if content.uid == uid => outcome = outcome.and(Err(error)),
                Err(error) => {
                    tracing::warn!(%error, uid = content.uid, "what a program wrote into mapped memory has not reached its file");
                }
                Ok(()) => {}
            }
        }
        outcome
    }

    /// Body of the thread: ends images that are kept no more.
    pub(crate) fn watch(&self) {
        let mut pause = AGAIN_MIN;
        let mut is_stopping = false;
        loop {
            let are_ended = self.end_unkept(is_stopping);
            let mut orders = self.ends.orders.lock();
            if is_stopping && self.is_empty() {
                return;
            }
            let is_told = |orders: &mut Orders| orders.are_some || orders.is_stopping != is_stopping;
            if are_ended {
                self.ends.changed.wait_while(&mut orders, |orders| !is_told(orders));
            } else {
                self.ends.changed.wait_while_for(&mut orders, |orders| !is_told(orders), pause);
            }
            pause = if is_told(&mut orders) { AGAIN_MIN } else { (pause * 2).min(AGAIN_MAX) };
            is_stopping = orders.is_stopping;
            orders.are_some = false;
        }
    }

    /// Ends the thread when nothing is left: what the last ones have kept is written back first.
    pub(crate) fn stop(&self) {
        self.ends.tell(|orders| orders.is_stopping = true);
    }

    /// Writes back and ends what is kept no more. False: some of it `waits` for a transaction, or would.
    fn end_unkept(&self, waits: bool) -> bool {
        let unkept: Vec<(FileIdentity, Known)> = {
            let known = self.known.lock();
            let unkept = known.iter().filter(|(_, one)| one.image.strong_count() == 0);
            unkept.map(|(identity, one)| (*identity, one.clone())).collect()
        };
        let mut are_ended = true;
        for (identity, one) in unkept {
            if !one.content.end(waits) {
                are_ended = false;
                continue;
            }
            let mut known = self.known.lock();
            // What was kept again meanwhile may have been written to.
            let ended = known.extract_if(|at, now| *at == identity && now.image.ptr_eq(&one.image)).next();
            self.count.store(known.len(), Ordering::Release);
            drop(known);
            drop(ended);
        }
        are_ended
    }
}

impl Ends {
    fn tell(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.orders.lock());
        self.changed.notify_all();
    }
}

impl Known {
    fn keep(&mut self, ends: &Arc<Ends>) -> Arc<Image> {
        if let Some(image) = self.image.upgrade() {
            return image;
        }
        let image = Arc::new(Image { content: Arc::clone(&self.content), ends: Arc::clone(ends) });
        self.image = Arc::downgrade(&image);
        image
    }
}

impl Image {
    /// The memory, to be mapped.
    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.content.memory.as_fd()
    }

    /// Reads what is not there yet, for a process.
    ///
    /// # Errors
    /// ENOMEM: there is no room for all of the file.
    fn fill(&self, process: &Process) -> Result<()> {
        let mut held = self.hold(process)?;
        let count = page_count(held.size()?);
        if count <= held.pages.hashes.len() {
            return Ok(());
        }
        held.write_back()?;
        held.reload(&Changes::default())?;
        if count <= held.pages.hashes.len() { Ok(()) } else { Err(refused(Errno::NOMEM)) }
    }

    /// What programs have written into the memory reaches the file, for a process. O(size of the file).
    pub(crate) fn write_back(&self, process: &Process) -> Result<()> {
        self.hold(process)?.write_back()
    }

    /// As [`Image::write_back`].
    ///
    /// # Errors
    /// EIO: something of it is lost.
    pub(crate) fn sync(&self, process: &Process) -> Result<()> {
        self.hold(process)?.sync()
    }

    /// Keeps others from it, for a process: what it waits for ends with that. The memory is up to date.
    pub(crate) fn hold(&self, process: &Process) -> Result<Held<'_>> {
        self.content.hold(process)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.ends.tell(|orders| orders.are_some = true);
    }
}

impl Content {
    fn hold(&self, process: &Process) -> Result<Held<'_>> {
        self.hold_since(self.round(), process)
    }

    fn round(&self) -> u64 {
        self.rounds.load(Ordering::SeqCst)
    }

    fn hold_since(&self, came_in: u64, process: &Process) -> Result<Held<'_>> {
        let process = fork_for(&self.process, process)?;
        let mut held = Held { content: self, process, came_in, pages: self.pages.lock() };
        held.refresh()?;
        Ok(held)
    }

    /// What is kept no more reaches the file. False: it would have to wait, and does not if `waits` is false.
    fn end(&self, waits: bool) -> bool {
        let held = if waits {
            self.hold(&self.process)
        } else {
            let Some(pages) = self.pages.try_lock() else { return false };
            self.process.fork().map(|process| {
                interrupt(&process);
                Held { content: self, process, came_in: self.round(), pages }
            })
        };
        match held.and_then(|mut held| held.write_back()) {
            Err(error) if error.errno() == Errno::INTR => false,
            // Its transaction has ended, or will: there is no file for it.
            Err(error) if [Errno::STALE, Errno::CANCELED].contains(&error.errno()) => true,
            Err(error) => {
                tracing::error!(%error, "what a program wrote into mapped memory is lost");
                true
            }
            Ok(()) => true,
        }
    }
}

impl Held<'_> {
    pub(crate) fn is_of(&self, image: &Image) -> bool {
        std::ptr::eq(self.content, Arc::as_ptr(&image.content))
    }

    /// A process of the user `uid` is about to make the file as long as `size`, or longer. What others do is
    /// not refused for lack of this user's room.
    ///
    /// # Errors
    /// EFBIG: there is no room for that.
    pub(crate) fn reserve(&mut self, size: u64, uid: u32) -> Result<()> {
        let count = page_count(size);
        let is_larger = uid == self.content.uid && count > self.pages.hashes.len();
        if is_larger && self.pages.make_room(count) < count { Err(refused(Errno::FBIG)) } else { Ok(()) }
    }

    /// Brings the memory up to date with what was changed of the file.
    pub(crate) fn refresh(&mut self) -> Result<()> {
        let changes = self.content.stale.take();
        if changes.is_empty() {
            return Ok(());
        }
        self.reload(&changes).inspect_err(|_| self.content.stale.give_back(&changes))
    }

    /// The file was changed so, or has another size. Of a longer one as much as there is room for is held.
    fn reload(&mut self, changes: &Changes) -> Result<()> {
        let size = self.size()?;
        let count = self.pages.make_room(page_count(size));
        self.pages.hashes.truncate(count);
        let kept = self.pages.hashes.len();
        // From the old end or the new one on all is another.
        let end = self.pages.size.min(size).min((kept * PAGE) as u64);
        let mut changed = Changes { bytes: changes.bytes.clone(), are_unknown: changes.are_unknown };
        changed.bytes.add(end..u64::MAX);
        self.pages.size = end;
        let loaded = self.load_changed(&changed, count).map(|()| self.pages.size = size);
        ftruncate(&self.content.memory, (self.pages.hashes.len() * PAGE) as u64).map_err(refused)?;
        loaded
    }

    fn load_changed(&mut self, changed: &Changes, count: usize) -> Result<()> {
        if changed.are_unknown {
            return self.load(0..count, changed);
        }
        let mut next = 0;
        for range in changed.bytes.iter() {
            let first = ((range.start / PAGE as u64) as usize).max(next);
            next = page_count(range.end).min(count).max(next);
            self.load(first..next, changed)?;
        }
        Ok(())
    }

    /// Reads pages of the file. Into the memory comes what lies in a range that has changed: the rest of a
    /// page may hold what a program has written meanwhile. Where any byte may have changed, the whole page
    /// comes. New memory is zeros.
    fn load(&mut self, mut pages: Range<usize>, changed: &Changes) -> Result<()> {
        let zeros = hash(&[0; PAGE]);
        let mut space = vec![0; PIECE];
        while !pages.is_empty() {
            let len = pages.len().saturating_mul(PAGE).min(PIECE);
            let at = (pages.start * PAGE) as u64;
            let got = self.process.pread(self.content.fd, &mut space[..len], at)?;
            space[got..len].fill(0);
            for page in space[..len].chunks(PAGE) {
                let found = hash(page);
                let (at, known) = ((pages.start * PAGE) as u64, self.pages.hashes.get(pages.start).copied());
                if known.unwrap_or(zeros) != found {
                    match known.filter(|_| changed.are_unknown) {
                        Some(known) => self.put_whole(page, at, known)?,
                        None => self.put(page, at, &changed.bytes)?,
                    }
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
    fn put(&self, page: &[u8], at: u64, changed: &ByteRanges) -> Result<()> {
        for range in changed.iter() {
            let within = |place: u64| place.saturating_sub(at).min(PAGE as u64) as usize;
            let (mut done, end) = (within(range.start), within(range.end));
            while done < end {
                done += pwrite(&self.content.memory, &page[done..end], at + done as u64).map_err(refused)?;
            }
        }
        Ok(())
    }

    /// Puts a page of which any byte may have changed into the memory, which had one with this hash.
    fn put_whole(&mut self, page: &[u8], at: u64, known: u64) -> Result<()> {
        let mut before = [0; PAGE];
        // A client may have shortened it.
        pread(&self.content.memory, &mut before, at).map_err(refused)?;
        if hash(&before) != known && before != page {
            self.pages.has_lost = true;
            tracing::warn!(
                uid = self.content.uid,
                "a page of mapped memory was lost: a transaction has changed it meanwhile"
            );
        }
        let mut all = ByteRanges::default();
        all.add(0..u64::MAX);
        self.put(page, at, &all)
    }

    /// Of the file.
    fn size(&self) -> Result<u64> {
        Ok(self.process.stat(self.content.fd)?.size)
    }

    /// See [`Image::sync`].
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.write_back()?;
        if std::mem::take(&mut self.pages.has_lost) { Err(refused(Errno::IO)) } else { Ok(()) }
    }

    /// See [`Image::write_back`].
    pub(crate) fn write_back(&mut self) -> Result<()> {
        // A round that has begun since has found what there was then.
        if self.pages.done_round > self.came_in {
            return Ok(());
        }
        let round = self.content.rounds.fetch_add(1, Ordering::SeqCst) + 1;
        loop {
            self.refresh()?;
            if self.write_pages()? {
                self.pages.done_round = round;
                return Ok(());
            }
        }
    }

    /// Writes pages that programs have changed. False: others have changed some of these since the memory was
    /// brought up to date; their bytes stay, and it has to be done again.
    fn write_pages(&mut self) -> Result<bool> {
        let size = self.size()?;
        let Self { content, process, pages, .. } = self;
        let mut are_all_written = true;
        let hashes = &mut pages.hashes;
        let mut space = vec![0; PIECE];
        let mut first = 0;
        while first < hashes.len() {
            let len = ((hashes.len() - first) * PAGE).min(PIECE);
            let at = (first * PAGE) as u64;
            // A client may have shortened it.
            let got = pread(&content.memory, &mut space[..len], at).map_err(refused)?;
            space[got..len].fill(0);
            let known = hashes[first..].iter_mut();
            for ((known, page), at) in known.zip(space[..len].chunks(PAGE)).zip((at..).step_by(PAGE)) {
                let found = hash(page);
                if *known == found {
                    continue;
                }
                let len = size.saturating_sub(at).min(PAGE as u64) as usize;
                let is_old = Cell::new(false);
                let beside = |bytes: Range<u64>| {
                    let changed = content.stale.among(&bytes);
                    is_old.set(!changed.is_empty());
                    changed
                };
                if len > 0 {
                    write_memory(process, content.fd, &page[..len], at, &content.watch, &beside)?;
                }
                if is_old.get() {
                    are_all_written = false;
                } else {
                    *known = found;
                }
            }
            first += len / PAGE;
        }
        Ok(are_all_written)
    }
}

#[cfg(test)]
mod tests;
