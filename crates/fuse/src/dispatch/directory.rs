//! Directory listings.

use zerocopy::{FromBytes, IntoBytes};

use super::Entry;
use crate::abi::{Dirent, Direntplus, EntryOut};

/// One line of a listing.
#[derive(Debug, Clone, Copy)]
pub struct DirectoryEntry<'a> {
    /// Inode number, as readdir(3) shows it.
    pub ino: u64,
    /// Where a listing goes on behind this entry; the kernel passes it back.
    pub next_offset: u64,
    /// File type as in the upper bits of `st_mode`, shifted down by 12 (`DT_*`).
    pub file_type: u32,
    /// Name, without a slash or NUL.
    pub name: &'a [u8],
}

/// A listing as the kernel reads it, up to the size that it asked for.
#[derive(Debug)]
pub struct DirectoryBuffer {
    bytes: Vec<u8>,
    bytes_max: usize,
    plus: bool,
}

impl DirectoryBuffer {
    /// An empty listing of up to `bytes_max` bytes; `plus`: with attributes (READDIRPLUS).
    pub fn new(bytes_max: usize, plus: bool) -> Self {
        Self { bytes: Vec::with_capacity(bytes_max.min(1 << 16)), bytes_max, plus }
    }

    /// Whether entries carry attributes.
    pub fn is_plus(&self) -> bool {
        self.plus
    }

    /// Whether nothing was added yet.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether an entry with a name of `name_len` bytes still fits.
    pub fn has_room(&self, name_len: usize) -> bool {
        self.bytes.len() + self.entry_bytes(name_len) <= self.bytes_max
    }

    fn entry_bytes(&self, name_len: usize) -> usize {
        let head = if self.plus { size_of::<EntryOut>() } else { 0 };
        head + (size_of::<Dirent>() + name_len).next_multiple_of(8)
    }

    /// Appends an entry; false: it doesn't fit, and nothing was added. `attributes` count in listings with
    /// attributes only: a node there is one more lookup that the kernel will forget; `None` gives the name
    /// alone ("." and ".." must be so).
    pub fn push(&mut self, entry: &DirectoryEntry<'_>, attributes: Option<&Entry>) -> bool {
        if !self.has_room(entry.name.len()) {
            return false;
        }
        if self.plus {
            let out = attributes.map(|entry| entry.to_wire()).unwrap_or_default();
            self.bytes.extend_from_slice(out.as_bytes());
        }
        let head = Dirent {
            ino: entry.ino,
            off: entry.next_offset,
            namelen: entry.name.len() as u32,
            dirent_type: entry.file_type,
        };
        self.bytes.extend_from_slice(head.as_bytes());
        self.bytes.extend_from_slice(entry.name);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        true
    }

    /// Has the kernel ask anew for all names that are listed with attributes, where `names` says so, and for
    /// the attributes of the nodes that `is_old` names.
    pub fn expire(&mut self, names: bool, is_old: impl Fn(u64) -> bool) {
        let mut rest = if self.plus { &mut self.bytes[..] } else { &mut [] };
        while let Ok((line, _)) = Direntplus::read_from_prefix(rest) {
            let mut out = line.entry_out;
            if names {
                (out.entry_valid, out.entry_valid_nsec) = (0, 0);
            }
            // Of a name alone no more is listed.
            if out.nodeid != 0 && is_old(out.nodeid) {
                (out.attr_valid, out.attr_valid_nsec) = (0, 0);
            }
            let (head, behind) = rest.split_at_mut(size_of::<EntryOut>());
            head.copy_from_slice(out.as_bytes());
            let line_bytes = size_of::<Dirent>() + line.dirent.namelen as usize;
            rest = behind.get_mut(line_bytes.next_multiple_of(8)..).unwrap_or_default();
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
