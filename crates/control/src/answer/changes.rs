//! Changes as lines, page by page.
//!
//! Thread safety: shared as the handler is; the rest are pure functions. Invariant: a page fits a frame.

use kvfs_fs::{DiffKind, Difference, Facts, FileType, Restored, TxnId};
use kvfs_service::lines::FactsLine;
use kvfs_service::{Caller, Compared, Comparison, Result};

use super::RequestHandler;
use crate::protocol::{ChangeLine, Response};

/// A page of a comparison fits a frame.
const PAGE_BYTES_MAX: usize = 4 << 20;

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

impl RequestHandler {
    /// One page of a comparison, which `begin` makes for the first one.
    pub(super) fn answer_comparison(
        &self,
        caller: &Caller,
        what: Compared,
        (from, limit): (u64, u64),
        begin: impl FnOnce() -> Result<Comparison>,
    ) -> Result<Response> {
        let bounds = (from, usize::try_from(limit).unwrap_or(usize::MAX), PAGE_BYTES_MAX);
        let (page, more) = self.service.compare(caller, what, bounds, begin)?;
        Ok(Response::Diff { lines: page.iter().map(change_line).collect(), more })
    }
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
        keyspace: difference.keyspace.as_deref().map(str::to_owned),
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
