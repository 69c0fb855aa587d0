//! How files are read and written, as front ends asked for it: by stretch, with the pattern of successive
//! accesses (nDiskFS 3.2, 3.3).
//!
//! Kept in memory for the files that were accessed last, and forgotten when the store is closed. A file has
//! at most [`STRETCHES_MAX`] stretches of equal length: where it grows beyond them, each takes in its
//! neighbour. An access counts in the stretch where it begins, its bytes where they lie.
//!
//! One rule tells the patterns: where the distance of an access from the one before equals the length of that
//! one, it is sequential; where it equals the distance before, strided; else random.
//!
//! Thread safety: any thread; a shard is locked for moments. Invariants: at most [`FILES_MAX`] files are
//! kept, of those the ones that were accessed last in their shard; what is shown is [`FileAccesses`], whose
//! text form leads back to it.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

use kvfs_locks::{Mutex, class};
use kvfs_store::TierBytes;

use super::BLOCK;
use crate::node::Pin;
use crate::schema::block_prefix;
use crate::{FileSystem, FileType, FsError, Result};

/// Most stretches of a file.
const STRETCHES_MAX: u64 = 32;
/// The shortest stretch (bytes), as placement by heat has it (nDiskFS 3.3).
const STRETCH_BYTES_MIN: u64 = 256 << 10;

/// Most files that are kept.
const FILES_MAX: usize = 512;
const SHARDS: usize = 16;
const FILES_OF_SHARD: usize = FILES_MAX / SHARDS;

/// How an access follows the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessPattern {
    /// Neither of the others.
    Random,
    /// As far from it as that one was from its own predecessor.
    Strided,
    /// Where it ended.
    Sequential,
}

impl AccessPattern {
    /// All, the least regular one first.
    pub const ALL: [Self; 3] = [Self::Random, Self::Strided, Self::Sequential];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Strided => "strided",
            Self::Sequential => "sequential",
        }
    }
}

/// Accesses of one kind, reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AccessCount {
    /// Accesses that began here.
    pub count: u64,
    /// Bytes of accesses.
    pub bytes: u64,
    /// The time since the last one; of what is kept, when it was, by the monotonic clock.
    pub last: Option<Duration>,
    /// Of those that followed another one of the file, how: in the order of [`AccessPattern::ALL`].
    pub patterns: [u64; 3],
}

impl AccessCount {
    /// How most of them followed each other; `None`: none did.
    pub fn pattern(&self) -> Option<AccessPattern> {
        let counts = AccessPattern::ALL.into_iter().zip(self.patterns).filter(|&(_, count)| count > 0);
        counts.max_by_key(|&(_, count)| count).map(|(pattern, _)| pattern)
    }

    /// Adds what `other` has counted; both with the same meaning of `last`, of which `newer` chooses.
    fn add(&mut self, other: &Self, newer: fn(Duration, Duration) -> Duration) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.patterns = std::array::from_fn(|at| self.patterns[at] + other.patterns[at]);
        self.last = match (self.last, other.last) {
            (Some(own), Some(other)) => Some(newer(own, other)),
            (own, other) => own.or(other),
        };
    }
}

/// A stretch of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StretchAccesses {
    /// Where it begins (bytes).
    pub offset: u64,
    /// Its length (bytes).
    pub bytes: u64,
    /// Reads.
    pub reads: AccessCount,
    /// Writes.
    pub writes: AccessCount,
    /// What its blocks take on devices.
    pub stored: TierBytes,
}

/// How a file was accessed since the store was opened, as far as that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileAccesses {
    /// By offset; together they cover the file.
    pub stretches: Vec<StretchAccesses>,
}

impl FileAccesses {
    /// The file as one stretch.
    pub fn total(&self) -> StretchAccesses {
        let mut total = StretchAccesses::default();
        for stretch in &self.stretches {
            total.bytes += stretch.bytes;
            total.reads.add(&stretch.reads, Duration::min);
            total.writes.add(&stretch.writes, Duration::min);
            total.stored.fast += stretch.stored.fast;
            total.stored.slow += stretch.stored.slow;
        }
        total
    }

    /// One line for each stretch: numbers, separated by spaces.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        for StretchAccesses { offset, bytes, reads, writes, stored } in &self.stretches {
            // Writing to a string never fails.
            let _ = write!(text, "{offset} {bytes} {} {}", stored.fast, stored.slow);
            for AccessCount { count, bytes, last, patterns: [random, strided, sequential] } in [reads, writes]
            {
                let age = last.map_or_else(|| "-".to_owned(), |last| last.as_millis().to_string());
                let _ = write!(text, " {count} {bytes} {age} {random} {strided} {sequential}");
            }
            text.push('\n');
        }
        text
    }

    /// What the value of [`ACCESSES_ATTRIBUTE`](crate::ACCESSES_ATTRIBUTE) says; `None`: it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let stretches = text.lines().map(parse_stretch).collect::<Option<_>>()?;
        Some(Self { stretches })
    }
}

