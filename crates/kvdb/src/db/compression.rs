//! Settings of compression. The superblocks announce packed data before the manifest has a setting.
//!
//! Thread safety: settings change one at a time.

use kvfs_store::{Compression, Keyspace, Result};

use super::inner::Inner;
use super::keyspaces::KeyspaceMeta;
use crate::format::Feature;
use crate::run::Packing;
use crate::version::Edit;

impl Inner {
    pub(crate) fn set_compression(&self, keyspace: Keyspace, compression: Compression) -> Result<()> {
        self.check_accepting()?;
        // Held across look-up and edit, as by whoever makes keyspaces.
        let _making = self.making_keyspace.lock();
        if self.keyspaces.get(keyspace.0)?.compression == compression {
            return Ok(());
        }
        self.announce(Feature::Packed)?;
        let edit = Edit::SetCompression { keyspace: keyspace.0, compression };
        self.install(vec![edit], &[], &[], |view| view)?;
        self.keyspaces.set_compression(keyspace.0, compression);
        Ok(())
    }

    /// How data of a keyspace is to be packed now: not at all before that is announced.
    pub(crate) fn packing(&self, meta: &KeyspaceMeta) -> Packing {
        if !self.announced.has(Feature::Packed) {
            return Packing::default();
        }
        Packing { compression: meta.compression, merger: Some(meta.merger.clone()) }
    }
}
