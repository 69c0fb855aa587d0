//! Keyspaces are made, opened and set: each change of their list is an edit of the manifest.
//!
//! Thread safety: any thread; changes take turns. Invariant: the superblocks announce packed data before the
//! manifest has a setting that asks for it.

use std::sync::Arc;

use kvfs_locks::{Mutex, class};
use kvfs_store::{Compression, Keyspace, KeyspaceKind, MergeFunction, Result, StoreError};

use crate::format::Feature;
use crate::live::LiveSet;
use crate::live::keyspaces::{KeyspaceMeta, Keyspaces};
use crate::runtime::Runtime;
use crate::version::Edit;

/// See the module.
pub(crate) struct Catalog {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) live: Arc<LiveSet>,
    pub(crate) keyspaces: Arc<Keyspaces>,
    pub(crate) making_keyspace: Mutex<(), class::KvdbLiveCatalogMakingKeyspace>,
}

impl Catalog {
    /// Of these keyspaces.
    pub(crate) fn new(live: &Arc<LiveSet>, keyspaces: &Arc<Keyspaces>) -> Self {
        let (runtime, live) = (Arc::clone(&live.runtime), Arc::clone(live));
        Self { runtime, live, keyspaces: Arc::clone(keyspaces), making_keyspace: Mutex::default() }
    }

    pub(crate) fn set_compression(&self, keyspace: Keyspace, compression: Compression) -> Result<()> {
        self.runtime.check_accepting()?;
        // Held across look-up and edit, as while keyspaces are made.
        let _making = self.making_keyspace.lock();
        if self.keyspaces.get(keyspace.0)?.compression == compression {
            return Ok(());
        }
        self.live.announce(Feature::Packed)?;
        let edit = Edit::SetCompression { keyspace: keyspace.0, compression };
        self.live.install(vec![edit], &[], &[], |view| view)?;
        self.keyspaces.set_compression(keyspace.0, compression);
        Ok(())
    }

    pub(crate) fn open_keyspace(
        &self,
        name: &str,
        kind: KeyspaceKind,
        merge: Option<Arc<dyn MergeFunction>>,
    ) -> Result<Keyspace> {
        // Held across the look-up and the edit, so that two callers can't make one name twice.
        let making = self.making_keyspace.lock();
        if let Some((id, meta)) = self.keyspaces.find(name) {
            if meta.kind != kind {
                return Err(StoreError::wrong_kind("open", name, meta.kind));
            }
            if merge.is_some() {
                let fresh = KeyspaceMeta::new(name, kind, merge);
                self.keyspaces.insert(id, fresh.stored_as(meta.compression));
            }
            return Ok(Keyspace(id));
        }
        self.runtime.check_accepting()?;
        let id = self.keyspaces.next_id();
        let mut edits = vec![Edit::AddKeyspace { id, name: name.to_owned(), kind }];
        let compression = self.runtime.options.compression;
        if compression != Compression::None {
            self.live.announce(Feature::Packed)?;
            edits.push(Edit::SetCompression { keyspace: id, compression });
        }
        self.live.install(edits, &[], &[], |view| view)?;
        self.keyspaces.insert(id, KeyspaceMeta::new(name, kind, merge).stored_as(compression));
        drop(making);
        Ok(Keyspace(id))
    }
}
