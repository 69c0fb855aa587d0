//! Keys, of this process's store or of a server's.
//!
//! A walk over keys of a server is read in pages: in a transaction it shows what the transaction sees,
//! outside of one each page is as it was when it was read.
//!
//! Thread safety: [`Keys`] is `&self`; one thread at a time uses a [`KeyCursor`].

use std::collections::VecDeque;
use std::fmt;
use std::mem;

use bytes::Bytes;
use kvfs_fs::FsError;
use kvfs_kv::KeyChange;
use kvfs_lane::{Call, LaneError, Reply, decode, encode};
use kvfs_posix::{ProcessKeys, Result};
use kvfs_store::{Cursor, KeyRange};

use crate::process::Process;
use crate::served::{Served, unanswered};

/// What a page of a walk has (bytes).
const PAGE_BYTES: u32 = 64 << 10;

/// Most that a change has beside its key and value (bytes).
const HEAD_BYTES: usize = 64;

/// The keys of a process.
#[derive(Debug)]
pub struct Keys<'p>(Kind<'p>);

#[derive(Debug)]
enum Kind<'p> {
    Embedded(ProcessKeys<'p>),
    Served(&'p Served),
}

impl<'p> From<ProcessKeys<'p>> for Keys<'p> {
    fn from(keys: ProcessKeys<'p>) -> Self {
        Self(Kind::Embedded(keys))
    }
}

impl<'p> From<&'p Served> for Keys<'p> {
    fn from(process: &'p Served) -> Self {
        Self(Kind::Served(process))
    }
}

impl Keys<'_> {
    /// As [`ProcessKeys::get`].
    ///
    /// # Errors
    /// As there; ENOTCONN: the server is gone.
    pub fn get(&self, keyspace: &str, key: &[u8]) -> Result<Option<Bytes>> {
        match &self.0 {
            Kind::Embedded(keys) => keys.get(keyspace, key),
            Kind::Served(process) => {
                let call = Call::GetKey { keyspace, key: kvfs_lane::Bytes(key) };
                process.call(&call, &[], |reply, payload| match reply {
                    Reply::Done => Some(Some(Bytes::copy_from_slice(payload))),
                    Reply::Number(_) => Some(None),
                    _ => None,
                })
            }
        }
    }

    /// As [`ProcessKeys::write`].
    ///
    /// # Errors
    /// As there; E2BIG: more than 1 MiB for a server; ENOTCONN: it is gone.
    pub fn write(&self, keyspace: &str, changes: Vec<KeyChange>) -> Result<()> {
        match &self.0 {
            Kind::Embedded(keys) => keys.write(keyspace, changes),
            Kind::Served(process) => {
                let call = Call::WriteKeys { keyspace };
                process.done(&call, &encoded(&changes).map_err(|error| unanswered(error, &call))?)
            }
        }
    }

    /// As [`ProcessKeys::delete`].
    ///
    /// # Errors
    /// As there; ENOTCONN: the server is gone.
    pub fn delete(&self, keyspace: &str, key: &[u8]) -> Result<bool> {
        match &self.0 {
            Kind::Embedded(keys) => keys.delete(keyspace, key),
            Kind::Served(process) => {
                Ok(process.number(&Call::DeleteKey { keyspace, key: kvfs_lane::Bytes(key) }, &[])? != 0)
            }
        }
    }

    /// As [`ProcessKeys::delete_range`].
    ///
    /// # Errors
    /// As there; ENOTCONN: the server is gone.
    pub fn delete_range(&self, keyspace: &str, range: KeyRange) -> Result<()> {
        match &self.0 {
            Kind::Embedded(keys) => keys.delete_range(keyspace, range),
            Kind::Served(process) => {
                let (start, end) = ends(&range);
                process.done(&Call::DeleteKeys { keyspace, start, end }, &[])
            }
        }
    }

    /// A walk over the keys of a range. It stands before the first one.
    ///
    /// # Errors
    /// As [`ProcessKeys::cursor`]; ENOTCONN: the server is gone.
    pub fn cursor(&self, keyspace: &str, range: KeyRange) -> Result<KeyCursor> {
        Ok(KeyCursor(match &self.0 {
            Kind::Embedded(keys) => Walk::Embedded(keys.cursor(keyspace, &range)?),
            Kind::Served(process) => {
                let mut pages = Pages {
                    keyspace: keyspace.to_owned(),
                    range,
                    at: At::Nowhere,
                    is_backwards: false,
                    ahead: VecDeque::new(),
                };
                // Whether the user may read them shows now.
                pages.fill(process)?;
                Walk::Served(pages)
            }
        }))
    }

    /// As [`ProcessKeys::create_keyspace`].
    ///
    /// # Errors
    /// As there; ENOTCONN: the server is gone.
    pub fn create_keyspace(&self, name: &str, mode: u32) -> Result<()> {
        match &self.0 {
            Kind::Embedded(keys) => keys.create_keyspace(name, mode),
            Kind::Served(process) => process.done(&Call::CreateKeyspace { name, mode }, &[]),
        }
    }

    /// As [`ProcessKeys::drop_keyspace`].
    ///
    /// # Errors
    /// As there; ENOTCONN: the server is gone.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        match &self.0 {
            Kind::Embedded(keys) => keys.drop_keyspace(name),
            Kind::Served(process) => process.done(&Call::DropKeyspace { name }, &[]),
        }
    }

    /// As [`ProcessKeys::list_keyspaces`].
    ///
    /// # Errors
    /// As there; ENOTCONN: the server is gone.
    pub fn list_keyspaces(&self) -> Result<Vec<String>> {
        match &self.0 {
            Kind::Embedded(keys) => keys.list_keyspaces(),
            Kind::Served(process) => {
                let names = process.bytes(&Call::ListKeyspaces)?;
                let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
                Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
            }
        }
    }
}

