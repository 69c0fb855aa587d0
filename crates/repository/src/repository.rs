//! A repository: making and opening it, which snapshots it has.
//!
//! Thread safety: belongs to one thread. Invariant: nothing is read or written before the key is known to be the right one.

use std::fmt;
use std::sync::Arc;

use kvfs_fs::transfer::StreamId;
use kvfs_objects::ObjectPlace;

use crate::config::{Config, Passphrase};
use crate::error::{RepositoryError, Result};
use crate::layout::{CONFIG, SNAPSHOTS, from_hex, manifest_object};
use crate::manifest::{Manifest, Summary};
use crate::remote::Remote;
use crate::seal::Sealer;

/// See the module.
pub struct Repository {
    remote: Remote,
    sealer: Arc<Sealer>,
}

impl fmt::Debug for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repository").field("url", &self.remote.url()).finish_non_exhaustive()
    }
}

impl Repository {
    /// Makes a repository where nothing is yet; what goes there is encrypted where there is a passphrase.
    ///
    /// # Errors
    /// [`RepositoryError::Occupied`]; the place can't be reached or written to.
    pub fn create(place: &ObjectPlace, passphrase: Option<&Passphrase>) -> Result<Self> {
        let remote = Remote::connect(place)?;
        check_vacant(&remote)?;
        let failed = |error| RepositoryError::Machine(format!("cannot make {}: {error}", place.url()));
        place.make_private().map_err(failed)?;
        Self::create_at(remote, passphrase)
    }

    pub(crate) fn create_at(remote: Remote, passphrase: Option<&Passphrase>) -> Result<Self> {
        check_vacant(&remote)?;
        let (config, key) = Config::new(passphrase)?;
        if !remote.put_new(CONFIG, config.encode()?)? {
            return Err(occupied(&remote, CONFIG));
        }
        Ok(Self { remote, sealer: Arc::new(Sealer::new(key.as_ref())) })
    }

    /// Whether what is in the repository at the place is encrypted.
    ///
    /// # Errors
    /// [`RepositoryError::NoRepository`]; the place can't be reached.
    pub fn is_encrypted(place: &ObjectPlace) -> Result<bool> {
        Ok(config(&Remote::connect(place)?)?.is_encrypted())
    }

    /// Opens the repository at the place.
    ///
    /// # Errors
    /// [`RepositoryError::NoRepository`], [`RepositoryError::WrongPassphrase`] and its relatives; the place can't be reached.
    pub fn open(place: &ObjectPlace, passphrase: Option<&Passphrase>) -> Result<Self> {
        Self::open_at(Remote::connect(place)?, passphrase)
    }

    pub(crate) fn open_at(remote: Remote, passphrase: Option<&Passphrase>) -> Result<Self> {
        let key = config(&remote)?.unlock(passphrase)?;
        Ok(Self { remote, sealer: Arc::new(Sealer::new(key.as_ref())) })
    }

    pub(crate) fn remote(&self) -> &Remote {
        &self.remote
    }

    pub(crate) fn sealer(&self) -> &Arc<Sealer> {
        &self.sealer
    }

    /// All snapshots, oldest first.
    ///
    /// # Errors
    /// The repository can't be read; damage.
    pub fn snapshots(&self) -> Result<Vec<Summary>> {
        let mut all: Vec<_> = self.manifests()?.iter().map(Manifest::summary).collect();
        all.sort_by_key(|summary| (summary.created, summary.id));
        Ok(all)
    }

    /// The snapshot of that name, or whose id begins so; `None`: the newest one.
    ///
    /// # Errors
    /// [`RepositoryError::NoSnapshot`], [`RepositoryError::Ambiguous`]; the repository can't be read.
    pub fn find(&self, name: Option<&str>) -> Result<Summary> {
        let mut all = self.snapshots()?;
        let missing = || RepositoryError::NoSnapshot(name.unwrap_or("(any)").to_owned());
        let Some(name) = name else {
            let newest = all.pop().ok_or_else(missing)?;
            return match all.iter().rfind(|summary| summary.store != newest.store) {
                None => Ok(newest),
                Some(other) => Err(RepositoryError::Ambiguous {
                    name: "of more than one store".to_owned(),
                    ids: format!("{}, {}, …", newest.id, other.id),
                }),
            };
        };
        let (named, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|summary| summary.name == name);
        let mut found = if named.is_empty() {
            rest.into_iter().filter(|summary| is_id_of(name, summary.id)).collect()
        } else {
            named
        };
        match (found.pop(), found.is_empty()) {
            (Some(only), true) => Ok(only),
            (Some(last), false) => {
                let ids: Vec<_> = found.iter().chain([&last]).map(|summary| summary.id.to_string()).collect();
                Err(RepositoryError::Ambiguous { name: name.to_owned(), ids: ids.join(", ") })
            }
            (None, _) => Err(missing()),
        }
    }

    /// Takes a snapshot away. Its space comes back with [`Self::prune`].
    ///
    /// # Errors
    /// The repository can't be written.
    pub fn delete(&self, id: StreamId) -> Result<()> {
        self.remote.delete([manifest_object(id)])
    }

    /// What a snapshot says of itself.
    pub(crate) fn manifest(&self, id: StreamId) -> Result<Manifest> {
        let object = manifest_object(id);
        let sealed = self.remote.get(&object)?.ok_or(RepositoryError::Missing(object))?;
        self.open_manifest(id, &sealed)
    }

    /// All manifests, in no order.
    pub(crate) fn manifests(&self) -> Result<Vec<Manifest>> {
        let mut ids = Vec::new();
        self.remote.list(SNAPSHOTS, |name| {
            ids.extend(from_hex(name).map(StreamId));
            Ok(())
        })?;
        let mut manifests = Vec::new();
        self.remote.get_all(ids.into_iter().map(|id| (id, manifest_object(id))), |id, sealed| {
            // One that was taken away meanwhile is none.
            if let Some(sealed) = sealed {
                manifests.push(self.open_manifest(id, &sealed)?);
            }
            Ok(())
        })?;
        Ok(manifests)
    }

    fn open_manifest(&self, id: StreamId, sealed: &[u8]) -> Result<Manifest> {
        let object = manifest_object(id);
        let manifest = Manifest::decode(&object, &self.sealer.open(&object, sealed)?)?;
        if manifest.begin().stream() != id {
            return Err(RepositoryError::damaged(object, "it is the manifest of another snapshot"));
        }
        Ok(manifest)
    }
}

/// Whether `text` is how the id begins, and not too little of it.
fn is_id_of(text: &str, id: StreamId) -> bool {
    const DIGITS_MIN: usize = 8;
    text.len() >= DIGITS_MIN && id.to_string().starts_with(text)
}

fn check_vacant(remote: &Remote) -> Result<()> {
    remote.list("", |name| Err(occupied(remote, name)))
}

fn occupied(remote: &Remote, found: &str) -> RepositoryError {
    RepositoryError::Occupied { url: remote.url().to_owned(), found: found.to_owned() }
}

fn config(remote: &Remote) -> Result<Config> {
    match remote.get(CONFIG)? {
        Some(bytes) => Config::decode(&bytes),
        None => Err(RepositoryError::NoRepository(remote.url().to_owned())),
    }
}
