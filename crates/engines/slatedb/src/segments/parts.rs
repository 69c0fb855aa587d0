//! Parts of segments that are near: in memory, and on the local disk.
//!
//! Purpose: what is asked of object storage is a few whole parts at a time; who reads near it finds them
//! here. Their content is verified by who reads a block, so a part that was damaged on the disk is a miss.
//!
//! Thread safety: shared; a lock for each place, held for moments. Invariants: the parts in memory come to at
//! most their bound, or there is one; those on the disk were there when they were noted, and files go with
//! their notes.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use kvfs_locks::{Mutex, class};
use kvfs_store::BLOCK_BYTES;
use rustix::fs::{SeekFrom, seek};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::weighed::Weighed;

/// Blocks of a part: 128 KiB. One request brings so many at least.
pub(crate) const PART_BLOCKS: u16 = 32;

pub(crate) const PART_BYTES: usize = PART_BLOCKS as usize * BLOCK_BYTES;

/// One part of a segment; the last one may be shorter than others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PartKey {
    pub(crate) segment: u64,
    pub(crate) part: u16,
}

impl PartKey {
    /// That a block is in.
    pub(crate) fn of(segment: u64, index: u16) -> Self {
        Self { segment, part: index / PART_BLOCKS }
    }

    /// Where it begins in its segment (bytes).
    pub(crate) fn offset(self) -> u64 {
        u64::from(self.part) * PART_BYTES as u64
    }

    /// Of a set of parts; `None`: no segment is so long.
    fn bit(self) -> Option<u64> {
        1u64.checked_shl(u32::from(self.part))
    }
}

/// Sets of parts, of one fetch each, that wait to be written to the disk, at most.
const WRITES_MAX: usize = 8;

struct Memory {
    parts: Weighed<PartKey, Bytes>,
    bytes_max: usize,
}

/// A file for each segment, with its parts where they are in that, and holes.
struct Disk {
    dir: PathBuf,
    bytes_max: usize,
    /// By segment.
    known: Mutex<Weighed<u64, Kept>, class::EngineSlatedbSegmentsDisk>,
}

/// The parts of a file, a bit for each.
#[derive(Default)]
struct Kept {
    parts: u64,
    bytes: usize,
}

impl Kept {
    /// Has a part, of so many bytes, if it has it not yet.
    fn add(&mut self, bit: u64, bytes: usize) {
        if self.parts & bit == 0 {
            self.parts |= bit;
            self.bytes += bytes;
        }
    }
}

/// See the module.
pub(crate) struct Parts {
    memory: Mutex<Memory, class::EngineSlatedbSegmentsMemory>,
    disk: Option<Disk>,
    /// One for each set of parts that may be written to the disk.
    permits: Arc<Semaphore>,
}

impl Parts {
    /// In so much memory (bytes), and in a directory, if there is one, of so many bytes.
    pub(crate) fn new(bytes_max: usize, dir: Option<(PathBuf, u64)>) -> Self {
        let memory = Memory { parts: Weighed::new(), bytes_max };
        Self {
            memory: Mutex::new(memory),
            disk: dir.and_then(|(dir, bytes)| Disk::open(dir, bytes)),
            permits: Arc::new(Semaphore::new(WRITES_MAX)),
        }
    }

    /// From now on.
    pub(crate) fn set_bytes_max(&self, bytes: usize) {
        let mut memory = self.memory.lock();
        memory.bytes_max = bytes;
        memory.parts.shrink(bytes);
    }

    pub(crate) fn bytes_max(&self) -> usize {
        self.memory.lock().bytes_max
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.memory.lock().parts.weight() as u64
    }

    pub(crate) fn in_memory(&self, key: PartKey) -> Option<Bytes> {
        self.memory.lock().parts.get(&key).cloned()
    }

    pub(crate) fn has_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// Reads it from the disk.
    pub(crate) fn on_disk(&self, key: PartKey) -> Option<Bytes> {
        self.disk.as_ref()?.read(key)
    }

    /// Has a part that was read from the disk in memory, too.
    pub(crate) fn keep(&self, key: PartKey, part: Bytes) {
        let Memory { parts, bytes_max } = &mut *self.memory.lock();
        let bytes = part.len();
        parts.put(key, part, bytes);
        parts.shrink(*bytes_max);
    }

    /// To be held while parts are written to the disk; `None`: they are not to be. A disk that is slower than
    /// the network gets less.
    pub(crate) fn permit(&self) -> Option<OwnedSemaphorePermit> {
        self.disk.as_ref()?;
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// Writes parts to the disk; where that fails they are not there.
    pub(crate) fn write_all(&self, parts: &BTreeMap<PartKey, Bytes>) {
        if let Some(disk) = &self.disk {
            for (key, part) in parts {
                disk.write(*key, part);
            }
        }
    }

    /// Nothing of the segment, which has gone or whose copies are damaged, is near any more.
    pub(crate) fn forget(&self, segment: u64) {
        {
            let mut memory = self.memory.lock();
            for part in 0..u64::BITS as u16 {
                memory.parts.pop(&PartKey { segment, part });
            }
        }
        if let Some(disk) = &self.disk {
            disk.forget(segment);
        }
    }
}

impl Disk {
    /// `None`: the directory can't be used, which costs requests and nothing else.
    fn open(dir: PathBuf, bytes_max: u64) -> Option<Self> {
        let listed = std::fs::create_dir_all(&dir).and_then(|()| std::fs::read_dir(&dir));
        let listed = match listed {
            Ok(listed) => listed,
            Err(error) => {
                tracing::warn!(dir = %dir.display(), %error, "no parts of large files are kept on the local disk");
                return None;
            }
        };
        let found = listed.filter_map(|entry| {
            let entry = entry.ok()?;
            let segment = u64::from_str_radix(entry.file_name().to_str()?, 16).ok()?;
            let modified = entry.metadata().ok()?.modified().ok()?;
            Some((modified, segment, kept_in(&entry.path()).ok()?))
        });
        let mut found: Vec<_> = found.collect();
        found.sort_unstable_by_key(|(modified, ..)| *modified);
        let mut known = Weighed::new();
        for (_, segment, kept) in found {
            let bytes = kept.bytes;
            known.put(segment, kept, bytes);
        }
        Some(Self { dir, bytes_max: bytes_max as usize, known: Mutex::new(known) })
    }

