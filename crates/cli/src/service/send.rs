//! Requests for the stream of a snapshot.
//!
//! The asking command says where it is, so a stream goes on when the daemon ends and the command opens the store
//! itself. What a connection was given last is kept in the making, so that nothing is made twice.
//!
//! Thread safety: a stream is out of the table while it is worked on.

use kvfs_fs::transfer::{SendStream, SnapshotId, StreamId};
use kvfs_store::{NamedSnapshots, SnapshotInfo, Store};

use super::Service;
use crate::control::{Blob, Peer, Response};
use crate::error::{CliError, Code, Result};
use crate::open::OpenStore;

/// An answer ends when it has so many bytes; one frame more fits a message.
const ANSWER_BYTES: usize = 1 << 20;
/// So many bytes are made at most for one answer, so that closing the store does not wait for long.
const WORK_BYTES: u64 = 64 << 20;

impl Service {
    /// The frames from `offset` on.
    pub(super) fn send_frames(
        &self,
        store: &OpenStore,
        peer: &Peer,
        stream: StreamId,
        offset: u64,
    ) -> Result<Response> {
        let kept = self.sends.lock().remove(&peer.caller.number);
        let fits = |kept: &SendStream| kept.stream() == stream && kept.position() <= offset;
        let mut send = if let Some(kept) = kept.filter(fits) {
            kept
        } else {
            // The command may have to wait for the reader of its output.
            if let Err(error) = peer.keep() {
                tracing::debug!(%error, "a slow reader of a stream may be cut off");
            }
            store.begin_stream(stream)?
        };
        let (mut bytes, mut is_through, begun) = (Vec::new(), false, send.position());
        while bytes.len() < ANSWER_BYTES && send.position() - begun < WORK_BYTES && !is_through {
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
            self.sends.lock().insert(peer.caller.number, send);
        }
        Ok(Response::Frames { bytes: Blob(bytes), is_through })
    }
}

fn wrong_place() -> CliError {
    CliError::new(Code::Usage, "no frame of the stream begins where it is to go on; is this the whole token?")
}

impl OpenStore {
    fn snapshot_id(&self, name: &str) -> Result<SnapshotId> {
        let named = self.db.named_snapshots().into_iter().find(|info: &SnapshotInfo| info.name == name);
        let info = named.ok_or_else(|| kvfs_store::StoreError::NoSnapshot(name.to_owned()))?;
        Ok(self.fs.snapshots().id(&info)?)
    }

    /// What there is to say of a stream.
    pub(super) fn sending(&self, from: Option<&str>, to: &str) -> Result<Response> {
        let from_id = from.map(|name| self.snapshot_id(name)).transpose()?;
        let to_id = self.snapshot_id(to)?;
        if from_id.is_some_and(|from| from.store == to_id.store && from.position > to_id.position) {
            let message = format!(
                "\"{}\" is newer than \"{to}\"; differences lead forward in time (to go back: `kvfs snapshot restore`)",
                from.unwrap_or_default()
            );
            return Err(CliError::new(Code::Usage, message));
        }
        if from_id == Some(to_id) {
            return Err(CliError::new(Code::Usage, format!("nothing leads from \"{to}\" to itself")));
        }
        let stream = StreamId::of(from_id.as_ref(), &to_id);
        // What lies between two snapshots is known only when it was looked at.
        let bytes_expected = if from.is_none() { self.db.space().used_bytes } else { 0 };
        Ok(Response::Sending {
            stream: stream.0,
            from: from.map(str::to_owned),
            to: to.to_owned(),
            bytes_expected,
        })
    }

    pub(super) fn sending_again(&self, stream: StreamId) -> Result<Response> {
        let (from, to) = self.find_stream(stream)?;
        let name = |id: &SnapshotId| Ok::<_, CliError>(self.fs.snapshots().find(id)?.map(|info| info.name));
        let from = from.as_ref().map(name).transpose()?.flatten();
        self.sending(from.as_deref(), &name(&to)?.unwrap_or_default())
    }

    fn find_stream(&self, stream: StreamId) -> Result<(Option<SnapshotId>, SnapshotId)> {
        self.fs.snapshots().find_stream(stream)?.ok_or_else(|| {
            let message = "the snapshots of this stream are not in this store (any more); abandon it where it \
                           was received, and send anew";
            CliError::new(Code::Failed, message)
        })
    }

    fn begin_stream(&self, stream: StreamId) -> Result<SendStream> {
        let (from, to) = self.find_stream(stream)?;
        Ok(SendStream::new(&self.fs, from.as_ref(), &to)?)
    }
}
