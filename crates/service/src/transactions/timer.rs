//! How long the ends of transactions take.
//!
//! Thread safety: values.

use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::FileSystem;
use kvfs_fs::operations::{Operation, OperationKind, Recorder, Target, recorder};

use crate::caller::Caller;

/// An operation on a transaction that has begun.
pub(super) struct Timer<'r>(Option<(&'r Arc<dyn Recorder>, Duration)>);

impl<'r> Timer<'r> {
    pub(super) fn start(fs: &'r FileSystem) -> Self {
        Self(recorder(fs).map(|recorder| (recorder, recorder.now())))
    }

    /// It ends now.
    pub(super) fn end(self, kind: OperationKind, caller: &Caller, txn: u64, errno: i32) {
        let Some((recorder, start)) = self.0 else { return };
        let (uid, pid) = (caller.uid, caller.pid);
        let (bytes, has_waited, target) = (0, false, Target::None);
        recorder.record(&Operation { kind, start, uid, pid, txn, errno, bytes, has_waited, target });
    }
}
