//! The files of a journal: one set for each opening that has written one, appended to, and removed from the
//! front.
//!
//! Purpose: what object storage has goes file by file, so a journal takes about what is not there yet.
//!
//! Thread safety: one thread at a time. Invariants: a file is begun when all before it are on the disk, so
//! only the last one of a set may end in the middle of a record, behind all that a sync covers; nothing is
//! appended to a file of an earlier opening.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bytes::{Buf, Bytes};
use kvfs_store::{Result, StoreError};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::record::Record;

/// The first bytes of a file.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    version: U32,
    /// Of the file in its set, from zero up.
    number: U32,
    uuid: [u8; 16],
    opening: U64,
}

const HEADER_BYTES: usize = size_of::<RawHeader>();
const _: () = assert!(HEADER_BYTES == 40);

const MAGIC: [u8; 8] = *b"kvfsSLJ\n";
const VERSION: u32 = 1;

/// A file that has so much gets no more (bytes).
const FILE_BYTES: u64 = 8 << 20;

/// Records are written together until they come to so much (bytes).
const WRITE_BYTES: usize = 1 << 20;

/// A file that gets no more records.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) path: PathBuf,
    /// Sequence number of its last record.
    pub(crate) last: u64,
    pub(crate) bytes: u64,
}

/// The set that is written.
pub(crate) struct Writer {
    dir: PathBuf,
    uuid: [u8; 16],
    opening: u64,
    number: u32,
    file: File,
    bytes: u64,
    /// Sequence number of the last record in the file; zero: there is none.
    last: u64,
}

impl Writer {
    /// Begins the set of an opening, with an empty file that is on the disk.
    pub(crate) fn create(dir: &Path, uuid: [u8; 16], opening: u64) -> io::Result<Self> {
        let mut options = std::fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut options, 0o700);
        match options.create(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // The directory is an entry of another one.
        dir.parent().map_or(Ok(()), sync_dir)?;
        let file = begin(dir, uuid, opening, 0)?;
        let dir = dir.to_owned();
        Ok(Self { dir, uuid, opening, number: 0, file, bytes: HEADER_BYTES as u64, last: 0 })
    }

    pub(crate) fn opening(&self) -> u64 {
        self.opening
    }

    /// Of the file that is appended to.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends records, which are on the disk at the return if `is_synced`; the file that is finished, if one
    /// is.
    pub(crate) fn append(
        &mut self,
        records: impl IntoIterator<Item = Record>,
        is_synced: bool,
    ) -> io::Result<Option<Finished>> {
        let finished = if self.bytes >= FILE_BYTES { Some(self.finish()?) } else { None };
        let mut out = Vec::new();
        for record in records {
            let too_long = || io::Error::new(io::ErrorKind::FileTooLarge, "a batch is too long");
            record.write(&mut out).ok_or_else(too_long)?;
            self.last = record.sequence;
            if out.len() >= WRITE_BYTES {
                self.write(&mut out)?;
            }
        }
        self.write(&mut out)?;
        if is_synced {
            self.file.sync_data()?;
        }
        Ok(finished)
    }

    fn write(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        self.file.write_all(out)?;
        self.bytes += out.len() as u64;
        out.clear();
        Ok(())
    }

    fn finish(&mut self) -> io::Result<Finished> {
        self.file.sync_data()?;
        let number = self.number + 1;
        let file = begin(&self.dir, self.uuid, self.opening, number)?;
        let path = path(&self.dir, self.opening, self.number);
        let finished = Finished { path, last: self.last, bytes: self.bytes };
        (self.file, self.number, self.bytes, self.last) = (file, number, HEADER_BYTES as u64, 0);
        Ok(finished)
    }
}

fn path(dir: &Path, opening: u64, number: u32) -> PathBuf {
    dir.join(format!("{opening:016x}-{number:08x}"))
}

