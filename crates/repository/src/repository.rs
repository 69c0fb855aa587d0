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

/// A repository that is there, and not open yet.
pub struct Reached {
    remote: Remote,
    config: Config,
}

impl fmt::Debug for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reached").field("url", &self.remote.url()).finish_non_exhaustive()
    }
}

impl Reached {
    /// Whether what is there is encrypted, so that it takes a passphrase.
    pub fn is_encrypted(&self) -> bool {
        self.config.is_encrypted()
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`RepositoryError::WrongPassphrase`] and its relatives.
    pub fn open(self, passphrase: Option<&Passphrase>) -> Result<Repository> {
        let key = self.config.unlock(passphrase)?;
        Ok(Repository { remote: self.remote, sealer: Arc::new(Sealer::new(key.as_ref())) })
    }

    /// Keeps the key under another passphrase: nothing else is written anew. Who has a copy of what the repository said of itself before
    /// still opens it by the former passphrase. Of two changes at once the later one stays.
    ///
    /// # Errors
    /// [`RepositoryError::WrongPassphrase`] and its relatives; the place can't be written to. The former one is the passphrase then.
    pub fn change_passphrase(self, former: &Passphrase, passphrase: &Passphrase) -> Result<()> {
        let key = self.config.unlock(Some(former))?.ok_or(RepositoryError::NotEncrypted)?;
        self.remote.replace(CONFIG, self.config.keeping(&key, passphrase)?.encode()?)
    }
}

impl Repository {
    /// Makes a repository where nothing is yet; what goes there is encrypted where there is a passphrase.
    ///
    /// # Errors
    /// [`RepositoryError::Occupied`]; the place can't be reached or written to.
    pub fn create(place: &ObjectPlace, passphrase: Option<&Passphrase>) -> Result<Self> {
        Self::create_at(Remote::connect(place)?, passphrase)
    }

    pub(crate) fn create_at(remote: Remote, passphrase: Option<&Passphrase>) -> Result<Self> {
        remote.list("", |name, _| Err(occupied(&remote, name)))?;
        remote.make_private()?;
        let (config, key) = Config::new(passphrase)?;
        if !remote.put_new(CONFIG, config.encode()?)? {
            return Err(occupied(&remote, CONFIG));
        }
        Ok(Self { remote, sealer: Arc::new(Sealer::new(key.as_ref())) })
    }

    /// Reaches the repository at the place, to open it.
    ///
    /// # Errors
    /// [`RepositoryError::NoRepository`], [`RepositoryError::OtherVersion`]; the place can't be reached.
    pub fn reach(place: &ObjectPlace) -> Result<Reached> {
        Self::reach_at(Remote::connect(place)?)
    }

    pub(crate) fn reach_at(remote: Remote) -> Result<Reached> {
        match remote.get(CONFIG)? {
            Some(bytes) => Ok(Reached { config: Config::decode(&bytes)?, remote }),
            None => Err(RepositoryError::NoRepository(remote.url().to_owned())),
        }
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
        Ok(self.manifests()?.iter().map(Manifest::summary).collect())
    }

    /// The snapshot of that name, or whose id begins so; `None`: the newest one.
    ///
    /// # Errors
    /// [`RepositoryError::NoSnapshot`], [`RepositoryError::Ambiguous`]; the repository can't be read.
    pub fn find(&self, name: Option<&str>) -> Result<Summary> {
        pick(&self.snapshots()?, name)
    }

    /// As [`Repository::find`], of each of these names.
    ///
    /// # Errors
    /// As there.
    pub fn find_each(&self, names: &[String]) -> Result<Vec<Summary>> {
        let all = self.snapshots()?;
        names.iter().map(|name| pick(&all, Some(name))).collect()
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

    /// All manifests, that of the oldest snapshot first.
    pub(crate) fn manifests(&self) -> Result<Vec<Manifest>> {
        let mut ids = Vec::new();
        self.remote.list(SNAPSHOTS, |name, _| {
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
        manifests.sort_by_cached_key(|manifest| {
            let summary = manifest.summary();
            (summary.created, summary.id)
        });
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

/// See [`Repository::find`]; `all`: oldest first.
fn pick(all: &[Summary], name: Option<&str>) -> Result<Summary> {
    let missing = || RepositoryError::NoSnapshot(name.unwrap_or("(any)").to_owned());
    let Some(name) = name else {
        let newest = all.last().ok_or_else(missing)?;
        return match all.iter().rfind(|summary| summary.store != newest.store) {
            None => Ok(newest.clone()),
            Some(other) => Err(RepositoryError::Ambiguous {
                name: "of more than one store".to_owned(),
                ids: format!("{}, {}, …", newest.id, other.id),
            }),
        };
    };
    let mut found: Vec<_> = all.iter().filter(|summary| summary.name == name).collect();
    if found.is_empty() {
        found = all.iter().filter(|summary| is_id_of(name, summary.id)).collect();
    }
    match found[..] {
        [] => Err(missing()),
        [only] => Ok(only.clone()),
        _ => {
            let ids: Vec<_> = found.iter().map(|summary| summary.id.to_string()).collect();
            Err(RepositoryError::Ambiguous { name: name.to_owned(), ids: ids.join(", ") })
        }
    }
}

/// Whether `text` is how the id begins, and not too little of it.
fn is_id_of(text: &str, id: StreamId) -> bool {
    const DIGITS_MIN: usize = 8;
    text.len() >= DIGITS_MIN && id.to_string().starts_with(text)
}

fn occupied(remote: &Remote, found: &str) -> RepositoryError {
    RepositoryError::Occupied { url: remote.url().to_owned(), found: found.to_owned() }
}
