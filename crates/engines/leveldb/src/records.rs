//! Records of `LevelDB`'s logs and manifests (its `doc/log_format.md`), read from the beginning up to the
//! first that is not whole.
//!
//! Thread safety: plain values. Invariant: what is returned has matched its checksum.

use std::fs::File;
use std::io::{self, ErrorKind, Read};

/// A file is made of blocks of so many bytes.
const BLOCK: usize = 32 << 10;

/// Checksum, length and kind of a part of a record.
const HEADER: usize = 7;

/// A record is one part, or a first one, of kind 2, with others behind it.
const FULL: u8 = 1;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// What is added to a checksum that is stored.
const MASK: u32 = 0xa282_ead8;

/// The records of a file.
pub(crate) struct Records {
    file: File,
    block: Vec<u8>,
    /// In the block.
    at: usize,
    /// Of the block, in the file.
    block_offset: u64,
    /// Behind the last whole record.
    end: u64,
}

impl Records {
    pub(crate) fn new(file: File) -> Self {
        Self { file, block: Vec::new(), at: 0, block_offset: 0, end: 0 }
    }

    /// How far the file is whole (bytes), once there is no next record.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.end
    }

    /// The next one; `None`: the file ends here, or is damaged.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut record = Vec::new();
        let mut is_begun = false;
        loop {
            let Some((kind, part)) = self.part()? else { return Ok(None) };
            if is_begun != matches!(kind, MIDDLE | LAST) {
                return Ok(None);
            }
            record.extend_from_slice(&part);
            is_begun = true;
            if matches!(kind, FULL | LAST) {
                self.end = self.block_offset + self.at as u64;
                return Ok(Some(record));
            }
        }
    }

    /// Kind and content of the next part; `None`: there is none that is whole.
    fn part(&mut self) -> io::Result<Option<(u8, Vec<u8>)>> {
        if self.block.len() - self.at < HEADER && !self.next_block()? {
            return Ok(None);
        }
        let rest = &self.block[self.at..];
        let Some((header, rest)) = rest.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [c0, c1, c2, c3, l0, l1, kind] = *header;
        let len = usize::from(u16::from_le_bytes([l0, l1]));
        let Some(part) = rest.get(..len) else { return Ok(None) };
        // Kind and content lie behind one another.
        let covered = &self.block[self.at + HEADER - 1..self.at + HEADER + len];
        let is_whole = u32::from_le_bytes([c0, c1, c2, c3]) == masked(crc_fast::crc32_iscsi(covered));
        if !is_whole || !(FULL..=LAST).contains(&kind) {
            return Ok(None);
        }
        let part = part.to_vec();
        self.at += HEADER + len;
        Ok(Some((kind, part)))
    }

    /// False: there is none.
    fn next_block(&mut self) -> io::Result<bool> {
        if !self.block.is_empty() && self.block.len() < BLOCK {
            return Ok(false);
        }
        self.block_offset += self.block.len() as u64;
        self.at = 0;
        self.block.resize(BLOCK, 0);
        let mut filled = 0;
        while filled < BLOCK {
            match self.file.read(&mut self.block[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.block.truncate(filled);
        Ok(filled > 0)
    }
}

/// As it is stored.
fn masked(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(MASK)
}
