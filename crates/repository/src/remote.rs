//! Objects of one place: asked for one by one, or several at once.
//!
//! Thread safety: belongs to one thread, which must not be one of a runtime's; requests run on threads of its
//! own. Invariant: what is under way at once is bounded in number, and with it in bytes: what is longer than
//! an object of its kind may be is not read.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use kvfs_objects::{ObjectPlace, Patience, brief};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::error::{RepositoryError, Result};
use crate::files;
use crate::layout::bytes_max;
use crate::seal::{SEAL_BYTES_MAX, Sealer};

/// Requests at once.
const REQUESTS_MAX: usize = 16;

/// A backup is to survive a few bad minutes of its network, and sixteen uploads of 4 MiB at once may share 1
/// Mbit/s.
const PATIENCE: Patience =
    Patience { request_time_max: Duration::from_mins(10), retries_max: 12, age_max: Duration::from_mins(30) };

/// How often an object that must not be there is written where no answer comes; the question whether it is
/// there, in between, waits for the network.
const NEW_TRIES_MAX: u32 = 3;

/// See the module.
pub(crate) struct Remote {
    runtime: Runtime,
    service: Arc<dyn ObjectStore>,
    prefix: Path,
    url: String,
    /// `None`: a service of tests.
    place: Option<ObjectPlace>,
}

impl Remote {
    pub(crate) fn connect(place: &ObjectPlace) -> Result<Self> {
        let failed = |error: object_store::Error| error_of(format!("reaching {}", place.url()), &error);
        let (service, prefix) = place.connect(PATIENCE).map_err(failed)?;
        let remote = Self::over(service, prefix, place.url())?;
        Ok(Self { place: Some(place.clone()), ..remote })
    }

    /// Over a service that is there.
    pub(crate) fn over(service: Arc<dyn ObjectStore>, prefix: Path, url: &str) -> Result<Self> {
        let mut builder = Builder::new_multi_thread();
        let built = builder.worker_threads(2).enable_all().thread_name("kvfs-repository").build();
        let failed = |error| RepositoryError::Machine(format!("cannot start threads: {error}"));
        Ok(Self { runtime: built.map_err(failed)?, service, prefix, url: url.to_owned(), place: None })
    }

    /// Where it is.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The directory, where the objects are files.
    pub(crate) fn directory(&self) -> Option<PathBuf> {
        self.place.as_ref().and_then(ObjectPlace::directory)
    }

    /// See [`ObjectPlace::make_private`].
    pub(crate) fn make_private(&self) -> Result<()> {
        let failed = |error| RepositoryError::Machine(format!("cannot make {}: {error}", self.url));
        self.place.as_ref().map_or(Ok(()), |place| place.make_private().map_err(failed))
    }

    fn path(&self, object: &str) -> Path {
        object.split('/').fold(self.prefix.clone(), Path::join)
    }

    /// What an object holds; `None`: there is none.
    pub(crate) fn get(&self, object: &str) -> Result<Option<Bytes>> {
        self.runtime.block_on(self.reading(object.to_owned()))
    }

    /// Writes an object that must not be there. Returns whether it was not. No client asks again for that
    /// where no answer has come, so what is there then tells.
    pub(crate) fn put_new(&self, object: &str, content: Vec<u8>) -> Result<bool> {
        let (path, content) = (self.path(object), Bytes::from(content));
        let mut tries_left = NEW_TRIES_MAX;
        loop {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            let put = self.service.put_opts(&path, content.clone().into(), options);
            let Err(error) = self.runtime.block_on(put) else { return Ok(true) };
            tries_left -= 1;
            match self.get(object) {
                Ok(Some(there)) => return Ok(there == content),
                Ok(None) if tries_left > 0 => {}
                _ => return Err(error_of(format!("writing {object}"), &error)),
            }
        }
    }

    /// Writes an object in the place of another one, which all see until they see this one, whole.
    pub(crate) fn replace(&self, object: &str, content: Vec<u8>) -> Result<()> {
        let written = self.runtime.block_on(self.service.put(&self.path(object), content.into()));
        written.map(drop).map_err(|error| error_of(format!("writing {object}"), &error))
    }