/// All changes, one behind the other.
fn encoded(changes: &[KeyChange]) -> Result<Vec<u8>, LaneError> {
    let mut all = Vec::new();
    for change in changes {
        let (len, change) = match change {
            KeyChange::Put { key, value } => (
                key.len() + value.len(),
                kvfs_lane::KeyChange::Put { key: kvfs_lane::Bytes(key), value: kvfs_lane::Bytes(value) },
            ),
            KeyChange::Delete { key } => {
                (key.len(), kvfs_lane::KeyChange::Delete { key: kvfs_lane::Bytes(key) })
            }
            KeyChange::DeleteRange(range) => {
                let (start, end) = ends(range);
                let len = start.0.len() + end.map_or(0, |end| end.0.len());
                (len, kvfs_lane::KeyChange::DeleteRange { start, end })
            }
        };
        let begin = all.len();
        all.resize(begin + len + HEAD_BYTES, 0);
        let len = encode(&change, &[], &mut all[begin..])?;
        all.truncate(begin + len);
    }
    Ok(all)
}

fn ends(range: &KeyRange) -> (kvfs_lane::Bytes<'_>, Option<kvfs_lane::Bytes<'_>>) {
    (kvfs_lane::Bytes(&range.start), range.end.as_deref().map(kvfs_lane::Bytes))
}

/// A walk over keys: see [`Keys::cursor`].
pub struct KeyCursor(Walk);

enum Walk {
    /// None: there is no keyspace.
    Embedded(Option<Box<dyn Cursor>>),
    Served(Pages),
}

impl fmt::Debug for KeyCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyCursor").finish_non_exhaustive()
    }
}

impl KeyCursor {
    /// Goes to the next key; from behind the last one nowhere. `process` is that of the keys.
    ///
    /// # Errors
    /// I/O errors; ENOTCONN: the server is gone.
    pub fn next(&mut self, process: &Process) -> Result<()> {
        match &mut self.0 {
            Walk::Embedded(Some(cursor)) => Ok(cursor.next().map_err(FsError::from)?),
            Walk::Embedded(None) => Ok(()),
            Walk::Served(pages) => pages.go(process, false),
        }
    }

    /// Goes to the key before; from the beginning of the walk, and from behind the last one, to the last one.
    ///
    /// # Errors
    /// As [`KeyCursor::next`].
    pub fn prev(&mut self, process: &Process) -> Result<()> {
        match &mut self.0 {
            Walk::Embedded(Some(cursor)) => Ok(cursor.prev().map_err(FsError::from)?),
            Walk::Embedded(None) => Ok(()),
            Walk::Served(pages) => pages.go(process, true),
        }
    }

    /// Key and value where it is; `None`: before the first move, and beyond both ends.
    pub fn entry(&self) -> Option<(&[u8], &Bytes)> {
        match &self.0 {
            Walk::Embedded(cursor) => cursor.as_ref()?.entry(),
            Walk::Served(pages) => match &pages.at {
                At::Key(key, value) => Some((key, value)),
                _ => None,
            },
        }
    }
}

/// Where a walk is.
enum At {
    Nowhere,
    Key(Bytes, Bytes),
    Before,
    Behind,
}

/// A walk over keys of a server.
struct Pages {
    keyspace: String,
    range: KeyRange,
    at: At,
    /// What follows `at` in this direction.
    ahead: VecDeque<(Bytes, Bytes)>,
    is_backwards: bool,
}

impl Pages {
    fn go(&mut self, process: &Process, is_backwards: bool) -> Result<()> {
        let is_over = matches!((&self.at, is_backwards), (At::Behind, false) | (At::Before, true));
        if is_over {
            return Ok(());
        }
        if mem::replace(&mut self.is_backwards, is_backwards) != is_backwards {
            self.ahead.clear();
        }
        if self.ahead.is_empty() {
            self.fill(process.served()?)?;
        }
        self.at = match self.ahead.pop_front() {
            Some((key, value)) => At::Key(key, value),
            None if is_backwards => At::Before,
            None => At::Behind,
        };
        Ok(())
    }

    /// Reads what follows.
    fn fill(&mut self, process: &Served) -> Result<()> {
        let mut range = self.range.clone();
        match (&self.at, self.is_backwards) {
            (At::Key(key, _), true) => range.end = Some(key.clone()),
            (At::Key(key, _), false) => range.start = [key, &b"\0"[..]].concat().into(),
            _ => {}
        }
        let ((start, end), is_backwards) = (ends(&range), self.is_backwards);
        let call = Call::ListKeys { keyspace: &self.keyspace, start, end, is_backwards, len: PAGE_BYTES };
        self.ahead = process.call(
            &call,
            &[],
            |reply, payload| {
                if reply == Reply::Done { entries(payload) } else { None }
            },
        )?;
        Ok(())
    }
}

/// `None`: they are none.
fn entries(mut page: &[u8]) -> Option<VecDeque<(Bytes, Bytes)>> {
    let mut entries = VecDeque::new();
    while !page.is_empty() {
        let (entry, rest) = decode::<(kvfs_lane::Bytes<'_>, kvfs_lane::Bytes<'_>)>(page).ok()?;
        entries.push_back((Bytes::copy_from_slice(entry.0.0), Bytes::copy_from_slice(entry.1.0)));
        page = rest;
    }
    Some(entries)
}
