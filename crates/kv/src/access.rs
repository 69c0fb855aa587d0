//! Which user may do what with a keyspace: decided here, whichever front end the user has come by.
//!
//! [`Keys::of_user`] gives keyspaces to operations on keys, and makes, lists, changes and drops them, as far
//! as the user may. A keyspace belongs to the user that has made it; its mode says what the owner, the
//! owner's group and all others may.
//!
//! Thread safety: as [`Keys`]; users are plain values. Invariant: user and groups are what the kernel says of
//! a process.

use kvfs_store::{Keyspace, Position};

use crate::{Keys, KeyspaceEntry, KeyspaceOwner, KvError, View};

/// What a keyspace allows its owner, and no other user, when nothing is asked for.
const MODE_DEFAULT: u32 = 0o600;

/// Bits of a mode that are set for a keyspace.
const MODE_BITS: u32 = 0o666;

/// What is to be done with the keys of a keyspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// They are read.
    Read,
    /// They are put and deleted.
    Write,
}

impl Access {
    fn bits(self) -> u32 {
        match self {
            Self::Read => 4,
            Self::Write => 2,
        }
    }
}

/// How many keyspaces a user of a daemon may have who may not do everything.
pub const KEYSPACES_PER_USER_MAX: usize = 256;

/// On whose behalf keyspaces are used.
#[derive(Debug, Clone, Copy)]
pub struct KeyspaceUser<'a> {
    /// User id.
    pub uid: u32,
    /// Group id, which keyspaces get that the user makes.
    pub gid: u32,
    /// Its own and all other groups.
    pub groups: &'a [u32],
    /// Root, or the store's owner: may do everything.
    pub is_master: bool,
}

impl KeyspaceUser<'_> {
    /// Whether the user may use the keys of a keyspace with this owner.
    pub fn may(&self, owner: &KeyspaceOwner, access: Access) -> bool {
        self.is_master || owner.allows(self.uid, self.groups, access.bits())
    }

    /// Whether the user may use it in any way.
    fn may_use(&self, owner: &KeyspaceOwner) -> bool {
        self.may(owner, Access::Read) || self.may(owner, Access::Write)
    }

    fn may_drop(&self, owner: &KeyspaceOwner) -> Result<(), KvError> {
        if self.is_master || self.uid == owner.uid {
            return Ok(());
        }
        Err(KvError::NotPermitted("only a keyspace's owner, root and the store's owner drop it"))
    }

    /// The owner that the user may make of `owner`.
    fn changed(&self, owner: KeyspaceOwner, change: OwnerChange) -> Result<KeyspaceOwner, KvError> {
        let OwnerChange { uid, gid, mode } = change;
        let gives_away = uid.is_some_and(|uid| uid != owner.uid);
        let strange = gid.is_some_and(|gid| gid != owner.gid && !self.groups.contains(&gid));
        if !self.is_master && (self.uid != owner.uid || gives_away || strange) {
            return Err(KvError::NotPermitted(
                "only a keyspace's owner changes it, to groups of its own; only root and the store's owner give it away",
            ));
        }
        Ok(KeyspaceOwner {
            uid: uid.unwrap_or(owner.uid),
            gid: gid.unwrap_or(owner.gid),
            mode: mode.unwrap_or(owner.mode),
        })
    }
}

/// What is to be another owner or mode; `None`: as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnerChange {
    /// User id.
    pub uid: Option<u32>,
    /// Group id.
    pub gid: Option<u32>,
    /// Mode: read and write bits.
    pub mode: Option<u32>,
}

/// Why a user did not get a keyspace.
#[derive(Debug, thiserror::Error)]
pub enum AccessError<E> {
    /// The mode does not allow it.
    #[error(
        "keyspace \"{0}\" belongs to another user, and its mode does not allow this; `kvfs kv chmod` or `chown` on it would"
    )]
    Denied(String),
    /// A user may have so many.
    #[error("a user may have {0} keyspaces; use one for several purposes")]
    TooMany(usize),
    /// It was to be made anew.
    #[error("there is a keyspace \"{0}\" already")]
    Exists(String),
    /// Bits that mean nothing.
    #[error("the mode of a keyspace has read and write bits only, such as 640")]
    Mode,
    /// That of the view.
    #[error("{0}")]
    View(E),
}

impl<E> From<E> for AccessError<E> {
    fn from(error: E) -> Self {
        Self::View(error)
    }
}

/// The keyspaces of a view, for one user.
#[derive(Debug)]
pub struct UserKeyspaces<'v, V> {
    keys: Keys<'v, V>,
    user: KeyspaceUser<'v>,
    /// How many one user may have; those that may do everything have as many as they want.
    own_max: usize,
}

type Found<T, V> = Result<T, AccessError<<V as View>::Error>>;

