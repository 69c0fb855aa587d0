//! What the directory of a store says of its engine: the file `engine`, which a store of kvdb has not
//! (`docs/FORMAT.md`).
//!
//! Thread safety: plain values. Invariants: the file is written once, when the store is made, and locked
//! while the store is open; a directory in which a copy is being made has one that no program opens a store
//! by, whatever the engine.

use std::io;
use std::os::fd::OwnedFd;

use kvfs_device::OpenError;
use kvfs_service::ErrorKind;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::EngineKind;
use crate::error::{Error, Result, explain_device};
use crate::store_dir::StoreDir;

/// Its name in the directory.
pub(crate) const NAME: &str = "engine";

/// The first line, and what follows on it is the version.
const MAGIC: &str = "kvfs-engine ";
const VERSION: &str = "1";

/// The line of a directory in which a copy has not come to its end. It comes first: a kvfs that does not know
/// it refuses the store.
const COPYING: &str = "copying";

/// What becomes the mark when it is whole.
const NEXT: &str = "engine.new";

/// Why a store is not opened that has that line.
const UNFINISHED: &str = "it is an unfinished copy: `kvfs copy` or `kvfs check --copy-to` is at work on it, or was cut off; in that \
                          case remove it, and copy again";

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineMark {
    /// The engine.
    pub kind: EngineKind,
    /// Files up to this size live inside their row (bytes): for an engine whose file system is made at each
    /// opening.
    pub inline: u64,
}

impl StoreDir {
    /// The engine of the store, if it is not kvdb.
    ///
    /// # Errors
    /// The mark is of another version, or damaged; I/O errors.
    pub fn engine_mark(&self) -> Result<Option<EngineMark>> {
        let Some(text) = self.read_text(NAME)? else { return Ok(None) };
        let failed = |message: String| {
            let message = format!("cannot open the store {}: {message}", self.path().display());
            Error::new(ErrorKind::NotAStore, message)
        };
        EngineMark::parse(&text).map(Some).map_err(failed)
    }

    /// The engine of the store.
    ///
    /// # Errors
    /// As [`StoreDir::engine_mark`].
    pub fn engine(&self) -> Result<EngineKind> {
        Ok(self.engine_mark()?.map_or(EngineKind::Kvdb, |mark| mark.kind))
    }

    /// Refuses a store of another engine than kvdb for `what` only kvdb has.
    ///
    /// # Errors
    /// It has another one; as [`StoreDir::engine_mark`].
    pub fn expect_kvdb(&self, what: &str) -> Result<()> {
        let Some(mark) = self.engine_mark()? else { return Ok(()) };
        let (path, name) = (self.path().display(), mark.kind.name());
        let message = format!("{path} is a store of engine {name}, which has no {what}; kvdb has");
        Err(Error::new(ErrorKind::Usage, message))
    }

    /// From now on nothing opens the store in the directory as one. Durable when this returns.
    ///
    /// # Errors
    /// I/O errors.
    pub fn begin_copy(&self) -> Result<()> {
        let text = format!("{MAGIC}{VERSION}\n{COPYING}\n");
        let written = self.write_text(NAME, &text);
        written.map_err(|error| Error::io("make a store in", self.path(), &error))
    }

    /// What [`StoreDir::begin_copy`] has marked is a store of that engine (`None`: kvdb). Durable when this
    /// returns.
    ///
    /// # Errors
    /// I/O errors.
    pub fn end_copy(&self, mark: Option<EngineMark>) -> Result<()> {
        let replaced = match mark {
            None => remove(self).and_then(|()| self.sync()),
            Some(mark) => self.replace_text(NAME, NEXT, &mark.text()),
        };
        replaced.map_err(|error| Error::io("finish the copy in", self.path(), &error))
    }
}

impl EngineMark {
    fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        match lines.next().and_then(|line| line.strip_prefix(MAGIC)) {
            Some(VERSION) => {}
            Some(version) => {
                return Err(format!(
                    "its file \"{NAME}\" has version {version}; this kvfs reads version {VERSION}"
                ));
            }
            None => return Err(format!("its file \"{NAME}\" is damaged")),
        }
        let (mut kind, mut inline) = (None, 0);
        for line in lines {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            match key {
                COPYING => return Err(UNFINISHED.to_owned()),
                "engine" => {
                    let known = EngineKind::of_name(value).filter(|&known| known != EngineKind::Kvdb);
                    let unknown = || format!("its engine is {value:?}, which this kvfs does not know");
                    kind = Some(known.ok_or_else(unknown)?);
                }
                "inline" => {
                    inline =
                        value.parse().map_err(|_| format!("its file \"{NAME}\" is damaged: {line:?}"))?;
                }
                _ => return Err(format!("its file \"{NAME}\" says {line:?}, which this kvfs does not know")),
            }
        }
        let kind = kind.ok_or_else(|| format!("its file \"{NAME}\" names no engine"))?;
        Ok(Self { kind, inline })
    }

    fn text(&self) -> String {
        format!("{MAGIC}{VERSION}\nengine {}\ninline {}\n", self.kind.name(), self.inline)
    }

    /// Makes it. Durable when this returns.
    pub(super) fn write(&self, dir: &StoreDir) -> Result<()> {
        let written = dir.write_text(NAME, &self.text());
        written.map_err(|error| Error::io("make a store in", dir.path(), &error))
    }

    /// Locks it for as long as the result is open.
    ///
    /// # Errors
    /// Another process has the store open.
    pub(super) fn claim(dir: &StoreDir, read_only: bool) -> Result<OwnedFd> {
        let file = dir.open_text(NAME)?.ok_or_else(|| Error::Missing(dir.path().to_owned()))?;
        let shared = FlockOperation::NonBlockingLockShared;
        let how = if read_only { shared } else { FlockOperation::NonBlockingLockExclusive };
        match rustix::fs::flock(&file, how) {
            Ok(()) => Ok(file),
            Err(Errno::WOULDBLOCK) => {
                Err(explain_device(dir.path(), &OpenError::InUse { path: dir.path().join(NAME) }))
            }
            Err(errno) => Err(Error::io("lock", &dir.path().join(NAME), &errno.into())),
        }
    }
}

/// Removes the mark, if there is one.
pub(super) fn remove(dir: &StoreDir) -> io::Result<()> {
    dir.remove_text(NEXT).and_then(|()| dir.remove_text(NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_as_they_were_written() {
        for kind in EngineKind::built().filter(|&kind| kind != EngineKind::Kvdb) {
            let mark = EngineMark { kind, inline: 4096 };
            assert_eq!(EngineMark::parse(&mark.text()), Ok(mark));
        }
    }

    #[test]
    fn marks_that_this_version_does_not_know_are_refused_with_the_reason() {
        let cases = [
            ("", "damaged"),
            ("kvfs-engine 2\nengine memory\n", "version 2"),
            ("kvfs-engine 1\n", "names no engine"),
            ("kvfs-engine 1\nengine kvdb\n", "\"kvdb\""),
            ("kvfs-engine 1\nengine berkeleydb\n", "\"berkeleydb\""),
            ("kvfs-engine 1\nengine memory\ninline x\n", "\"inline x\""),
            ("kvfs-engine 1\nengine memory\ncolour red\n", "\"colour red\""),
            ("kvfs-engine 1\ncopying\n", "unfinished copy"),
        ];
        for (text, reason) in cases {
            let refused = EngineMark::parse(text).expect_err(text);
            assert!(refused.contains(reason), "{text:?}: {refused}");
        }
    }
}
