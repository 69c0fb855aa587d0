//! Changes as lines, page by page.
//!
//! Thread safety: pure functions. Invariant: a page fits a frame.

use kvfs_fs::{DiffKind, Difference, Facts, FileType, Restored, TxnId};
use kvfs_service::lines::FactsLine;

use crate::protocol::{ChangeLine, Response};

/// A page of a comparison fits a frame.
pub(super) const PAGE_BYTES_MAX: usize = 4 << 20;

/// What a line takes beside its texts, at most.
const LINE_BYTES: usize = 128;

fn facts_bytes(facts: &FactsLine) -> usize {
    match facts {
        FactsLine::File { target, .. } => target.as_ref().map_or(0, Vec::len),
        FactsLine::Key { value, .. } => value.len(),
    }
}

fn facts_line(facts: &Facts) -> FactsLine {
    match facts {
        Facts::File { mode, uid, gid, bytes, target } => FactsLine::File {
            mode: *mode,
            uid: *uid,
            gid: *gid,
            bytes: *bytes,
            target: target.as_ref().map(|target| target.to_vec()),
        },
        Facts::Key { value, bytes } => FactsLine::Key { value: value.to_vec(), bytes: *bytes },
    }
}

/// How much was brought back, and by which transaction.
pub(super) fn restored(txn: TxnId, done: Restored) -> Response {
    let Restored { names, inodes, keys } = done;
    Response::Restored { txn: txn.0, names, inodes, keys }
}

/// One page of a comparison.
pub(super) fn page_of(all: &[Difference], from: u64, limit: u64) -> Response {
    let mut bytes = 0;
    let mut fits = |line: &ChangeLine| {
        let is_first = bytes == 0;
        bytes += LINE_BYTES + line.place.len() + line.from.as_ref().map_or(0, Vec::len);
        bytes += [&line.before, &line.after].into_iter().flatten().map(facts_bytes).sum::<usize>();
        is_first || bytes <= PAGE_BYTES_MAX
    };
    let page = all.iter().skip(from as usize).take(limit as usize);
    let lines: Vec<ChangeLine> = page.map(change_line).take_while(|line| fits(line)).collect();
    let more = from + (lines.len() as u64) < all.len() as u64;
    Response::Diff { lines, more }
}

pub(super) fn change_line(difference: &Difference) -> ChangeLine {
    ChangeLine {
        sign: match difference.kind {
            DiffKind::Added => '+',
            DiffKind::Removed => '-',
            DiffKind::Changed => '~',
            DiffKind::Renamed => '>',
        },
        kind: difference.file.map_or("key", file_kind).to_owned(),
        place: difference.place.clone(),
        from: difference.from.clone(),
        bytes: difference.bytes,
        before: difference.before.as_ref().map(facts_line),
        after: difference.after.as_ref().map(facts_line),
    }
}

fn file_kind(kind: FileType) -> &'static str {
    match kind {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "link",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        FileType::CharDevice | FileType::BlockDevice => "device",
    }
}