impl<'v, V: View> Keys<'v, V> {
    /// The keyspaces for `user`, who may have `own_max` of them.
    pub fn of_user(self, user: KeyspaceUser<'v>, own_max: usize) -> UserKeyspaces<'v, V> {
        UserKeyspaces { keys: self, user, own_max }
    }
}

impl<V: View> UserKeyspaces<'_, V> {
    /// The keyspace to read from. `None`: there is none, so there is nothing in it.
    ///
    /// # Errors
    /// `Denied`; as [`Keys::readable_keyspace`].
    pub fn readable(&self, name: &str) -> Found<Option<Keyspace>, V> {
        let found = self.keys.readable_keyspace(name).map_err(AccessError::View)?;
        let Some((keyspace, owners)) = found else { return Ok(None) };
        let is_allowed = owners.iter().all(|owner| self.user.may(owner, Access::Read));
        if is_allowed { Ok(Some(keyspace)) } else { Err(AccessError::Denied(name.to_owned())) }
    }

    /// The keyspace as it is now. `None`: there is none.
    ///
    /// # Errors
    /// `Denied`; as [`Keys::keyspace`].
    pub fn existing(&self, name: &str, access: Access) -> Found<Option<Keyspace>, V> {
        match self.keys.keyspace(name).map_err(AccessError::View)? {
            Some(entry) if !self.user.may(&entry.owner, access) => Err(AccessError::Denied(name.to_owned())),
            found => Ok(found.map(|entry| entry.keyspace)),
        }
    }

    /// The keyspace to write to; made when it is missing.
    ///
    /// # Errors
    /// `Denied`, `TooMany`; as [`Keys::make_keyspace`].
    pub fn writable(&self, name: &str) -> Found<Keyspace, V> {
        if let Some(keyspace) = self.existing(name, Access::Write)? {
            return Ok(keyspace);
        }
        let (entry, _) = self.make(name, MODE_DEFAULT)?;
        // Another user may have been faster.
        let is_allowed = self.user.may(&entry.owner, Access::Write);
        if is_allowed { Ok(entry.keyspace) } else { Err(AccessError::Denied(name.to_owned())) }
    }

    /// The keyspace, made when it is missing; `exclusive`: only if it was made. Returns its owner.
    ///
    /// # Errors
    /// `Mode`, `Exists`, `Denied`, `TooMany`; as [`Keys::make_keyspace`].
    pub fn create(&self, name: &str, mode: Option<u32>, exclusive: bool) -> Found<KeyspaceOwner, V> {
        let mode = check_mode(mode.unwrap_or(MODE_DEFAULT))?;
        let (entry, is_new) = self.make(name, mode)?;
        match () {
            () if is_new => Ok(entry.owner),
            () if exclusive => Err(AccessError::Exists(name.to_owned())),
            () if self.user.may_use(&entry.owner) => Ok(entry.owner),
            () => Err(AccessError::Denied(name.to_owned())),
        }
    }

    fn make(&self, name: &str, mode: u32) -> Found<(KeyspaceEntry, bool), V> {
        let user = &self.user;
        if !user.is_master && self.keys.keyspace(name).map_err(AccessError::View)?.is_none() {
            let all = self.keys.keyspaces().map_err(AccessError::View)?;
            let own = all.iter().filter(|(_, entry)| entry.owner.uid == user.uid).count();
            if own >= self.own_max {
                return Err(AccessError::TooMany(self.own_max));
            }
        }
        let owner = KeyspaceOwner { uid: user.uid, gid: user.gid, mode };
        self.keys.make_keyspace(name, owner).map_err(AccessError::View)
    }

    /// The keyspaces that the user may use, or has, ordered by name, with their owners; `then`: those that
    /// the view's snapshot has.
    ///
    /// # Errors
    /// As [`Keys::keyspaces`].
    pub fn list(&self, then: bool) -> Found<Vec<(String, KeyspaceOwner)>, V> {
        let all = if then { self.keys.keyspaces_then() } else { self.keys.keyspaces() };
        let all = all.map_err(AccessError::View)?.into_iter().map(|(name, entry)| (name, entry.owner));
        Ok(all.filter(|(_, owner)| owner.uid == self.user.uid || self.user.may_use(owner)).collect())
    }

    /// Gives a keyspace to another owner or changes its mode, durably. Returns its owner.
    ///
    /// # Errors
    /// `Mode`; [`KvError::NotPermitted`]; as [`Keys::change_keyspace`].
    pub fn change(&self, name: &str, change: OwnerChange) -> Found<KeyspaceOwner, V> {
        change.mode.map(check_mode).transpose()?;
        let changed = self.keys.change_keyspace(name, |owner| Ok(self.user.changed(owner, change)?));
        changed.map(|entry| entry.owner).map_err(AccessError::View)
    }

    /// Removes a keyspace and all its keys. Returns what to sync.
    ///
    /// # Errors
    /// [`KvError::NotPermitted`]; as [`Keys::drop_keyspace`].
    pub fn drop_keyspace(&self, caller: &V::Caller, name: &str) -> Found<Position, V> {
        let may = |owner: KeyspaceOwner| Ok(self.user.may_drop(&owner)?);
        self.keys.drop_keyspace(caller, name, may).map_err(AccessError::View)
    }
}

fn check_mode<E>(mode: u32) -> Result<u32, AccessError<E>> {
    if mode & !MODE_BITS == 0 { Ok(mode) } else { Err(AccessError::Mode) }
}

#[cfg(test)]
mod tests;