fn parse_stretch(line: &str) -> Option<StretchAccesses> {
    let words: Vec<&str> = line.split(' ').collect();
    let words: [&str; 16] = words.try_into().ok()?;
    let number = |at: usize| words[at].parse::<u64>().ok();
    let count = |at: usize| {
        let last = if words[at + 2] == "-" { None } else { Some(Duration::from_millis(number(at + 2)?)) };
        let patterns = [number(at + 3)?, number(at + 4)?, number(at + 5)?];
        Some(AccessCount { count: number(at)?, bytes: number(at + 1)?, last, patterns })
    };
    Some(StretchAccesses {
        offset: number(0)?,
        bytes: number(1)?,
        stored: TierBytes { fast: number(2)?, slow: number(3)? },
        reads: count(4)?,
        writes: count(10)?,
    })
}

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccessKind {
    Read,
    Write,
}

/// Where the accesses of one kind have come to.
#[derive(Debug, Clone, Copy, Default)]
struct Trail {
    /// Offset and length of the last one.
    last: Option<(u64, u64)>,
    /// How far that one was from its predecessor.
    distance: Option<i64>,
}

impl Trail {
    /// How an access follows the one before; `None`: it is the first.
    fn follow(&mut self, offset: u64, bytes: u64) -> Option<AccessPattern> {
        let (last_offset, last_bytes) = self.last.replace((offset, bytes))?;
        let distance = offset.wrapping_sub(last_offset) as i64;
        let before = self.distance.replace(distance);
        Some(if distance == last_bytes as i64 {
            AccessPattern::Sequential
        } else if before == Some(distance) {
            AccessPattern::Strided
        } else {
            AccessPattern::Random
        })
    }
}

/// One file.
#[derive(Debug, Clone)]
struct FileLog {
    /// Length of each stretch (bytes): a power of two.
    width: u64,
    /// Up to the last one that was accessed; offsets and lengths are not filled in.
    stretches: Vec<StretchAccesses>,
    reads: Trail,
    writes: Trail,
    last: Duration,
}

impl Default for FileLog {
    fn default() -> Self {
        Self {
            width: STRETCH_BYTES_MIN,
            stretches: Vec::new(),
            reads: Trail::default(),
            writes: Trail::default(),
            last: Duration::ZERO,
        }
    }
}

impl FileLog {
    fn note(&mut self, kind: AccessKind, offset: u64, bytes: u64, now: Duration) {
        let end = offset.saturating_add(bytes);
        self.cover(end);
        let trail = if kind == AccessKind::Read { &mut self.reads } else { &mut self.writes };
        let pattern = trail.follow(offset, bytes);
        self.last = now;
        let (first, last) = (offset / self.width, (end - 1) / self.width);
        if self.stretches.len() as u64 <= last {
            self.stretches.resize(last as usize + 1, StretchAccesses::default());
        }
        for at in first..=last {
            let stretch = &mut self.stretches[at as usize];
            let count = if kind == AccessKind::Read { &mut stretch.reads } else { &mut stretch.writes };
            let (from, to) = (offset.max(at * self.width), end.min((at + 1).saturating_mul(self.width)));
            count.bytes += to - from;
            count.last = Some(now);
            if at == first {
                count.count += 1;
                if let Some(pattern) = pattern {
                    count.patterns[pattern as usize] += 1;
                }
            }
        }
    }

    /// Widens the stretches until they reach `end`.
    fn cover(&mut self, end: u64) {
        while end.div_ceil(self.width) > STRETCHES_MAX {
            self.width *= 2;
            let pairs = self.stretches.chunks(2).map(|pair| {
                let mut both = pair[0];
                if let Some(second) = pair.get(1) {
                    both.reads.add(&second.reads, Duration::max);
                    both.writes.add(&second.writes, Duration::max);
                }
                both
            });
            self.stretches = pairs.collect();
        }
    }

