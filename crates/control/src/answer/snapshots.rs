//! Requests about named snapshots.

use bytes::Bytes;
use kvfs_fs::transfer::StreamId;
use kvfs_service::{Caller, Compared, Frames, Result, ServedStore, StreamOffer};
use kvfs_store::clock::{Clock, SystemClock};

use super::RequestHandler;
use super::changes::restored;
use crate::protocol::{Blob, Response, SnapshotRequest};

/// An answer ends when it has so many bytes; one frame more fits a message.
const ANSWER_BYTES: usize = 1 << 20;

impl RequestHandler {
    pub(super) fn answer_snapshot(
        &self,
        store: &ServedStore<'_>,
        caller: &Caller,
        request: SnapshotRequest,
    ) -> Result<Response> {
        match request {
            SnapshotRequest::Create { name, flush, private } => {
                store.create_snapshot(caller, &name, flush, private)?;
                Ok(Response::Done)
            }
            SnapshotRequest::SetPrivate { name, private } => {
                store.set_snapshot_private(caller, &name, private)?;
                Ok(Response::Done)
            }
            SnapshotRequest::Delete { name } => {
                store.delete_snapshot(caller, &name)?;
                Ok(Response::Done)
            }
            SnapshotRequest::List => {
                let lines = store.snapshots(caller);
                Ok(Response::Snapshots { now: SystemClock::new().wall(), lines })
            }
            SnapshotRequest::Diff { before, after, from, limit } => {
                let what = Compared::Snapshots(before.clone(), after.clone());
                let begin = || store.compare_snapshots(caller, before.as_deref(), after.as_deref());
                self.answer_comparison(caller, what, (from, limit), begin)
            }
            SnapshotRequest::Send { from, to } => {
                Ok(sending(store.offer_stream(caller, from.as_deref(), &to)?))
            }
            SnapshotRequest::SendAgain { stream } => {
                Ok(sending(store.offer_stream_again(caller, StreamId(stream))?))
            }
            SnapshotRequest::SendFrames { stream, offset } => {
                let frames =
                    self.service.streams.frames(store, caller, StreamId(stream), offset, ANSWER_BYTES)?;
                let Frames { bytes, is_through } = frames;
                Ok(Response::Frames { bytes: Blob(bytes), is_through })
            }
            SnapshotRequest::Restore { name, paths } => {
                let paths: Vec<Bytes> = paths.into_iter().map(Bytes::from).collect();
                let (txn, done) = store.restore_snapshot(caller, &name, &paths)?;
                Ok(restored(txn, done))
            }
        }
    }
}

fn sending(offer: StreamOffer) -> Response {
    let StreamOffer { stream, from, to, bytes_expected, has_clones } = offer;
    Response::Sending { stream: stream.0, from, to, bytes_expected, has_clones }
}
