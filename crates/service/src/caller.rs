//! The process on whose behalf an operation is done.
//!
//! Thread safety: a value that its connection's threads share. Invariant: user, group and process are what
//! the kernel says, never what a client says.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use kvfs_fs::FileSystem;
use kvfs_kv::{Access, KeyspaceOwner, KeyspaceUser};

use crate::authority::is_master;
use crate::error::{ErrorKind, Result, ServiceError};

/// Set in the numbers of connections to the key-value socket, which has numbers of its own.
const KEYS_BIT: u64 = 1 << 63;

/// Whether user `actor` may use, and see, what belongs to `uid`.
pub fn may_act_for(actor: u32, uid: u32) -> bool {
    actor == 0 || actor == uid
}

/// A connection that a transaction can be tied to.
pub trait Connection: Debug + Send + Sync {
    /// The group of the process at the other end, if the kernel says.
    fn gid(&self) -> Option<u32>;

    /// Its other groups, as far as the kernel says.
    fn groups(&self) -> Vec<u32>;

    /// From now on it stays as long as the other end lives, whatever passes on it.
    ///
    /// # Errors
    /// The kernel refuses.
    fn keep(&self) -> io::Result<()>;

    /// Ends it, so that the other end learns of it.
    fn cut(&self);

    /// Whether the other end is still there, as far as the kernel says.
    fn is_there(&self) -> bool;
}

/// See the module.
#[derive(Debug)]
pub struct Caller {
    /// Of the connection; unique in a daemon's life. 0: there is none.
    pub number: u64,
    /// Its user.
    pub uid: u32,
    /// Its process; 0: not visible from here.
    pub pid: u32,
    /// None for this process itself, for calls on the mount, and for connections that are not for us to cut.
    connection: Option<Arc<dyn Connection>>,
}

impl Caller {
    /// The process at the other end of `connection`.
    pub fn on(connection: Arc<dyn Connection>, number: u64, uid: u32, pid: u32) -> Self {
        Self { number, uid, pid, connection: Some(connection) }
    }

    /// The process at the other end of a connection to the key-value socket.
    pub fn of_keys(connection: u64, uid: u32, pid: u32) -> Self {
        Self { number: Self::keys_line(connection), uid, pid, connection: None }
    }

    /// The number that stands for a connection to the key-value socket.
    pub fn keys_line(connection: u64) -> u64 {
        connection | KEYS_BIT
    }

    /// The process that makes a call on the mount.
    pub fn of_mount(uid: u32, pid: u32) -> Self {
        Self { number: 0, uid, pid, connection: None }
    }

    /// This process, which has opened the store itself.
    pub fn own() -> Self {
        Self::of_mount(rustix::process::geteuid().as_raw(), std::process::id())
    }

    /// Its group; where there is no connection that tells, `u32::MAX`, which is no group.
    pub fn gid(&self) -> u32 {
        self.connection.as_ref().and_then(|connection| connection.gid()).unwrap_or(u32::MAX)
    }

    /// Its groups, its own among them, as far as its connection tells.
    pub fn groups(&self) -> Vec<u32> {
        let Some(connection) = &self.connection else { return Vec::new() };
        let mut groups = connection.groups();
        groups.extend(connection.gid());
        groups
    }

    /// Whether it is of the group. Where there is no connection that tells, it is of none.
    pub fn is_of_group(&self, gid: u32) -> bool {
        let Some(connection) = &self.connection else { return false };
        self.gid() == gid || connection.groups().contains(&gid)
    }

    /// Whether the connection that it has come by, if any, is still open at the other end.
    pub fn is_there(&self) -> bool {
        self.watch()()
    }

    /// As [`Self::is_there`], to be asked by others.
    pub(crate) fn watch(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let connection = self.connection.clone();
        move || connection.as_ref().is_none_or(|connection| connection.is_there())
    }

    /// Whether it may use the keys of a keyspace of the store with this owner.
    pub fn may_use_keys(&self, fs: &FileSystem, owner: &KeyspaceOwner, access: Access) -> bool {
        let group = [owner.gid];
        let groups = if self.is_of_group(owner.gid) { &group[..] } else { &[] };
        let user =
            KeyspaceUser { uid: self.uid, gid: self.gid(), groups, is_master: is_master(fs, self.uid) };
        user.may(owner, access)
    }

    /// Whether it may use what belongs to `uid`.
    pub fn may_act_for(&self, uid: u32) -> bool {
        may_act_for(self.uid, uid)
    }

    /// The connection stays as long as its owner lives, whatever passes on it. Returns it, if cutting it is
    /// for us to do.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn keep(&self) -> Result<Option<Arc<dyn Connection>>> {
        let Some(connection) = &self.connection else { return Ok(None) };
        connection.keep().map_err(|error| ServiceError::new(ErrorKind::Failed, error.to_string()))?;
        Ok(Some(Arc::clone(connection)))
    }
}
