//! What a snapshot in a repository says of itself.
//!
//! Thread safety: plain values. Invariant: a manifest refers to chunks that are there, and names all that its
//! snapshot needs.

use std::time::Duration;

use kvfs_fs::transfer::{Begin, SnapshotId, StreamId};
use kvfs_kv::KeyspaceOwner;
use serde::{Deserialize, Serialize};

use crate::chunks::ChunkRef;
use crate::error::{RepositoryError, Result};
use crate::layout::{from_hex, hex};

/// A keyspace of users' keys.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct KeyspaceLine {
    pub(crate) name: String,
    /// User, group, mode.
    pub(crate) owner: Option<(u32, u32, u32)>,
}

impl KeyspaceLine {
    pub(crate) fn new(name: String, owner: Option<KeyspaceOwner>) -> Self {
        Self { name, owner: owner.map(|owner| (owner.uid, owner.gid, owner.mode)) }
    }

    pub(crate) fn owner(&self) -> Option<KeyspaceOwner> {
        self.owner.map(|(uid, gid, mode)| KeyspaceOwner { uid, gid, mode })
    }
}

/// The object `snapshots/ID`, as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) name: String,
    /// The store in which it was made (16 bytes, in hexadecimal digits), and where there.
    store: String,
    position: u64,
    /// Nanoseconds since 1970.
    created: u64,
    /// Seconds since 1970.
    pub(crate) pushed: u64,
    inline_len_max: u32,
    inode_next: u64,
    has_projects: bool,
    #[serde(default)]
    has_clones: bool,
    pub(crate) keyspaces: Vec<KeyspaceLine>,
    pub(crate) records: u64,
    /// Keys and values (bytes).
    pub(crate) bytes: u64,
    /// What the snapshot is made of.
    pub(crate) recipe: Vec<ChunkRef>,
    /// The identities of all chunks to which the recipe refers.
    pub(crate) contents: Vec<ChunkRef>,
}

impl Manifest {
    /// With what the stream's first frame says.
    pub(crate) fn new(begin: &Begin, pushed: Duration) -> Self {
        let (id, name) = &begin.to;
        Self {
            name: name.clone(),
            store: hex(&id.store),
            position: id.position,
            created: id.created,
            pushed: pushed.as_secs(),
            inline_len_max: begin.inline_len_max,
            inode_next: begin.inode_next,
            has_projects: begin.has_projects,
            has_clones: begin.has_clones,
            keyspaces: Vec::new(),
            records: 0,
            bytes: 0,
            recipe: Vec::new(),
            contents: Vec::new(),
        }
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let failed = |error| RepositoryError::Machine(format!("cannot write a manifest: {error}"));
        serde_json::to_vec(self).map_err(failed)
    }

    /// Of the object's content.
    pub(crate) fn decode(object: &str, bytes: &[u8]) -> Result<Self> {
        let damaged = || RepositoryError::damaged(object, "it makes no sense as a manifest");
        let manifest: Self = serde_json::from_slice(bytes).map_err(|_| damaged())?;
        manifest.snapshot().map(|_| manifest).ok_or_else(damaged)
    }

    fn snapshot(&self) -> Option<SnapshotId> {
        Some(SnapshotId { store: from_hex(&self.store)?, position: self.position, created: self.created })
    }

    /// The first frame of the stream that leads to it.
    pub(crate) fn begin(&self) -> Begin {
        let nothing = SnapshotId { store: [0; 16], position: self.position, created: self.created };
        Begin {
            to: (self.snapshot().unwrap_or(nothing), self.name.clone()),
            from: None,
            inline_len_max: self.inline_len_max,
            inode_next: self.inode_next,
            has_projects: self.has_projects,
            has_clones: self.has_clones,
        }
    }

    /// What it is, for lists.
    pub(crate) fn summary(&self) -> Summary {
        Summary {
            id: self.begin().stream(),
            name: self.name.clone(),
            store: self.store.clone(),
            position: self.position,
            created: Duration::from_nanos(self.created),
            pushed: Duration::from_secs(self.pushed),
            records: self.records,
            bytes: self.bytes,
        }
    }
}

/// A snapshot in a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// What no other has.
    pub id: StreamId,
    /// Its name in the store.
    pub name: String,
    /// The store in which it was made (16 bytes, in hexadecimal digits).
    pub store: String,
    /// How far that store had come; what is newer in it has a greater one.
    pub position: u64,
    /// When it was made (time since 1970), by the clock of its machine.
    pub created: Duration,
    /// When it was pushed (time since 1970).
    pub pushed: Duration,
    /// Keys, and ranges of blocks.
    pub records: u64,
    /// Keys and values (bytes).
    pub bytes: u64,
}