    fn path(&self, segment: u64) -> PathBuf {
        self.dir.join(format!("{segment:016x}"))
    }

    fn read(&self, key: PartKey) -> Option<Bytes> {
        let bit = key.bit()?;
        self.known.lock().get(&key.segment).filter(|kept| kept.parts & bit != 0)?;
        let read = || {
            let mut part = vec![0; PART_BYTES];
            let len = read_at(&File::open(self.path(key.segment))?, &mut part, key.offset())?;
            part.truncate(len);
            std::io::Result::Ok(part)
        };
        let part = read().ok().filter(|part| !part.is_empty());
        if part.is_none() {
            self.forget(key.segment);
        }
        part.map(Bytes::from)
    }

    fn write(&self, key: PartKey, part: &[u8]) {
        let Some(bit) = key.bit() else { return };
        let write = || {
            let file =
                File::options().write(true).create(true).truncate(false).open(self.path(key.segment))?;
            file.write_all_at(part, key.offset())
        };
        if let Err(error) = write() {
            tracing::debug!(%error, "a part of a segment is not kept on the local disk");
            self.forget(key.segment);
            return;
        }
        let mut gone = Vec::new();
        {
            let mut known = self.known.lock();
            let mut kept = known.pop(&key.segment).unwrap_or_default();
            kept.add(bit, part.len());
            let bytes = kept.bytes;
            known.put(key.segment, kept, bytes);
            while known.weight() > self.bytes_max
                && let Some((segment, _)) = known.pop_oldest()
            {
                gone.push(segment);
            }
        }
        for segment in gone {
            self.remove(segment);
        }
    }

    /// Without all parts of a segment.
    fn forget(&self, segment: u64) {
        self.known.lock().pop(&segment);
        self.remove(segment);
    }

    fn remove(&self, segment: u64) {
        // It may not be there; one that stays is found at the next opening.
        let _ = std::fs::remove_file(self.path(segment));
    }
}

/// Reads until the end, or as much as there is room for.
fn read_at(file: &File, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut len = 0;
    while len < buf.len() {
        match file.read_at(&mut buf[len..], offset + len as u64)? {
            0 => break,
            more => len += more,
        }
    }
    Ok(len)
}

/// The parts of a file that are no holes.
fn kept_in(path: &Path) -> std::io::Result<Kept> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    let mut kept = Kept::default();
    let mut from = 0;
    while let Ok(data) = seek(&file, SeekFrom::Data(from)) {
        let end = seek(&file, SeekFrom::Hole(data))?;
        for part in (data / PART_BYTES as u64)..end.div_ceil(PART_BYTES as u64) {
            let key = PartKey { segment: 0, part: part as u16 };
            if let Some(bit) = key.bit() {
                kept.add(bit, len.saturating_sub(key.offset()).min(PART_BYTES as u64) as usize);
            }
        }
        from = end;
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_disk_keep_the_newest_within_their_bounds_and_files_outlive_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Parts::new(2 * PART_BYTES, Some((dir.path().join("parts"), 3 * PART_BYTES as u64)));
        let parts = open();
        let permits: Vec<_> = (0..WRITES_MAX).map(|_| parts.permit().unwrap()).collect();
        assert!(parts.permit().is_none());
        drop(permits);
        assert!(parts.permit().is_some());
        let key = |number: u16| PartKey { segment: number.into(), part: number };
        let part = |number: u16| Bytes::from(vec![number as u8; PART_BYTES]);
        for number in 0..4 {
            parts.write_all(&BTreeMap::from([(key(number), part(number))]));
            parts.keep(key(number), part(number));
        }
        let in_memory: Vec<_> = (0..4).map(|number| parts.in_memory(key(number)).is_some()).collect();
        assert_eq!((in_memory, parts.bytes()), (vec![false, false, true, true], 2 * PART_BYTES as u64));
        let on_disk =
            |parts: &Parts| (0..4).map(|part| parts.on_disk(key(part)).is_some()).collect::<Vec<_>>();
        assert_eq!(on_disk(&parts), [false, true, true, true]);
        // A file without its end has not the part, and goes.
        std::fs::write(dir.path().join("parts/0000000000000002"), b"short").unwrap();
        assert_eq!(on_disk(&parts), [false, true, false, true]);
        parts.forget(3);
        assert_eq!(parts.in_memory(key(3)), None);
        let parts = open();
        assert_eq!(on_disk(&parts), [false, true, false, false]);
        assert_eq!(parts.on_disk(key(1)), Some(part(1)));
        // The last part of a segment, which is short, and a hole before it.
        let last = PartKey { segment: 1, part: 3 };
        parts.write_all(&BTreeMap::from([(last, Bytes::from_static(b"end"))]));
        let parts = open();
        assert_eq!(parts.on_disk(last).as_deref(), Some(&b"end"[..]));
        assert_eq!(parts.on_disk(PartKey { segment: 1, part: 2 }), None);
        assert_eq!(parts.on_disk(key(1)), Some(part(1)));
        parts.set_bytes_max(0);
        assert_eq!(parts.bytes_max(), 0);
    }
}