    /// The stretches of a file of `size` bytes, with ages in the place of times.
    fn shown(mut self, size: u64, now: Duration) -> Vec<StretchAccesses> {
        self.cover(size);
        let count = size.div_ceil(self.width).max(self.stretches.len() as u64);
        self.stretches.resize(count as usize, StretchAccesses::default());
        let mut offset = 0;
        for stretch in &mut self.stretches {
            stretch.offset = offset;
            stretch.bytes = size.saturating_sub(offset).min(self.width);
            for count in [&mut stretch.reads, &mut stretch.writes] {
                count.last = count.last.map(|last| now.saturating_sub(last));
            }
            offset += self.width;
        }
        self.stretches
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct AccessLog {
    shards: [Mutex<HashMap<u64, FileLog>, class::FsFileAccesses>; SHARDS],
}

impl AccessLog {
    fn shard(&self, inode: u64) -> &Mutex<HashMap<u64, FileLog>, class::FsFileAccesses> {
        &self.shards[inode as usize % SHARDS]
    }

    /// So many bytes of a file were read or written.
    pub(crate) fn note(&self, inode: u64, kind: AccessKind, offset: u64, bytes: u64, now: Duration) {
        if bytes == 0 {
            return;
        }
        let mut files = self.shard(inode).lock();
        if files.len() >= FILES_OF_SHARD && !files.contains_key(&inode) {
            let oldest = files.iter().min_by_key(|(_, log)| log.last).map(|(inode, _)| *inode);
            oldest.and_then(|oldest| files.remove(&oldest));
        }
        files.entry(inode).or_default().note(kind, offset, bytes, now);
    }

    fn stretches(&self, inode: u64, size: u64, now: Duration) -> Vec<StretchAccesses> {
        let log = self.shard(inode).lock().get(&inode).cloned();
        log.unwrap_or_default().shown(size, now)
    }
}

/// How a file was read and written since the store was opened, in all views, and on which tier its content
/// lies. Reads the indexes of the pieces that may have blocks of it. Never parks.
///
/// # Errors
/// `NotSupported`: it is no file; store errors.
pub(crate) fn accesses_of(fs: &FileSystem, node: &Pin<'_>) -> Result<FileAccesses> {
    if node.kind != FileType::Regular {
        return Err(FsError::NotSupported("only files have statistics of accesses"));
    }
    let header = node.header();
    let now = fs.shared.clock.monotonic();
    let mut stretches = fs.shared.accesses.stretches(node.inode, header.size, now);
    for stretch in stretches.iter_mut().filter(|_| !header.is_inline()) {
        let blocks = stretch.offset / BLOCK..(stretch.offset + stretch.bytes).div_ceil(BLOCK);
        let prefix = block_prefix(node.inode);
        stretch.stored = fs.store.bytes_by_tier(fs.keyspaces.data, &prefix, blocks)?;
    }
    Ok(FileAccesses { stretches })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(accesses: &[(u64, u64)]) -> FileAccesses {
        let log = AccessLog::default();
        for (second, &(offset, bytes)) in (0..).zip(accesses) {
            log.note(7, AccessKind::Read, offset, bytes, Duration::from_secs(second));
        }
        FileAccesses { stretches: log.stretches(7, 0, Duration::from_secs(100)) }
    }

    #[test]
    fn distance_of_successive_accesses_tells_their_pattern() {
        let pattern = |step: &dyn Fn(u64) -> u64| {
            let accesses: Vec<_> = (0..20).map(|at| (step(at), 4096)).collect();
            noted(&accesses).total().reads.pattern()
        };
        assert_eq!(pattern(&|at| at * 4096), Some(AccessPattern::Sequential));
        assert_eq!(pattern(&|at| at * 65536), Some(AccessPattern::Strided));
        assert_eq!(pattern(&|at| (20 - at) * 8192), Some(AccessPattern::Strided), "backwards");
        assert_eq!(pattern(&|at| at * at * 4096), Some(AccessPattern::Random));
        assert_eq!(noted(&[(0, 4096)]).total().reads.pattern(), None);
    }

    #[test]
    fn stretches_widen_and_lose_nothing() {
        let accesses: Vec<_> = (0..40).map(|at| (at << 20, 300 << 10)).collect();
        let found = noted(&accesses);
        assert!(found.stretches.len() as u64 <= STRETCHES_MAX);
        let AccessCount { count, bytes, last, .. } = found.total().reads;
        assert_eq!((count, bytes, last), (40, 40 * (300 << 10), Some(Duration::from_secs(61))));
        assert_eq!(found.stretches[0].reads.count, 2, "2 MiB each");
        assert_eq!(FileAccesses::parse(&found.to_text()), Some(found), "text leads back");
        assert_eq!(FileAccesses::parse("1 2 x"), None);
    }

    #[test]
    fn files_that_were_accessed_last_are_kept() {
        let log = AccessLog::default();
        for inode in 0..2 * FILES_MAX as u64 {
            log.note(inode, AccessKind::Write, 0, 10, Duration::from_secs(inode));
        }
        let count = |inode| log.stretches(inode, 10, Duration::from_secs(9999))[0].writes.count;
        assert_eq!((count(0), count(2 * FILES_MAX as u64 - 1)), (0, 1));
    }
}