fn begin(dir: &Path, uuid: [u8; 16], opening: u64, number: u32) -> io::Result<File> {
    let path = path(dir, opening, number);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    let header = RawHeader {
        magic: MAGIC,
        version: VERSION.into(),
        number: number.into(),
        uuid,
        opening: opening.into(),
    };
    file.write_all(header.as_bytes())?;
    file.sync_data()?;
    sync_dir(dir)?;
    Ok(file)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// What an earlier opening has left.
#[derive(Debug)]
pub(crate) struct Set {
    /// By the epoch of `SlateDB`.
    pub(crate) opening: u64,
    paths: Vec<PathBuf>,
}

impl Set {
    /// All in a directory, which need not be there, oldest first.
    pub(crate) fn find(dir: &Path) -> Result<Vec<Self>> {
        let failed = |error| StoreError::io(format!("reading {}", dir.display()), error);
        let listed = match std::fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed.map_err(failed)?,
        };
        let mut found = Vec::new();
        for entry in listed {
            let name = entry.map_err(failed)?.file_name();
            found.extend(name.to_str().and_then(parse_name));
        }
        found.sort_unstable();
        let mut sets: Vec<Self> = Vec::new();
        for (opening, number) in found {
            let path = path(dir, opening, number);
            match sets.last_mut() {
                Some(last) if last.opening == opening => last.paths.push(path),
                _ => sets.push(Self { opening, paths: vec![path] }),
            }
        }
        Ok(sets)
    }

    /// Has `visit` see all records from the front that are newer than `after`, of the store with this UUID.
    ///
    /// # Errors
    /// A file is damaged, other than that the last one ends early; it is of another store; those of `visit`.
    pub(crate) fn read(
        &self,
        uuid: [u8; 16],
        after: u64,
        visit: &mut dyn FnMut(Record) -> Result<()>,
    ) -> Result<()> {
        for (at, path) in self.paths.iter().enumerate() {
            let is_last = at + 1 == self.paths.len();
            let content = std::fs::read(path);
            let content =
                content.map_err(|error| StoreError::io(format!("reading {}", path.display()), error));
            let mut content = Bytes::from(content?);
            let damaged = |what: &str| StoreError::corrupt(path.display().to_string(), what);
            if !self.check_header(uuid, path, &content)? {
                // It was being made.
                return if is_last { Ok(()) } else { Err(damaged("its header is missing")) };
            }
            content.advance(HEADER_BYTES);
            while let Some(record) = Record::read(&mut content) {
                if record.sequence > after {
                    visit(record)?;
                }
            }
            if !content.is_empty() {
                if !is_last {
                    return Err(damaged("a record is damaged, and others come behind it"));
                }
                let left = content.len();
                tracing::warn!(path = %path.display(), left, "the journal ends with a part of a change: a crash has torn it, or it is damaged");
            }
        }
        Ok(())
    }

    /// How many records are newer than `after`, and change anything.
    ///
    /// # Errors
    /// As [`Set::read`].
    pub(crate) fn count(&self, uuid: [u8; 16], after: u64) -> Result<u64> {
        let mut count = 0;
        self.read(uuid, after, &mut |record| {
            count += u64::from(record.has_content());
            Ok(())
        })?;
        Ok(count)
    }

    /// Refuses one of another store. Whether it was begun: a set that the store names was.
    ///
    /// # Errors
    /// It is; it can't be read.
    pub(crate) fn is_begun(&self, uuid: [u8; 16]) -> Result<bool> {
        let Some(path) = self.paths.first() else { return Ok(false) };
        let mut header = Vec::new();
        let read = File::open(path).and_then(|file| file.take(HEADER_BYTES as u64).read_to_end(&mut header));
        read.map_err(|error| StoreError::io(format!("reading {}", path.display()), error))?;
        self.check_header(uuid, path, &header)
    }

    /// Whether the file has one.
    fn check_header(&self, uuid: [u8; 16], path: &Path, content: &[u8]) -> Result<bool> {
        let damaged = |what: &str| Err(StoreError::corrupt(path.display().to_string(), what));
        if content.iter().take(HEADER_BYTES).all(|byte| *byte == 0) {
            return Ok(false);
        }
        let Ok((header, _)) = RawHeader::read_from_prefix(content) else { return Ok(false) };
        if (header.magic, header.version.get()) != (MAGIC, VERSION) {
            return damaged("it is no journal that this kvfs knows");
        }
        if (header.uuid, header.opening.get()) != (uuid, self.opening) {
            return damaged("it is of another store; move it away to give up what it holds");
        }
        Ok(true)
    }

    /// Removes the files. One that stays is found at the next opening.
    pub(crate) fn remove(&self) {
        for path in &self.paths {
            remove(path);
        }
    }
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.paths.first().map(|path| path.display().to_string()).unwrap_or_default();
        let stem = first.rsplit_once('-').map_or(&*first, |(stem, _)| stem);
        write!(f, "{stem}-*")
    }
}

