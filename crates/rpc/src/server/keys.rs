//! Calls about single keys and batches.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_fs::{FileSystem, TxnView};
use kvfs_kv::{Access, KeyChange};
use kvfs_store::{KeyRange, Keyspace};
use tonic::Status;

use super::Shared;
use super::call::Call;
use super::failure::{Failure, of_store};
use super::peer::Peer;
use crate::proto::operation::Change;
use crate::{MESSAGE_LEN_MAX, proto};

/// What a message needs beside the values (bytes): enough for lengths and tags.
const VALUE_OVERHEAD: usize = 16;

/// A key that a batch would refuse is told at once.
fn check_key(key: &[u8]) -> Result<(), Status> {
    kvfs_store::check_key(key).map_err(|error| of_store(&error))
}

pub(super) fn range_of(range: Option<proto::KeyRange>) -> KeyRange {
    let range = range.unwrap_or_default();
    KeyRange { start: range.start, end: range.end }
}

fn check_count(count: usize) -> Result<(), Status> {
    kvfs_kv::check_count(count).map_err(|error| Status::invalid_argument(error.to_string()))
}

impl Shared {
    pub(super) async fn get(
        self: &Arc<Self>,
        call: &Call,
        request: proto::GetRequest,
    ) -> Result<Option<Bytes>, Status> {
        check_key(&request.key)?;
        self.settle(call, move |shared, peer, caller| {
            let fs = shared.view_to_read(peer, request.txn, &request.snapshot)?;
            let Some(keyspace) = shared.readable(peer, &fs, &request.keyspace)? else { return Ok(None) };
            fs.keys().get(caller, keyspace, &request.key).map_err(|error| Failure::of(&fs, error))
        })
        .await
    }

    pub(super) async fn multi_get(
        self: &Arc<Self>,
        call: &Call,
        request: proto::MultiGetRequest,
    ) -> Result<Vec<proto::GetResponse>, Status> {
        check_count(request.keys.len())?;
        request.keys.iter().try_for_each(|key| check_key(key))?;
        let bytes_max = MESSAGE_LEN_MAX - request.keys.len() * VALUE_OVERHEAD;
        self.settle(call, move |shared, peer, caller| {
            let fs = shared.view_to_read(peer, request.txn, &request.snapshot)?;
            let Some(keyspace) = shared.readable(peer, &fs, &request.keyspace)? else {
                return Ok(vec![proto::GetResponse::default(); request.keys.len()]);
            };
            let values = fs
                .keys()
                .multi_get(caller, keyspace, &request.keys, bytes_max)
                .map_err(|error| Failure::of(&fs, error))?;
            Ok(values.into_iter().map(|value| proto::GetResponse { value }).collect())
        })
        .await
    }

    pub(super) async fn delete(
        self: &Arc<Self>,
        call: &Call,
        request: proto::DeleteRequest,
    ) -> Result<bool, Status> {
        check_key(&request.key)?;
        let durability = request.durability;
        let (position, existed) = self
            .settle(call, move |shared, peer, caller| {
                let fs = shared.view(peer, request.txn)?;
                let find = || shared.existing(peer, &request.keyspace, Access::Write);
                let set = fs.keys().set_found(caller, find, &request.key, None);
                set.map_err(|error| Failure::of(&fs, error))?
            })
            .await?;
        self.harden(position, durability).await?;
        Ok(existed)
    }

    /// A batch. Keyspaces that are put to are made; in others there is nothing to remove.
    pub(super) async fn apply(
        self: &Arc<Self>,
        call: &Call,
        operations: Vec<proto::Operation>,
        txn: u64,
        durability: i32,
    ) -> Result<(), Status> {
        check_count(operations.len())?;
        for operation in &operations {
            match &operation.change {
                Some(Change::Put(put)) => check_key(&put.key)?,
                Some(Change::Delete(key)) => check_key(key)?,
                Some(Change::DeleteRange(_)) => {}
                None => return Err(Status::invalid_argument("an operation without a change")),
            }
        }
        let position = self
            .settle(call, move |shared, peer, caller| {
                let fs = shared.view(peer, txn)?;
                let applied = fs.keys().apply_found(caller, || shared.changes(peer, &operations));
                applied.map_err(|error| Failure::of(&fs, error))?
            })
            .await?;
        self.harden(position, durability).await
    }

    fn changes(
        &self,
        peer: &Peer,
        operations: &[proto::Operation],
    ) -> Result<Vec<(Keyspace, KeyChange)>, Failure> {
        let mut changes = Vec::with_capacity(operations.len());
        // Neighbours are mostly in the same keyspace.
        let mut last: Option<(&str, Keyspace)> = None;
        for operation in operations {
            let name = operation.keyspace.as_str();
            let change = match operation.change.clone() {
                Some(Change::Put(proto::KeyValue { key, value })) => KeyChange::Put { key, value },
                Some(Change::Delete(key)) => KeyChange::Delete { key },
                Some(Change::DeleteRange(range)) => KeyChange::DeleteRange(range_of(Some(range))),
                None => continue,
            };
            let keyspace = match last {
                Some((known, keyspace)) if known == name => keyspace,
                _ if matches!(change, KeyChange::Put { .. }) => self.writable(peer, name)?,
                _ => match self.existing(peer, name, Access::Write)? {
                    Some(keyspace) => keyspace,
                    None => continue,
                },
            };
            last = Some((name, keyspace));
            changes.push((keyspace, change));
        }
        Ok(changes)
    }
}

/// Whether the view can't go on.
pub(super) fn check_doom(fs: &FileSystem) -> Result<(), Failure> {
    match fs.txn().and_then(TxnView::doom) {
        Some(doom) => Err(Failure::of(fs, kvfs_fs::FsError::Canceled(doom))),
        None => Ok(()),
    }
}
