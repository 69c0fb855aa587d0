//! Access times: maxima that take no names and conflict with nothing, written lazily in batches.
//!
//! A crash loses at most the access times of the last second, which is what the commit interval loses
//! anyway. An access time may also be lost when the row moves before it is written; nothing else can
//! happen to it, because merge records change the row of their own inode only.

use kvfs_store::Batch;
use parking_lot::Mutex;

use crate::node::Node;
use crate::schema::{RowPatch, TimePatch};
use crate::{AtimePolicy, FileSystem, Result};

/// Records that are written together at the latest.
const PENDING_MAX: usize = 512;

/// Age of an access time after which `relatime` renews it (seconds).
const RELATIME_AGE_S: i64 = 24 * 3600;

/// Merge records that wait.
#[derive(Debug, Default)]
pub(crate) struct LazyTimes {
    pending: Mutex<Batch>,
}

impl FileSystem {
    /// Somebody read the file.
    pub(crate) fn note_access(&self, node: &Node) {
        if self.options.read_only || self.options.atime == AtimePolicy::Noatime {
            return;
        }
        let now = self.now();
        {
            let mut state = node.state();
            let header = &mut state.header;
            let is_due = match self.options.atime {
                AtimePolicy::Relatime => {
                    header.atime <= header.mtime
                        || header.atime <= header.ctime
                        || now.seconds.saturating_sub(header.atime.seconds) >= RELATIME_AGE_S
                }
                AtimePolicy::Strict => true,
                AtimePolicy::Noatime => false,
            };
            if !is_due || header.atime >= now {
                return;
            }
            header.atime = now;
        }
        let patch = RowPatch { atime: Some(TimePatch::Max(now)), ..RowPatch::default() };
        let (keyspace, key) = node.row_address(&self.keyspaces);
        let full = {
            let mut pending = self.lazy_times.pending.lock();
            pending.merge(keyspace, key, patch.encode(node.inode));
            pending.len() >= PENDING_MAX
        };
        if full && let Err(error) = self.write_lazy_times() {
            tracing::warn!(%error, "access times were not written");
        }
    }

    /// Writes the access times that wait.
    pub(crate) fn write_lazy_times(&self) -> Result<()> {
        let batch = std::mem::take(&mut *self.lazy_times.pending.lock());
        if !batch.is_empty() {
            self.apply(batch)?;
        }
        Ok(())
    }
}