/// Removes a file of a journal, whose records are in object storage.
pub(crate) fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::debug!(path = %path.display(), %error, "a file of the journal stays until the next opening");
    }
}

fn parse_name(name: &str) -> Option<(u64, u32)> {
    let (opening, number) = name.split_once('-')?;
    let is_full = opening.len() == 16 && number.len() == 8;
    Some((u64::from_str_radix(opening, 16).ok()?, u32::from_str_radix(number, 16).ok()?)).filter(|_| is_full)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(sequence: u64) -> Record {
        let value = vec![sequence as u8; 3 << 20];
        Record {
            sequence,
            previous: sequence - 1,
            values: vec![(1, Bytes::from_static(b"key"), Some(value.into()))],
            deleted: Vec::new(),
        }
    }

    fn sequences(set: &Set, after: u64) -> Result<Vec<u64>> {
        let mut found = Vec::new();
        set.read([1; 16], after, &mut |found_one| {
            assert_eq!(found_one, record(found_one.sequence));
            found.push(found_one.sequence);
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn files_end_where_a_write_was_torn_and_nothing_else_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("journal");
        assert!(Set::find(&dir).unwrap().is_empty());
        let mut writer = Writer::create(&dir, [1; 16], 5).unwrap();
        let finished: Vec<_> =
            (1..=7).filter_map(|sequence| writer.append([record(sequence)], true).unwrap()).collect();
        assert_eq!(finished.iter().map(|finished| finished.last).collect::<Vec<_>>(), [3, 6]);
        drop(Writer::create(&dir, [1; 16], 6).unwrap());
        let sets = Set::find(&dir).unwrap();
        assert_eq!(sets.iter().map(|set| set.opening).collect::<Vec<_>>(), [5, 6]);
        assert_eq!(sequences(&sets[0], 0).unwrap(), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(sequences(&sets[0], 4).unwrap(), [5, 6, 7]);
        assert_eq!(sequences(&sets[1], 0).unwrap(), [0; 0]);
        let of_other = sets[0].read([2; 16], 0, &mut |_| Ok(()));
        assert!(of_other.unwrap_err().to_string().contains("another store"));
        // The front may be gone.
        remove(&finished[0].path);
        let set = &Set::find(&dir).unwrap()[0];
        assert_eq!(sequences(set, 0).unwrap(), [4, 5, 6, 7]);
        let cut = |path: &Path, by: u64| {
            let file = File::options().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len() - by).unwrap();
        };
        cut(&set.paths[1], 1);
        assert_eq!(sequences(set, 0).unwrap(), [4, 5, 6]);
        std::fs::write(&set.paths[1], b"torn").unwrap();
        assert_eq!(sequences(set, 0).unwrap(), [4, 5, 6]);
        cut(&set.paths[0], 1);
        assert!(sequences(set, 0).unwrap_err().to_string().contains("damaged"));
        sets.iter().chain([set]).for_each(Set::remove);
        assert!(Set::find(&dir).unwrap().is_empty());
    }
}
