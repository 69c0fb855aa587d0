//! A repository: making and opening it, which snapshots it has.
//!
//! Thread safety: belongs to one thread. Invariant: nothing is read or written before the key is known to be
//! the right one.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::transfer::StreamId;
use kvfs_objects::ObjectPlace;

use crate::chunks::{marked, missing};
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

/// What a repository has.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// Snapshots, oldest first.
    pub snapshots: Vec<Summary>,
    /// What is wrong with others, which can't be read.
    pub damaged: Vec<RepositoryError>,
}

/// A snapshot by its id, and what it is, if that can be read.
type Entry = (StreamId, Result<Summary>);

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

    /// Keeps the key under another passphrase: nothing else is written anew. Who has a copy of what the
    /// repository said of itself before still opens it by the former passphrase. Of two changes at once the
    /// later one stays.
    ///
    /// # Errors
    /// [`RepositoryError::WrongPassphrase`] and its relatives; the place can't be written to. The former one
    /// is the passphrase then.
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

    /// All snapshots.
    ///
    /// # Errors
    /// The repository can't be read.
    pub fn snapshots(&self) -> Result<Listing> {
        let mut listing = Listing::default();
        for (_, summary) in self.entries()? {
            match summary {
                Ok(summary) => listing.snapshots.push(summary),
                Err(error) => listing.damaged.push(error),
            }
        }
        Ok(listing)
    }

    /// The snapshot of that name or id, or whose id begins so; `None`: the newest one. Others may be damaged.
    ///
    /// # Errors
    /// [`RepositoryError::NoSnapshot`], [`RepositoryError::Ambiguous`]; it is damaged; the repository can't
    /// be read.
    pub fn find(&self, name: Option<&str>) -> Result<Summary> {
        if let Some(id) = name.map_or(Ok(None), |name| self.whole_id(name))? {
            return Ok(self.manifest(id)?.summary());
        }
        pick(&self.entries()?, name)?.1.clone()
    }

    /// The ids of the snapshots that are meant as in [`Repository::find`], also where they are damaged.
    ///
    /// # Errors
    /// As there.
    pub fn find_each(&self, names: &[String]) -> Result<Vec<StreamId>> {
        let whole = names.iter().map(|name| self.whole_id(name)).collect::<Result<Vec<_>>>()?;
        let all = if whole.iter().all(Option::is_some) { Vec::new() } else { self.entries()? };
        let meant = |name| pick(&all, Some(name)).map(|(id, _)| *id);
        names.iter().zip(whole).map(|(name, id)| id.map_or_else(|| meant(name), Ok)).collect()
    }

    /// The id that this is, where there is such a snapshot.
    fn whole_id(&self, name: &str) -> Result<Option<StreamId>> {
        let Some(id) = from_hex(name).map(StreamId) else { return Ok(None) };
        Ok(self.remote.written(&manifest_object(id))?.map(|_| id))
    }

    /// Oldest first; behind them those that can't be read.
    fn entries(&self) -> Result<Vec<Entry>> {
        let mut entries: Vec<Entry> = Vec::new();
        self.each_manifest(|id, manifest| {
            entries.push((id, manifest.map(|manifest| manifest.summary())));
            Ok(())
        })?;
        entries.sort_by_key(|(id, summary)| {
            let place = summary.as_ref().map(|summary| (summary.created, summary.position));
            (place.unwrap_or((Duration::MAX, u64::MAX)), *id)
        });
        Ok(entries)
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

    /// Calls `each` with every manifest, or with what is wrong with it. A few are in memory at a time.
    pub(crate) fn each_manifest(
        &self,
        mut each: impl FnMut(StreamId, Result<Manifest>) -> Result<()>,
    ) -> Result<()> {
        let mut ids = Vec::new();
        self.remote.list(SNAPSHOTS, |name, _| {
            ids.extend(from_hex(name).map(StreamId));
            Ok(())
        })?;
        self.remote.get_all(ids.into_iter().map(|id| (id, manifest_object(id))), |id, sealed| {
            // One that was taken away meanwhile is none.
            let Some(sealed) = sealed.transpose() else { return Ok(()) };
            each(id, sealed.and_then(|sealed| self.open_manifest(id, &sealed)))
        })
    }

    /// Whether a snapshot and all that it needs is there, as far as that is told without reading its content,
    /// and nothing of it is marked as damaged.
    pub(crate) fn is_whole(&self, id: StreamId) -> Result<bool> {
        let mut needed = HashSet::new();
        let mut need = |id| {
            needed.insert(id);
        };
        match self.manifest(id).and_then(|manifest| self.each_reference(&manifest, &mut need)) {
            Err(error) if error.is_damage() => Ok(false),
            Err(error) => Err(error),
            Ok(()) if !marked(&self.remote, &self.sealer)?.is_disjoint(&needed) => Ok(false),
            Ok(()) => Ok(missing(&self.remote, needed)?.is_empty()),
        }
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
fn pick<'e>(all: &'e [Entry], name: Option<&str>) -> Result<&'e Entry> {
    let missing = || RepositoryError::NoSnapshot(name.unwrap_or("(any)").to_owned());
    let Some(name) = name else { return pick_newest(all)?.ok_or_else(missing) };
    let is_named = |(_, summary): &&Entry| summary.as_ref().is_ok_and(|summary| summary.name == name);
    let mut found: Vec<_> = all.iter().filter(is_named).collect();
    if found.is_empty() {
        found = all.iter().filter(|(id, _)| is_id_of(name, *id)).collect();
    }
    match found[..] {
        [] => match all.iter().find_map(|(_, summary)| summary.as_ref().err()) {
            Some(error) => {
                Err(RepositoryError::NameUnknown { name: name.to_owned(), damaged: error.to_string() })
            }
            None => Err(missing()),
        },
        [only] => Ok(only),
        _ => {
            let ids: Vec<_> = found.iter().map(|(id, _)| id.to_string()).collect();
            Err(RepositoryError::Ambiguous { name: name.to_owned(), ids: ids.join(", ") })
        }
    }
}

/// That of the last time, if it is the last one in its store as well: a clock may have been wrong.
pub(crate) fn pick_newest(all: &[Entry]) -> Result<Option<&Entry>> {
    let mut newest: Option<(&Entry, &Summary)> = None;
    for entry in all.iter().rev() {
        // A damaged one may be the newest.
        let summary = entry.1.as_ref().map_err(|error| RepositoryError::NewestUnknown(error.to_string()))?;
        match newest {
            None => newest = Some((entry, summary)),
            Some((_, newest)) if newest.store == summary.store && newest.position >= summary.position => {}
            Some((_, newest)) if newest.store == summary.store => {
                return Err(RepositoryError::NewestUnknown(format!(
                    "\"{}\" ({}) has the later time, and \"{}\" ({}) was made behind it",
                    newest.name, newest.id, summary.name, summary.id
                )));
            }
            Some((_, newest)) => {
                return Err(RepositoryError::Ambiguous {
                    name: "of more than one store".to_owned(),
                    ids: format!("{}, {}, …", newest.id, summary.id),
                });
            }
        }
    }
    Ok(newest.map(|(entry, _)| entry))
}

/// Whether `text` is how the id begins, and not too little of it.
fn is_id_of(text: &str, id: StreamId) -> bool {
    const DIGITS_MIN: usize = 8;
    text.len() >= DIGITS_MIN && id.to_string().starts_with(text)
}

fn occupied(remote: &Remote, found: &str) -> RepositoryError {
    RepositoryError::Occupied { url: remote.url().to_owned(), found: found.to_owned() }
}
