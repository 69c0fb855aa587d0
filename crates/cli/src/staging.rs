//! What has arrived of a stream, in the directory of the store that receives it.
//!
//! `STORE/receiving` holds the prologue of a whole stream, and as many of its frames as have come, but for
//! the last one. It is verified whenever it is opened, and cut behind the last frame that is whole; so
//! whatever a crash leaves there, what is gone on with is a beginning of the stream.
//!
//! Thread safety: one receiver at a time, by a lock on the file.

use std::fs::{File, TryLockError};
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use kvfs_fs::transfer::{Begin, Frame, PROLOGUE_BYTES, Prologue, StreamError, StreamId, StreamReader};

use crate::error::{CliError, Code, Result};
use crate::store_dir::StoreDir;

/// What a power cut may take away (bytes).
const SYNC_BYTES: u64 = 64 << 20;
/// So much is left to others (bytes): the store itself grows in the same place, as a rule.
const FREE_BYTES_MIN: u64 = 64 << 20;
const BUFFER_BYTES: usize = 1 << 20;

/// The text that tells a sender where to go on.
pub(crate) fn token(stream: StreamId, position: u64) -> String {
    format!("{stream}-{position}")
}

/// What [`token`] has written.
pub(crate) fn parse_token(text: &str) -> Result<(StreamId, u64)> {
    let parsed = text.trim().split_once('-').and_then(|(stream, position)| {
        let mut id = [0; 16];
        if stream.len() != 2 * id.len() || !stream.is_ascii() {
            return None;
        }
        for (byte, digits) in id.iter_mut().zip(stream.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some((StreamId(id), position.parse().ok()?))
    });
    parsed.ok_or_else(|| {
        CliError::new(
            Code::Usage,
            format!("\"{text}\" is no token of `kvfs snapshot receive --resume-token`"),
        )
    })
}

/// A stream that is not whole yet.
pub(crate) struct Staged {
    dir: StoreDir,
    path: PathBuf,
    file: File,
    stream: StreamId,
    reader: StreamReader,
    begin: Option<Begin>,
    /// Bytes of frames that are in the file.
    position: u64,
    synced: u64,
    is_of_use: bool,
}

impl Staged {
    /// What is waiting, to go on with it.
    pub(crate) fn find(dir: &StoreDir) -> Result<Option<Self>> {
        let Some(file) = open(dir, true)? else { return Ok(None) };
        lock(&file)?;
        let Some(staged) = Self::verify(dir, file)? else {
            remove(dir)?;
            return Ok(None);
        };
        let end = PROLOGUE_BYTES as u64 + staged.position;
        let cut = staged.file.set_len(end).and_then(|()| (&staged.file).seek(SeekFrom::Start(end)));
        cut.map_err(|error| CliError::io("go on with", &staged.path, &error))?;
        Ok(Some(staged))
    }

    /// What is waiting, to tell of it.
    pub(crate) fn look(dir: &StoreDir) -> Result<Option<Self>> {
        match open(dir, false)? {
            Some(file) => Self::verify(dir, file),
            None => Ok(None),
        }
    }

    /// A new one.
    pub(crate) fn start(dir: &StoreDir, stream: StreamId) -> Result<Self> {
        let path = dir.staging_name();
        let file = dir.make_staging().map_err(|error| CliError::io("make", &path, &error))?;
        lock(&file)?;
        // What stands behind it says itself what it needs.
        let prologue = Prologue { stream, offset: 0, bytes_expected: 0, has_clones: false };
        let written = file.set_len(0).and_then(|()| (&file).write_all(&prologue.encode()));
        written.map_err(|error| CliError::io("write", &path, &error))?;
        Ok(Self::new(dir, file, stream))
    }

    /// Drops what is waiting; returns how much it was (bytes).
    pub(crate) fn abandon(dir: &StoreDir) -> Result<Option<u64>> {
        let Some(file) = open(dir, false)? else { return Ok(None) };
        lock(&file)?;
        let len =
            file.metadata().map_err(|error| CliError::io("look at", &dir.staging_name(), &error))?.len();
        remove(dir)?;
        Ok(Some(len.saturating_sub(PROLOGUE_BYTES as u64)))
    }

    fn new(dir: &StoreDir, file: File, stream: StreamId) -> Self {
        let reader = StreamReader::new(stream);
        Self {
            dir: dir.clone(),
            path: dir.staging_name(),
            file,
            stream,
            reader,
            begin: None,
            position: 0,
            synced: 0,
            is_of_use: true,
        }
    }

    /// Reads as far as it is whole. `None`: not even the prologue is.
    fn verify(dir: &StoreDir, file: File) -> Result<Option<Self>> {
        let again = file.try_clone().map_err(|error| CliError::io("read", &dir.staging_name(), &error))?;
        let mut source = BufReader::with_capacity(BUFFER_BYTES, again);
        let stream = match Prologue::read(&mut source) {
            Ok(prologue) => prologue.stream,
            Err(error @ StreamError::Io { .. }) => return Err(error.into()),
            Err(_) => return Ok(None),
        };
        let mut staged = Self::new(dir, file, stream);
        loop {
            match staged.reader.next(&mut source) {
                Ok(Some(Frame::Begin(begin))) => staged.begin = Some(begin),
                Ok(Some(_)) => {}
                Ok(None) | Err(StreamError::Truncated { .. } | StreamError::Damaged { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        staged.position = staged.reader.position();
        Ok(Some(staged))
    }

    pub(crate) fn stream(&self) -> StreamId {
        self.stream
    }

    /// What the stream says of itself, if that has come.
    pub(crate) fn begin(&self) -> Option<&Begin> {
        self.begin.as_ref()
    }

    /// Bytes of the stream that are kept.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// What has verified it.
    pub(crate) fn reader(&self) -> &StreamReader {
        &self.reader
    }

    /// Whether going on makes sense.
    pub(crate) fn is_of_use(&self) -> bool {
        self.is_of_use
    }

    /// Verifies the next frame; it is kept by [`Self::keep`].
    pub(crate) fn next(&mut self, source: &mut dyn Read) -> Result<Option<Frame>> {
        match self.reader.next(source) {
            Ok(Some(Frame::Begin(begin))) => {
                self.begin = Some(begin.clone());
                Ok(Some(Frame::Begin(begin)))
            }
            Ok(frame) => Ok(frame),
            Err(error) => {
                self.is_of_use &= !matches!(error, StreamError::Mismatch);
                Err(error.into())
            }
        }
    }

    /// The bytes of the frame that came last.
    pub(crate) fn last_frame(&self) -> &[u8] {
        self.reader.last_frame()
    }

    /// Keeps the frame that came last.
    pub(crate) fn keep(&mut self) -> Result<()> {
        let kept = (&self.file).write_all(self.reader.last_frame());
        kept.map_err(|error| CliError::io("keep the stream in", &self.path, &error))?;
        self.position = self.reader.position();
        if self.position >= self.synced + SYNC_BYTES {
            self.sync()?;
            self.synced = self.position;
            self.check_space()?;
        }
        Ok(())
    }

    fn check_space(&self) -> Result<()> {
        let stat = rustix::fs::fstatvfs(&self.file)
            .map_err(|error| CliError::io("look at", &self.path, &error.into()))?;
        if stat.f_bavail.saturating_mul(stat.f_frsize) < FREE_BYTES_MIN {
            let message = format!("no space left for the stream beside {}", self.path.display());
            return Err(CliError::new(Code::NoSpace, message));
        }
        Ok(())
    }

    /// Returns when what is kept survives a power cut.
    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(|error| CliError::io("sync", &self.path, &error))
    }

    /// The frames that are kept, from the first one on.
    pub(crate) fn reopen(&self) -> Result<impl Read + use<>> {
        let read = || -> std::io::Result<_> {
            let mut file = self.dir.open_staging(false)?.ok_or(ErrorKind::NotFound)?;
            file.seek(SeekFrom::Start(PROLOGUE_BYTES as u64))?;
            Ok(BufReader::with_capacity(BUFFER_BYTES, file))
        };
        read().map_err(|error| CliError::io("read", &self.path, &error))
    }

    /// It is through, or of no use any more.
    pub(crate) fn remove(self) -> Result<()> {
        remove(&self.dir)
    }
}

/// `None`: nothing is there.
fn open(dir: &StoreDir, writes: bool) -> Result<Option<File>> {
    dir.open_staging(writes).map_err(|error| CliError::io("open", &dir.staging_name(), &error))
}

fn lock(file: &File) -> Result<()> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            Err(CliError::new(Code::InUse, "another `kvfs snapshot receive` is at work on this store"))
        }
        Err(TryLockError::Error(error)) => {
            Err(CliError::new(Code::Failed, format!("cannot lock what has arrived: {error}")))
        }
    }
}

fn remove(dir: &StoreDir) -> Result<()> {
    dir.remove_staging().map_err(|error| CliError::io("remove", &dir.staging_name(), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_where_to_go_on() {
        let stream = StreamId([0xa5; 16]);
        let text = token(stream, 1234);
        assert_eq!(parse_token(&text).expect("is one"), (stream, 1234));
        for wrong in ["", "-", "a5-1", &text[1..], &text[..32], &format!("{text}x"), &"é".repeat(16)] {
            assert_eq!(parse_token(wrong).expect_err("is none").code, Code::Usage, "{wrong}");
        }
    }
}
