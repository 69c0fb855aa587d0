//! Streams of snapshots.
//!
//! The caller says where it is, so a stream goes on when the daemon ends and a command opens the store
//! itself. What a connection was given last is kept in the making, so that nothing is made twice.
//!
//! Thread safety: a stream is out of the table while it is worked on.

use std::collections::BTreeMap;
use std::fmt;

use kvfs_fs::transfer::{SendStream, SnapshotId, StreamId};
use kvfs_locks::{Mutex, class};
use kvfs_store::{SnapshotInfo, StoreError};

use crate::caller::Caller;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::served::ServedStore;

/// So many bytes are made at most at a time, so that closing the store does not wait for long.
const WORK_BYTES: u64 = 64 << 20;

/// A stream that can be asked for.
#[derive(Debug, Clone)]
pub struct StreamOffer {
    /// What identifies it.
    pub stream: StreamId,
    /// Snapshot that it leads from; `None`: from nothing.
    pub from: Option<String>,
    /// Snapshot that it leads to.
    pub to: String,
    /// About its length; 0: unknown.
    pub bytes_expected: u64,
    /// Whether it may have references, which older programs don't know.
    pub has_clones: bool,
}

/// A part of a stream; no bytes while what comes before them is still being made.
#[derive(Debug)]
pub struct Frames {
    /// Whole frames.
    pub bytes: Vec<u8>,
    /// Whether the stream ends here.
    pub is_through: bool,
}

/// The streams under way, by the connection that asks for them.
#[derive(Default)]
pub struct Streams {
    kept: Mutex<BTreeMap<u64, SendStream>, class::ServiceSnapshotsSendKept>,
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams").finish_non_exhaustive()
    }
}

impl Streams {
    /// The frames from `offset` on, until they have `bytes_max` bytes.
    ///
    /// # Errors
    /// The caller may not; its snapshots are gone; no frame begins there; store errors.
    pub fn frames(
        &self,
        store: &ServedStore<'_>,
        caller: &Caller,
        stream: StreamId,
        offset: u64,
        bytes_max: usize,
    ) -> Result<Frames> {
        store.admit(caller)?;
        let kept = self.kept.lock().remove(&caller.number);
        let fits = |kept: &SendStream| kept.stream() == stream && kept.position() <= offset;
        let mut send = if let Some(kept) = kept.filter(fits) {
            kept
        } else {
            // The caller may have to wait for the reader of its output.
            if let Err(error) = caller.keep() {
                tracing::debug!(%error, "a slow reader of a stream may be cut off");
            }
            let (from, to) = store.find_stream(stream)?;
            SendStream::new(store.fs, from.as_ref(), &to)?
        };
        let (mut bytes, mut is_through, begun) = (Vec::new(), false, send.position());
        while bytes.len() < bytes_max && send.position() - begun < WORK_BYTES && !is_through {
            let position = send.position();
            match send.next_frame()? {
                Some(frame) if position >= offset => bytes.extend_from_slice(&frame),
                Some(_) if send.position() > offset => return Err(wrong_place()),
                Some(_) => {}
                None => is_through = true,
            }
        }
        if is_through && send.position() < offset {
            return Err(wrong_place());
        }
        if !is_through {
            self.kept.lock().insert(caller.number, send);
        }
        Ok(Frames { bytes, is_through })
    }

    /// That of a connection which has ended is given up.
    pub fn forget(&self, connection: u64) {
        self.kept.lock().remove(&connection);
    }

    /// Gives up all.
    pub fn clear(&self) {
        self.kept.lock().clear();
    }
}

fn wrong_place() -> ServiceError {
    let message = "no frame of the stream begins where it is to go on; is this the whole token?";
    ServiceError::new(ErrorKind::Usage, message)
}

impl ServedStore<'_> {
    /// What there is to say of the stream from one snapshot (`None`: from nothing) to another.
    ///
    /// # Errors
    /// The caller may not; there is no such snapshot, or no such stream.
    pub fn offer_stream(&self, caller: &Caller, from: Option<&str>, to: &str) -> Result<StreamOffer> {
        self.admit(caller)?;
        let from_id = from.map(|name| self.snapshot_id(name)).transpose()?;
        let to_id = self.snapshot_id(to)?;
        if from_id.is_some_and(|from| from.store == to_id.store && from.position > to_id.position) {
            let message = format!(
                "\"{}\" is newer than \"{to}\"; differences lead forward in time (to go back: `kvfs snapshot restore`)",
                from.unwrap_or_default()
            );
            return Err(ServiceError::new(ErrorKind::Usage, message));
        }
        if from_id == Some(to_id) {
            let message = format!("nothing leads from \"{to}\" to itself");
            return Err(ServiceError::new(ErrorKind::Usage, message));
        }
        let send = SendStream::new(self.fs, from_id.as_ref(), &to_id)?;
        // What lies between two snapshots is known only when it was looked at.
        let bytes_expected = if from.is_none() { self.fs.store().space().used_bytes } else { 0 };
        Ok(StreamOffer {
            stream: send.stream(),
            from: from.map(str::to_owned),
            to: to.to_owned(),
            bytes_expected,
            has_clones: send.begin().has_clones,
        })
    }

    /// The same by the identity of the stream.
    ///
    /// # Errors
    /// As [`Self::offer_stream`].
    pub fn offer_stream_again(&self, caller: &Caller, stream: StreamId) -> Result<StreamOffer> {
        self.admit(caller)?;
        let (from, to) = self.find_stream(stream)?;
        let name =
            |id: &SnapshotId| Ok::<_, ServiceError>(self.fs.snapshots().find(id)?.map(|info| info.name));
        let from = from.as_ref().map(name).transpose()?.flatten();
        self.offer_stream(caller, from.as_deref(), &name(&to)?.unwrap_or_default())
    }

    fn snapshot_id(&self, name: &str) -> Result<SnapshotId> {
        let all = self.fs.store().named_snapshots();
        let named = all.into_iter().find(|info: &SnapshotInfo| info.name == name);
        let info = named.ok_or_else(|| StoreError::NoSnapshot(name.to_owned()))?;
        Ok(self.fs.snapshots().id(&info)?)
    }

    fn find_stream(&self, stream: StreamId) -> Result<(Option<SnapshotId>, SnapshotId)> {
        self.fs.snapshots().find_stream(stream)?.ok_or_else(|| {
            let message = "the snapshots of this stream are not in this store (any more); abandon it where it \
                           was received, and send anew";
            ServiceError::new(ErrorKind::Failed, message)
        })
    }
}
