//! Keyspaces for the client of a connection: what it may do with them is decided by `kvfs_kv`.

use std::sync::Arc;

use kvfs_fs::{FileSystem, FsError};
use kvfs_kv::{Access, AccessError, KeyspaceOwner, KeyspaceUser, OwnerChange, UserKeyspaces};
use kvfs_store::Keyspace;
use tonic::Status;

use super::Shared;
use super::call::Call;
use super::failure::Failure;
use super::peer::Peer;
use crate::proto;

impl Peer {
    fn as_user(&self) -> KeyspaceUser<'_> {
        KeyspaceUser { uid: self.uid, gid: self.gid, groups: &self.groups, is_master: self.is_master }
    }
}

impl Failure {
    /// Why a client did not get keyspace `name` in the view `fs`.
    fn of_access(fs: &FileSystem, name: &str, error: AccessError<FsError>) -> Self {
        let message = error.to_string();
        match error {
            AccessError::View(FsError::NotFound) => {
                Status::not_found(format!("there is no keyspace \"{name}\"")).into()
            }
            AccessError::View(error) => Self::of(fs, error),
            AccessError::Denied(_) => Status::permission_denied(message).into(),
            AccessError::TooMany(_) => Status::resource_exhausted(message).into(),
            AccessError::Exists(_) => Status::already_exists(message).into(),
            AccessError::Mode => Status::invalid_argument(message).into(),
        }
    }
}

impl Shared {
    /// The keyspaces that the client may use in a view.
    fn keyspaces_for<'v>(&self, peer: &'v Peer, view: &'v FileSystem) -> UserKeyspaces<'v, FileSystem> {
        view.keys().of_user(peer.as_user(), self.options.limits.keyspaces_per_user_max)
    }

    /// The keyspace to read from in a view. `None`: there is none, so there is nothing in it.
    pub(super) fn readable(
        &self,
        peer: &Peer,
        view: &FileSystem,
        name: &str,
    ) -> Result<Option<Keyspace>, Failure> {
        let found = self.keyspaces_for(peer, view).readable(name);
        found.map_err(|error| Failure::of_access(view, name, error))
    }

    /// The keyspace to remove from. `None`: there is none.
    pub(super) fn existing(
        &self,
        peer: &Peer,
        name: &str,
        access: Access,
    ) -> Result<Option<Keyspace>, Failure> {
        let found = self.keyspaces_for(peer, &self.fs).existing(name, access);
        found.map_err(|error| Failure::of_access(&self.fs, name, error))
    }

    /// The keyspace to write to; made when it is missing.
    pub(super) fn writable(&self, peer: &Peer, name: &str) -> Result<Keyspace, Failure> {
        let found = self.keyspaces_for(peer, &self.fs).writable(name);
        found.map_err(|error| Failure::of_access(&self.fs, name, error))
    }

    pub(super) fn list_keyspaces(
        &self,
        peer: &Peer,
        snapshot: &str,
    ) -> Result<Vec<proto::KeyspaceInfo>, Failure> {
        let view = self.view_to_read(peer, 0, snapshot)?;
        let listed = self.keyspaces_for(peer, &view).list(!snapshot.is_empty());
        let listed = listed.map_err(|error| Failure::of_access(&view, "", error))?;
        Ok(listed.into_iter().map(|(name, owner)| info(name, owner)).collect())
    }

    pub(super) fn create_keyspace(
        &self,
        peer: &Peer,
        request: &proto::CreateKeyspaceRequest,
    ) -> Result<proto::KeyspaceInfo, Failure> {
        let &proto::CreateKeyspaceRequest { ref name, mode, exclusive, .. } = request;
        let made = self.keyspaces_for(peer, &self.fs).create(name, mode, exclusive);
        let owner = made.map_err(|error| Failure::of_access(&self.fs, name, error))?;
        Ok(info(name.clone(), owner))
    }

    /// Removes a keyspace with its keys.
    pub(super) async fn drop_keyspace(self: &Arc<Self>, call: &Call, name: String) -> Result<(), Status> {
        let position = self
            .settle(call, move |shared, peer, caller| {
                let dropped = shared.keyspaces_for(peer, &shared.fs).drop_keyspace(caller, &name);
                dropped.map_err(|error| Failure::of_access(&shared.fs, &name, error))
            })
            .await?;
        self.harden(position, proto::Durability::Durable.into()).await
    }

    pub(super) fn change_keyspace(
        &self,
        peer: &Peer,
        request: &proto::ChangeKeyspaceRequest,
    ) -> Result<proto::KeyspaceInfo, Failure> {
        let &proto::ChangeKeyspaceRequest { ref name, mode, uid, gid } = request;
        let changed = self.keyspaces_for(peer, &self.fs).change(name, OwnerChange { uid, gid, mode });
        let owner = changed.map_err(|error| Failure::of_access(&self.fs, name, error))?;
        Ok(info(name.clone(), owner))
    }
}

fn info(name: String, owner: KeyspaceOwner) -> proto::KeyspaceInfo {
    let KeyspaceOwner { uid, gid, mode } = owner;
    proto::KeyspaceInfo { name, uid, gid, mode }
}

#[cfg(test)]
mod tests;
