//! Object storage in memory, with a clock of its own, that stops on demand, and in which other things happen
//! while a request lasts.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// What happens while a request lasts.
type Meanwhile = Box<dyn FnOnce() + Send>;

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    Get,
    Put,
    List,
}

/// See the module.
#[derive(Default)]
pub(super) struct Service {
    objects: InMemory,
    /// When each object was written (seconds since 1970).
    written: Mutex<HashMap<Path, i64>>,
    pub(super) now: AtomicI64,
    /// Writes and removals that are still done; negative: all.
    writes_left: AtomicI64,
    pub(super) bytes_read: AtomicU64,
    /// In the n-th request of the kind from now on whose object has that in its name (n counts from 0).
    meanwhile: Mutex<Option<(Request, &'static str, usize, Meanwhile)>>,
    /// This object, or the whole service where it is empty, is there and can't be read.
    unreadable: Mutex<Option<Path>>,
    /// Of the next object with that in its name no answer comes.
    lost: Mutex<Option<&'static str>>,
}

impl Service {
    pub(super) fn new() -> Arc<Self> {
        let service = Self::default();
        service.now.store(1_800_000_000, Ordering::Relaxed);
        service.writes_left.store(-1, Ordering::Relaxed);
        Arc::new(service)
    }

    /// Stops after so many writes and removals; `None`: no longer.
    pub(super) fn stop_after(&self, writes: Option<i64>) {
        self.writes_left.store(writes.unwrap_or(-1), Ordering::SeqCst);
    }

    pub(super) fn names(&self) -> Vec<Path> {
        let listed = self.objects.list(None).map(|meta| meta.unwrap().location).collect::<Vec<_>>();
        let mut names = futures::executor::block_on(listed);
        names.sort();
        names
    }

    pub(super) fn content(&self, name: &Path) -> Vec<u8> {
        let found = futures::executor::block_on(async { self.objects.get(name).await?.bytes().await });
        found.unwrap().to_vec()
    }

    /// Without a word to what uses it; `None` removes.
    pub(super) fn replace(&self, name: &Path, content: Option<Vec<u8>>) {
        futures::executor::block_on(async {
            match content {
                Some(content) => self.objects.put(name, content.into()).await.map(drop),
                None => self.objects.delete(name).await,
            }
        })
        .unwrap();
    }

    /// Lets `then` happen behind the reading, or in front of the writing or the list, that the `skipped`th
    /// request after the first one does.
    pub(super) fn meanwhile(
        &self,
        (kind, part, skipped): (Request, &'static str, usize),
        then: impl FnOnce() + Send + 'static,
    ) {
        *self.meanwhile.lock().unwrap() = Some((kind, part, skipped, Box::new(then)));
    }

    /// The next object of such a name is written, and no answer comes.
    pub(super) fn lose_answer(&self, part: &'static str) {
        *self.lost.lock().unwrap() = Some(part);
    }

    /// From now on this object alone can't be read; with an empty name nothing can; `None`: all can.
    pub(super) fn make_unreadable(&self, name: Option<Path>) {
        *self.unreadable.lock().unwrap() = name;
    }

    /// Whether what is to happen has happened.
    pub(super) fn is_over(&self) -> bool {
        self.meanwhile.lock().unwrap().is_none()
    }

    pub(super) fn pass(&self, hours: i64) {
        self.now.fetch_add(hours * 3600, Ordering::SeqCst);
    }

    fn happen(&self, kind: Request, at: &Path) {
        let mut meanwhile = self.meanwhile.lock().unwrap();
        let is_it = |(of, part, skipped, _): &mut (Request, &str, usize, Meanwhile)| {
            let is_meant = *of == kind && at.as_ref().contains(*part);
            let is_first = is_meant && *skipped == 0;
            *skipped -= usize::from(is_meant && !is_first);
            is_first
        };
        let now = meanwhile.take_if(is_it);
        drop(meanwhile);
        if let Some((.., then)) = now {
            // Not on a thread of a runtime, which may not wait for another one.
            std::thread::spawn(then).join().unwrap();
        }
    }

    fn date(&self, meta: &mut ObjectMeta) {
        if let Some(&seconds) = self.written.lock().unwrap().get(&meta.location) {
            meta.last_modified = DateTime::<Utc>::from_timestamp(seconds, 0).unwrap();
        }
    }

    fn admit(&self) -> Result<()> {
        let left = self.writes_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| match left {
            0 => None,
            left if left < 0 => Some(left),
            left => Some(left - 1),
        });
        left.map(drop).map_err(|_| Error::Generic { store: "test", source: "it has stopped".into() })
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Service")
    }
}

#[async_trait]
impl ObjectStore for Service {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.admit()?;
        self.happen(Request::Put, at);
        let put = self.objects.put_opts(at, payload, options).await?;
        self.written.lock().unwrap().insert(at.clone(), self.now.load(Ordering::SeqCst));
        match self.lost.lock().unwrap().take_if(|part| at.as_ref().contains(*part)) {
            None => Ok(put),
            Some(_) => Err(Error::Generic { store: "test", source: "no answer has come".into() }),
        }
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        let is_head = options.head;
        let unreadable = self.unreadable.lock().unwrap().clone();
        if unreadable.is_some_and(|name| name.as_ref().is_empty() || name == *at && !is_head) {
            return Err(Error::Generic { store: "tests", source: "Input/output error (os error 5)".into() });
        }
        let mut found = self.objects.get_opts(at, options).await?;
        self.bytes_read.fetch_add(found.range.end - found.range.start, Ordering::SeqCst);
        self.date(&mut found.meta);
        if !is_head {
            self.happen(Request::Get, at);
        }
        Ok(found)
    }

    async fn get_ranges(&self, at: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.objects.get_ranges(at, ranges).await
    }

    fn delete_stream(&self, names: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        match self.admit() {
            Ok(()) => self.objects.delete_stream(names),
            Err(error) => futures::stream::once(async { Err(error) }).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.happen(Request::List, &prefix.cloned().unwrap_or_default());
        let listed = futures::executor::block_on(self.objects.list(prefix).collect::<Vec<_>>());
        let dated = listed.into_iter().map(|meta| {
            let mut meta = meta?;
            self.date(&mut meta);
            Ok(meta)
        });
        futures::stream::iter(dated.collect::<Vec<_>>()).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}
