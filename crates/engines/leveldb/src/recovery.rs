//! What has to happen to a database before `LevelDB` opens it: after a power cut, what is behind a hole in
//! its logs is cut off.
//!
//! Purpose: what was not synced may be lost in parts. `LevelDB` goes on behind a damaged part of a log, and
//! with the next log, and has batches then whose predecessors are lost. Here the logs that are not in tables
//! yet are read in their order: the first record that is not whole, or does not follow on the one before by
//! its sequence numbers, and all behind it, in later logs, too, is removed; so are later logs where the first
//! one is empty or missing. What was synced is in front of it.
//!
//! Thread safety: functions; no process has the database open. Invariant: only what can't be a part of a
//! prefix of all batches is removed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use kvfs_store::{Result, StoreError};

use crate::logs::{log_name, log_numbers};
use crate::records::Records;

/// Sequence number and count of the operations of a batch.
const BATCH_HEADER: usize = 12;

/// Cuts off what is behind a hole; how much that was (bytes).
pub(crate) fn cut_logs(path: &Path) -> Result<u64> {
    let failed = |error| StoreError::io("looking through the logs (LevelDB)", error);
    let first = first_log(path)?;
    let mut next_sequence = None;
    let mut has_hole = false;
    let mut cut_bytes = 0;
    for number in log_numbers(path).map_err(failed)?.into_iter().filter(|number| *number >= first) {
        let name = path.join(log_name(number));
        let len = fs::metadata(&name).map_err(failed)?.len();
        // The first one has a record before there is another (`Level::compact_keys`): it was lost.
        has_hole |= number != first && next_sequence.is_none();
        if has_hole {
            fs::remove_file(&name).map_err(failed)?;
            cut_bytes += len;
            continue;
        }
        let whole = whole_bytes(&name, &mut next_sequence).map_err(failed)?;
        if whole < len {
            let file = OpenOptions::new().write(true).open(&name).map_err(failed)?;
            file.set_len(whole).and_then(|()| file.sync_all()).map_err(failed)?;
            has_hole = true;
            cut_bytes += len - whole;
        }
    }
    if has_hole {
        File::open(path).and_then(|dir| dir.sync_all()).map_err(failed)?;
    }
    Ok(cut_bytes)
}

/// How far a log is whole and follows on the one before.
fn whole_bytes(log: &Path, next_sequence: &mut Option<u64>) -> io::Result<u64> {
    let mut records = Records::new(File::open(log)?);
    let mut whole = 0;
    while let Some(record) = records.next()? {
        let Some((header, _)) = record.split_first_chunk::<BATCH_HEADER>() else { break };
        let [s0, s1, s2, s3, s4, s5, s6, s7, c0, c1, c2, c3] = *header;
        let sequence = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
        let count = u32::from_le_bytes([c0, c1, c2, c3]);
        if next_sequence.is_some_and(|next| next != sequence) {
            break;
        }
        *next_sequence = Some(sequence + u64::from(count));
        whole = records.whole_bytes();
    }
    Ok(whole)
}

/// The oldest log that the manifest does not say to be in tables.
fn first_log(path: &Path) -> Result<u64> {
    let failed = |error| StoreError::io("looking into a database (LevelDB)", error);
    let current = fs::read_to_string(path.join("CURRENT")).map_err(failed)?;
    let manifest = path.join(current.trim_end());
    let mut edits = Records::new(File::open(manifest).map_err(failed)?);
    let mut first = 0;
    while let Some(edit) = edits.next().map_err(failed)? {
        let damaged = || StoreError::corrupt("LevelDB", "the manifest has an edit that can't be read");
        note_log(&edit, &mut first).ok_or_else(damaged)?;
    }
    Ok(first)
}

/// Fields of an edit.
mod tag {
    pub(super) const COMPARATOR: u64 = 1;
    pub(super) const LOG_NUMBER: u64 = 2;
    pub(super) const NEXT_FILE: u64 = 3;
    pub(super) const LAST_SEQUENCE: u64 = 4;
    pub(super) const COMPACT_POINTER: u64 = 5;
    pub(super) const DELETED_FILE: u64 = 6;
    pub(super) const NEW_FILE: u64 = 7;
    pub(super) const PREVIOUS_LOG: u64 = 9;
}

/// Takes over the number of the log, if the edit has one; `None`: it is damaged.
fn note_log(edit: &[u8], log: &mut u64) -> Option<()> {
    let rest = &mut &*edit;
    while !rest.is_empty() {
        match varint(rest)? {
            tag::LOG_NUMBER => *log = varint(rest)?,
            tag::NEXT_FILE | tag::LAST_SEQUENCE | tag::PREVIOUS_LOG => drop(varint(rest)?),
            tag::COMPARATOR => skip(rest)?,
            tag::COMPACT_POINTER => {
                varint(rest)?;
                skip(rest)?;
            }
            tag::DELETED_FILE => {
                varint(rest)?;
                varint(rest)?;
            }
            tag::NEW_FILE => {
                (0..3).try_for_each(|_| varint(rest).map(drop))?;
                skip(rest)?;
                skip(rest)?;
            }
            _ => return None,
        }
    }
    Some(())
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Bytes behind their length.
fn skip(rest: &mut &[u8]) -> Option<()> {
    let len = varint(rest)? as usize;
    *rest = rest.get(len..)?;
    Some(())
}
