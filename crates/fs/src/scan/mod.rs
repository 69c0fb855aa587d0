//! Scans: programs that go through a tree and read its files, as `grep -r`, `cp -r` and `tar` do.
//!
//! Purpose: such a program reads files in the order in which their directory was listed, and waits for each,
//! while the store has them in the order in which they were made. What a listing has told is kept for a
//! while; where reads follow it, the store is told which blocks come next ([`kvfs_store::Read::will_need`]),
//! and reads them meanwhile. Most directories of a tree have few files: so while a scan is under way, one
//! that is listed is taken for its next step before anything in it is read.
//!
//! Thread safety: any thread; one lock, held for moments. Invariants: what is told never changes an answer;
//! memory is bounded by [`SCANS_MAX`] times [`FILES_MAX`].

use std::collections::VecDeque;

use kvfs_locks::{Mutex, class};
use kvfs_store::{BlockRange, Keyspace, Read};

use crate::FileSystem;
use crate::file::block_count;
use crate::schema::{Header, block_prefix};

/// Directories that are remembered: as many levels as trees have, mostly.
const SCANS_MAX: usize = 16;
/// Files of one directory that are remembered.
const FILES_MAX: usize = 4096;
/// A reader may leave out so many files and still follow the listing.
const LEFT_OUT_MAX: usize = 64;
/// A scan has ended when so many directories were listed one after the other, and no file was read.
const UNREAD_MAX: u32 = 8;
/// How far the store reads ahead of the reader (blocks): 4 MiB.
const LEAD_BLOCKS: u64 = 1024;
/// Of one file (blocks): what comes behind that follows the reader by itself.
const FILE_BLOCKS_MAX: u64 = 256;

/// A file with blocks, as a listing has come to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListedFile {
    inode: u64,
    blocks: u64,
}

impl ListedFile {
    /// `None` where nothing but the row is read.
    pub(crate) fn new(header: &Header) -> Option<Self> {
        let blocks = block_count(header.size).min(FILE_BLOCKS_MAX);
        (!header.is_inline() && blocks > 0).then_some(Self { inode: header.inode, blocks })
    }
}

/// What is known of one directory.
#[derive(Debug)]
struct Scan {
    directory: u64,
    /// In the order of the listing, each with the blocks up to its end.
    files: Vec<(ListedFile, u64)>,
    /// The first one that was not read and not left out.
    at: usize,
    /// The first one that the store has not been told of.
    told: usize,
    is_read: bool,
}

impl Scan {
    fn extend(&mut self, files: &[ListedFile]) {
        let mut end = self.files.last().map_or(0, |(_, end)| *end);
        for &file in files.iter().take(FILES_MAX - self.files.len()) {
            end += file.blocks;
            self.files.push((file, end));
        }
    }

    /// The files that the store is to be told of now: none before half of the lead is used up.
    fn tell(&mut self) -> Vec<ListedFile> {
        let end_of = |files: &[(ListedFile, u64)]| files.last().map_or(0, |(_, end)| *end);
        self.told = self.told.max(self.at);
        let begin = end_of(&self.files[..self.at]);
        if end_of(&self.files[..self.told]) - begin > LEAD_BLOCKS / 2 {
            return Vec::new();
        }
        let from = self.told;
        while self.told < self.files.len() && end_of(&self.files[..self.told]) - begin < LEAD_BLOCKS {
            self.told += 1;
        }
        self.files[from..self.told].iter().map(|(file, _)| *file).collect()
    }
}

#[derive(Debug, Default)]
struct State {
    /// Least recently used first.
    scans: VecDeque<Scan>,
    /// Directories that were listed since a file was read; `None`: no scan is under way.
    unread: Option<u32>,
}

impl State {
    /// Takes out what is known of a directory.
    fn take(&mut self, directory: u64) -> Option<Scan> {
        let at = self.scans.iter().rposition(|scan| scan.directory == directory)?;
        self.scans.remove(at)
    }

    fn put(&mut self, scan: Scan) {
        if self.scans.len() == SCANS_MAX {
            self.scans.pop_front();
        }
        self.scans.push_back(scan);
    }
}

/// The scans of a view.
#[derive(Debug, Default)]
pub(crate) struct Scans {
    state: Mutex<State, class::FsScanState>,
}

impl Scans {
    /// Takes note that a listing of `directory`, from its start or going on, has come to these files. Which
    /// of them come soon.
    fn listed(&self, directory: u64, is_start: bool, files: &[ListedFile]) -> Vec<ListedFile> {
        let mut state = self.state.lock();
        let known = state.take(directory).filter(|_| !is_start);
        if is_start {
            state.unread = state.unread.map(|unread| unread + 1).filter(|unread| *unread <= UNREAD_MAX);
        }
        let begun = Scan { directory, files: Vec::new(), at: 0, told: 0, is_read: false };
        let Some(mut scan) = known.or(is_start.then_some(begun)) else { return Vec::new() };
        scan.extend(files);
        let soon = if state.unread.is_some() { scan.tell() } else { Vec::new() };
        if !scan.files.is_empty() {
            state.put(scan);
        }
        soon
    }

    /// Takes note that a reader begins with a file of `directory`. Which ones come soon.
    fn reads(&self, directory: u64, inode: u64) -> Vec<ListedFile> {
        let mut state = self.state.lock();
        let is_back = state.scans.back().is_some_and(|scan| scan.directory != directory);
        let Some(mut scan) = state.take(directory) else { return Vec::new() };
        let ahead = scan.files[scan.at..].iter().take(LEFT_OUT_MAX);
        let mut soon = Vec::new();
        if let Some(left_out) = ahead.map(|(file, _)| file.inode).position(|listed| listed == inode) {
            let goes_on = scan.is_read || state.unread.is_some();
            if goes_on || left_out == 0 {
                state.unread = Some(0);
            }
            (scan.at, scan.is_read) = (scan.at + left_out + 1, true);
            if is_back {
                // What was read ahead before the reader went elsewhere may have had to go.
                scan.told = scan.at;
            }
            // One file alone says little.
            if goes_on {
                soon = scan.tell();
            }
        }
        state.put(scan);
        soon
    }
}

/// Tells the store what scans of a view come to.
pub(crate) struct Foresight<'v> {
    scans: &'v Scans,
    read: &'v dyn Read,
    data: Keyspace,
}

impl<'v> Foresight<'v> {
    /// That of this view.
    pub(crate) fn new(fs: &'v FileSystem) -> Self {
        Self { scans: &fs.scans, read: fs.origin.read(), data: fs.keyspaces.data }
    }

    /// A listing of `directory`, from its start or going on, has come to these files.
    pub(crate) fn listed(&self, directory: u64, is_start: bool, files: &[ListedFile]) {
        self.tell(&self.scans.listed(directory, is_start, files));
    }

    /// A reader begins with a file of `directory`.
    pub(crate) fn reads(&self, directory: u64, inode: u64) {
        self.tell(&self.scans.reads(directory, inode));
    }

    fn tell(&self, soon: &[ListedFile]) {
        if soon.is_empty() {
            return;
        }
        let range = |file: &ListedFile| {
            let prefix = block_prefix(file.inode).to_vec().into();
            BlockRange { prefix, first: 0, count: file.blocks }
        };
        self.read.will_need(self.data, soon.iter().map(range).collect());
    }
}

#[cfg(test)]
mod tests;