    /// Removes objects, many by one request where the service can; that one is gone already is no error.
    pub(crate) fn delete(&self, objects: impl IntoIterator<Item = String>) -> Result<()> {
        let paths: Vec<_> = objects.into_iter().map(|object| Ok(self.path(&object))).collect();
        let mut removed = self.service.delete_stream(futures::stream::iter(paths).boxed());
        while let Some(result) = self.runtime.block_on(removed.next()) {
            match result {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error_of("removing objects".to_owned(), &error)),
            }
        }
        Ok(())
    }

    /// When an object was written, by the clock of the service (time since 1970); `None`: it is not there.
    pub(crate) fn written(&self, object: &str) -> Result<Option<Duration>> {
        match self.runtime.block_on(self.service.head(&self.path(object))) {
            Ok(meta) => Ok(Some(written(&meta))),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error_of(format!("looking at {object}"), &error)),
        }
    }

    /// Calls `each` with the name of every object below `dir` (empty: the whole place), and when it was
    /// written by the clock of the service. No object is left out: in directories the client would pass over
    /// files that can't be looked at.
    pub(crate) fn list(&self, dir: &str, mut each: impl FnMut(&str, Duration) -> Result<()>) -> Result<()> {
        if let Some(place) = self.directory() {
            return files::list(&place.join(dir), &mut each);
        }
        let at = if dir.is_empty() { self.prefix.clone() } else { self.path(dir) };
        let failed = |error: object_store::Error| error_of(format!("listing {at}"), &error);
        let mut objects = self.service.list(Some(&at));
        while let Some(meta) = self.runtime.block_on(objects.try_next()).map_err(failed)? {
            let name = meta.location.as_ref().strip_prefix(at.as_ref()).unwrap_or(meta.location.as_ref());
            each(name.trim_start_matches('/'), written(&meta))?;
        }
        Ok(())
    }

    /// Reads objects, several at once, and calls `each` with what was said of each and what it holds, or how
    /// it is damaged, in their order.
    pub(crate) fn get_all<T>(
        &self,
        objects: impl IntoIterator<Item = (T, String)>,
        mut each: impl FnMut(T, Result<Option<Bytes>>) -> Result<()>,
    ) -> Result<()> {
        let (mut objects, mut under_way) = (objects.into_iter().fuse(), VecDeque::new());
        loop {
            while under_way.len() < REQUESTS_MAX
                && let Some((what, object)) = objects.next()
            {
                under_way.push_back((what, self.start_get(object)));
            }
            let Some((what, pending)) = under_way.pop_front() else { return Ok(()) };
            match self.finish(pending) {
                Err(error) if !matches!(error, RepositoryError::Damaged { .. }) => return Err(error),
                found => each(what, found)?,
            }
        }
    }

    /// Begins to read an object.
    pub(crate) fn start_get(&self, object: String) -> Pending<Option<Bytes>> {
        Pending(self.runtime.spawn(self.reading(object)))
    }

    /// Reads an object. One that is there and can't be read is damaged, as by a bad sector: all others may be
    /// sound.
    fn reading(&self, object: String) -> impl Future<Output = Result<Option<Bytes>>> + use<> {
        let (service, path) = (Arc::clone(&self.service), self.path(&object));
        let file = self.directory().map(|dir| dir.join(&object));
        async move {
            let read = match service.get(&path).await {
                Ok(found) if found.meta.size > (bytes_max(&object) + SEAL_BYTES_MAX) as u64 => {
                    return Err(RepositoryError::damaged(object, "it is longer than any such object"));
                }
                Ok(found) => found.bytes().await,
                Err(error) => Err(error),
            };
            let error = match read {
                Ok(content) => return Ok(Some(content)),
                Err(object_store::Error::NotFound { .. }) => return Ok(None),
                Err(error) => error,
            };
            // The client of directories opens a file to look at it.
            let is_there = match file {
                Some(file) => std::fs::metadata(file).is_ok(),
                None => service.head(&path).await.is_ok(),
            };
            if !is_there {
                return Err(error_of(format!("reading {object}"), &error));
            }
            Err(RepositoryError::damaged(object, format!("it can't be read: {}", brief(&error.to_string()))))
        }
    }

    /// Begins to seal and write an object; its length is what comes of it (bytes).
    fn start_put(&self, object: String, content: Bytes, sealer: &Arc<Sealer>) -> Pending<u64> {
        let (service, path, sealer) = (Arc::clone(&self.service), self.path(&object), Arc::clone(sealer));
        Pending(self.runtime.spawn(async move {
            let name = object.clone();
            let sealed = tokio::task::spawn_blocking(move || sealer.seal(&name, &content)).await;
            let sealed =
                sealed.map_err(|error| RepositoryError::Machine(format!("sealing {object}: {error}")))??;
            let len = sealed.len() as u64;
            let put = service.put(&path, sealed.into()).await;
            put.map(|_| len).map_err(|error| error_of(format!("writing {object}"), &error))
        }))
    }

    /// Waits for what was begun.
    pub(crate) fn finish<T>(&self, mut pending: Pending<T>) -> Result<T> {
        let failed = |error| RepositoryError::Machine(format!("a request came to no end: {error}"));
        self.runtime.block_on(&mut pending.0).map_err(failed)?
    }
}

/// What was begun, and goes on by itself. Given up where it is dropped.
pub(crate) struct Pending<T>(JoinHandle<Result<T>>);

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Objects that are being written.
#[derive(Default)]
pub(crate) struct Uploads {
    under_way: VecDeque<Pending<u64>>,
    /// Objects that are written.
    pub(crate) objects: u64,
    /// Their length (bytes).
    pub(crate) bytes: u64,
}

impl Uploads {
    /// Begins to write one more; waits for others where there are many.
    pub(crate) fn add(
        &mut self,
        remote: &Remote,
        object: String,
        content: Bytes,
        sealer: &Arc<Sealer>,
    ) -> Result<()> {
        while self.under_way.len() >= REQUESTS_MAX {
            self.wait_for_one(remote)?;
        }
        self.under_way.push_back(remote.start_put(object, content, sealer));
        Ok(())
    }

    /// All of them are written when it returns.
    pub(crate) fn wait(&mut self, remote: &Remote) -> Result<()> {
        while !self.under_way.is_empty() {
            self.wait_for_one(remote)?;
        }
        Ok(())
    }

    fn wait_for_one(&mut self, remote: &Remote) -> Result<()> {
        if let Some(pending) = self.under_way.pop_front() {
            self.bytes += remote.finish(pending)?;
            self.objects += 1;
        }
        Ok(())
    }
}

fn written(meta: &ObjectMeta) -> Duration {
    Duration::from_millis(meta.last_modified.timestamp_millis().max(0) as u64)
}

fn error_of(what: String, error: &object_store::Error) -> RepositoryError {
    RepositoryError::Objects { what, message: brief(&error.to_string()) }
}
