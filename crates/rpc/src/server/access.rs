//! Which user may do what with a keyspace.

use std::sync::Arc;

use kvfs_fs::{FileSystem, FsError};
use kvfs_kv::{KeyspaceEntry, KeyspaceOwner};
use kvfs_store::Keyspace;
use tonic::Status;

use super::Shared;
use super::call::Call;
use super::failure::Failure;
use super::peer::Peer;
use crate::proto;

/// What a keyspace allows its owner, and no other user, when nothing is asked for.
const MODE_DEFAULT: u32 = 0o600;

pub(super) const READ: u32 = 4;
pub(super) const WRITE: u32 = 2;

fn allows(peer: &Peer, entry: &KeyspaceEntry, access: u32) -> bool {
    peer.is_master || entry.owner.allows(peer.uid, &peer.groups, access)
}

fn denied(name: &str) -> Failure {
    Status::permission_denied(format!(
        "keyspace \"{name}\" belongs to another user, and its mode does not allow this; \
         `kvfs kv chmod` or `chown` on it would"
    ))
    .into()
}

impl Shared {
    /// The keyspace to read from in a view. `None`: there is none, so there is nothing in it.
    pub(super) fn readable(peer: &Peer, view: &FileSystem, name: &str) -> Result<Option<Keyspace>, Failure> {
        let found = view.keys().readable_keyspace(name).map_err(|error| Failure::of(view, error))?;
        let Some((keyspace, owners)) = found else { return Ok(None) };
        let allow = |owner: &KeyspaceOwner| owner.allows(peer.uid, &peer.groups, READ);
        if peer.is_master || owners.iter().all(allow) { Ok(Some(keyspace)) } else { Err(denied(name)) }
    }

    /// The keyspace to remove from. `None`: there is none.
    pub(super) fn existing(&self, peer: &Peer, name: &str, access: u32) -> Result<Option<Keyspace>, Failure> {
        let found = self.fs.keys().keyspace(name).map_err(|error| Failure::of(&self.fs, error))?;
        match found {
            Some(entry) if !allows(peer, &entry, access) => Err(denied(name)),
            found => Ok(found.map(|entry| entry.keyspace)),
        }
    }

    /// The keyspace to write to; made when it is missing.
    pub(super) fn writable(&self, peer: &Peer, name: &str) -> Result<Keyspace, Failure> {
        if let Some(keyspace) = self.existing(peer, name, WRITE)? {
            return Ok(keyspace);
        }
        let (entry, _) = self.make(peer, name, MODE_DEFAULT)?;
        // Another client may have been faster.
        if allows(peer, &entry, WRITE) { Ok(entry.keyspace) } else { Err(denied(name)) }
    }

    fn make(&self, peer: &Peer, name: &str, mode: u32) -> Result<(KeyspaceEntry, bool), Failure> {
        let failed = |error| Failure::of(&self.fs, error);
        if !peer.is_master && self.fs.keys().keyspace(name).map_err(failed)?.is_none() {
            let all = self.fs.keys().keyspaces().map_err(failed)?;
            let own = all.iter().filter(|(_, entry)| entry.owner.uid == peer.uid).count();
            let max = self.options.limits.keyspaces_per_user_max;
            if own >= max {
                let message = format!("a user may have {max} keyspaces; use one for several purposes");
                return Err(Status::resource_exhausted(message).into());
            }
        }
        self.fs
            .keys()
            .make_keyspace(name, KeyspaceOwner { uid: peer.uid, gid: peer.gid, mode })
            .map_err(failed)
    }

    pub(super) fn list_keyspaces(
        &self,
        peer: &Peer,
        snapshot: &str,
    ) -> Result<Vec<proto::KeyspaceInfo>, Failure> {
        let view = self.view_to_read(peer, 0, snapshot)?;
        let all = if snapshot.is_empty() { view.keys().keyspaces() } else { view.keys().keyspaces_then() };
        let all = all.map_err(|error| Failure::of(&view, error))?;
        let mine = all.into_iter().filter(|(_, entry)| {
            entry.owner.uid == peer.uid || allows(peer, entry, READ) || allows(peer, entry, WRITE)
        });
        Ok(mine.map(|(name, entry)| info(name, entry.owner)).collect())
    }

    pub(super) fn create_keyspace(
        &self,
        peer: &Peer,
        request: &proto::CreateKeyspaceRequest,
    ) -> Result<proto::KeyspaceInfo, Failure> {
        let mode = check_mode(request.mode.unwrap_or(MODE_DEFAULT))?;
        let (entry, is_new) = self.make(peer, &request.name, mode)?;
        if is_new {
            return Ok(info(request.name.clone(), entry.owner));
        }
        if request.exclusive {
            let message = format!("there is a keyspace \"{}\" already", request.name);
            return Err(Status::already_exists(message).into());
        }
        let may = allows(peer, &entry, READ) || allows(peer, &entry, WRITE);
        if may { Ok(info(request.name.clone(), entry.owner)) } else { Err(denied(&request.name)) }
    }

    /// Removes a keyspace with its keys.
    pub(super) async fn drop_keyspace(self: &Arc<Self>, call: &Call, name: String) -> Result<(), Status> {
        let position = self
            .settle(call, move |shared, peer, caller| {
                let may = |owner: KeyspaceOwner| {
                    if peer.is_master || peer.uid == owner.uid {
                        return Ok(());
                    }
                    Err(FsError::NotPermitted("only a keyspace's owner, root and the store's owner drop it"))
                };
                shared.fs.keys().drop_keyspace(caller, &name, may).map_err(|error| match error {
                    FsError::NotFound => Status::not_found(format!("there is no keyspace \"{name}\"")).into(),
                    error => Failure::of(&shared.fs, error),
                })
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
        let mode = mode.map(check_mode).transpose()?;
        let change = |owner: KeyspaceOwner| {
            let gives_away = uid.is_some_and(|uid| uid != owner.uid);
            let strange = gid.is_some_and(|gid| gid != owner.gid && !peer.groups.contains(&gid));
            if !peer.is_master && (peer.uid != owner.uid || gives_away || strange) {
                return Err(FsError::NotPermitted(
                    "only a keyspace's owner changes it, to groups of its own; only root and the store's owner \
                     give it away",
                ));
            }
            let KeyspaceOwner { uid: uid_now, gid: gid_now, mode: mode_now } = owner;
            Ok(KeyspaceOwner {
                uid: uid.unwrap_or(uid_now),
                gid: gid.unwrap_or(gid_now),
                mode: mode.unwrap_or(mode_now),
            })
        };
        let changed = self.fs.keys().change_keyspace(name, change);
        match changed {
            Ok(entry) => Ok(info(name.clone(), entry.owner)),
            Err(FsError::NotFound) => {
                Err(Status::not_found(format!("there is no keyspace \"{name}\"")).into())
            }
            Err(error) => Err(Failure::of(&self.fs, error)),
        }
    }
}

fn check_mode(mode: u32) -> Result<u32, Failure> {
    if mode & !0o666 == 0 {
        return Ok(mode);
    }
    Err(Status::invalid_argument("the mode of a keyspace has read and write bits only, such as 640").into())
}

fn info(name: String, owner: KeyspaceOwner) -> proto::KeyspaceInfo {
    let KeyspaceOwner { uid, gid, mode } = owner;
    proto::KeyspaceInfo { name, uid, gid, mode }
}

#[cfg(test)]
mod tests;
