//! Object storage as the database sees it: each request within bounds, its outcome seen and counted.
//!
//! Purpose: `SlateDB` makes requests again until they are answered, which is what a store wants in an outage.
//! It does so for most requests, but not for all that can happen to them. What it would give up for is made
//! such as it tries again:
//!
//! * The content of an object is part of its request: a connection that breaks within it, or stalls, or ends
//!   too early, fails the request.
//! * A bucket that is missing for a while is no missing object; nor is an upload whose end was done, of which
//!   the answer was lost: the service knows it no more, and the object is sent anew.
//! * An object that is not made because "it is there" may not be: services answer so, too, while another
//!   request is at work on it. Where none is found, none was made.
//! * A request that nothing comes of ends after a while. What uploads may take grows with their size, so slow
//!   networks get through.
//! * But not one that makes an object and bears no mark to know it by, as in a directory, which has no
//!   attributes: it may be done all the same, and the next attempt would take its own object for that of
//!   another writer. It is waited for, and told of as an outage.
//!
//! Thread safety: shared by all requests. Invariant: nothing is answered here that the storage has not
//! answered.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    RenameOptions, UploadPart,
};

use crate::health::Health;
use crate::traffic::{Class, Traffic};

type Answer<T> = object_store::Result<T>;

/// What uploads must come to at least (bytes in a second).
const UPLOAD_RATE_MIN: u64 = 128 << 10;

/// Who makes the errors that are made here.
const NAME: &str = "kvfs";

/// What is known of all requests of a store.
#[derive(Debug)]
pub(crate) struct Observer {
    pub(crate) health: Health,
    pub(crate) traffic: Traffic,
    /// A request of which nothing has come for so long has failed.
    pub(crate) request_time: Duration,
}

impl Observer {
    /// How long the answer to a request may take that sends so many bytes.
    fn limit(&self, sent: u64) -> Duration {
        self.request_time + Duration::from_secs(sent / UPLOAD_RATE_MIN)
    }

    /// An end to a wait for one answer.
    async fn within<T>(&self, sent: u64, answer: impl Future<Output = Answer<T>>) -> Answer<T> {
        let limit = self.limit(sent);
        tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| Err(no_answer(limit)))
    }

    /// Waits for the answer to a write that can't be made again, however long it takes.
    async fn without_end<T>(&self, sent: u64, answer: impl Future<Output = Answer<T>>) -> Answer<T> {
        let limit = self.limit(sent);
        let mut answer = pin!(answer);
        loop {
            match tokio::time::timeout(limit, &mut answer).await {
                Ok(answer) => return answer,
                Err(_) => self.judge(Class::Put, Some(&no_answer(limit))),
            }
        }
    }

    /// Makes a request, which sends so many bytes.
    async fn request<T>(
        &self,
        class: Class,
        sent: u64,
        answer: impl Future<Output = Answer<T>>,
    ) -> Answer<T> {
        self.traffic.count(class, sent);
        let answer = answer.await;
        self.judge(class, answer.as_ref().err());
        answer
    }

    fn judge(&self, class: Class, error: Option<&object_store::Error>) {
        let error = error.filter(|error| !is_answer(error));
        if error.is_some() {
            self.traffic.count_failed();
        }
        let Some(direction) = class.direction() else { return };
        match error {
            None => {
                if let Some(told) = self.health.answered(direction) {
                    tracing::info!("{told}");
                }
            }
            Some(error) => {
                if let Some(told) = self.health.failed(direction, error) {
                    tracing::warn!("{told}");
                }
            }
        }
    }

    /// A stream of answers, such as a list: each within bounds, judged as a whole.
    fn stream<T: Send + 'static>(
        self: &Arc<Self>,
        class: Class,
        answers: BoxStream<'static, Answer<T>>,
    ) -> BoxStream<'static, Answer<T>> {
        let begun = (Arc::clone(self), answers, false);
        let next = move |(observer, mut answers, is_over): (
            Arc<Self>,
            BoxStream<'static, Answer<T>>,
            bool,
        )| async move {
            if is_over {
                return None;
            }
            let next = observer.within(0, answers.next().map(Option::transpose)).await;
            match next.map_err(|error| without_bucket(class, error)) {
                Ok(Some(item)) => Some((Ok(item), (observer, answers, false))),
                Ok(None) => {
                    observer.judge(class, None);
                    None
                }
                Err(error) => {
                    observer.judge(class, Some(&error));
                    Some((Err(error), (observer, answers, true)))
                }
            }
        };
        stream::unfold(begun, next).boxed()
    }
}

/// Whether it says something of the object, and nothing of the storage.
fn is_answer(error: &object_store::Error) -> bool {
    matches!(
        error,
        object_store::Error::NotFound { .. }
            | object_store::Error::AlreadyExists { .. }
            | object_store::Error::Precondition { .. }
            | object_store::Error::NotModified { .. }
            | object_store::Error::NotSupported { .. }
            | object_store::Error::NotImplemented { .. }
    )
}

fn failure(text: String) -> object_store::Error {
    object_store::Error::Generic { store: NAME, source: text.into() }
}

fn no_answer(limit: Duration) -> object_store::Error {
    failure(format!("no answer in {limit:?}"))
}

/// Nothing but a bucket, or an upload that has ended, can be missing to a write, a bucket to a list; to a
/// read, where the service says so.
fn without_bucket(class: Class, error: object_store::Error) -> object_store::Error {
    let object_store::Error::NotFound { .. } = error else { return error };
    let text = error.to_string();
    let is_bucket = matches!(class, Class::Put | Class::List) || text.contains("NoSuchBucket");
    if is_bucket { failure(text) } else { error }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ObservedStore {
    inner: Arc<dyn ObjectStore>,
    observer: Arc<Observer>,
}

impl ObservedStore {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, observer: Arc<Observer>) -> Self {
        Self { inner, observer }
    }

    /// The whole answer, its content included.
    async fn get_whole(&self, location: &Path, options: GetOptions) -> Answer<GetResult> {
        let is_head = options.head;
        let got = self.observer.within(0, self.inner.get_opts(location, options)).await;
        let got = got.map_err(|error| without_bucket(Class::Get, error))?;
        if is_head {
            return Ok(got);
        }
        let (meta, range) = (got.meta.clone(), got.range.clone());
        let (attributes, extensions) = (got.attributes.clone(), got.extensions.clone());
        let promised = range.end - range.start;
        let content = self.collect(got).await?;
        let came: usize = content.iter().map(Bytes::len).sum();
        if came as u64 != promised {
            return Err(failure(format!("{location} has ended after {came} of {promised} bytes")));
        }
        self.observer.traffic.count_received(promised);
        let payload = GetResultPayload::Stream(stream::iter(content.into_iter().map(Ok)).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    /// Why an object was not made that "is there": a failure where there is none, or that can't be told.
    async fn why_refused(&self, location: &Path, refused: object_store::Error) -> object_store::Error {
        match self.head(location).await {
            Ok(_) => refused,
            Err(object_store::Error::NotFound { .. }) => failure(refused.to_string()),
            Err(error) => error,
        }
    }

    /// The content, as it comes.
    async fn collect(&self, got: GetResult) -> Answer<Vec<Bytes>> {
        if let GetResultPayload::File(..) = &got.payload {
            return Ok(vec![self.observer.within(0, got.bytes()).await?]);
        }
        let mut content = got.into_stream();
        let mut all = Vec::new();
        while let Some(more) = self.observer.within(0, content.try_next()).await? {
            all.push(more);
        }
        Ok(all)
    }
}

impl fmt::Display for ObservedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for ObservedStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Answer<PutResult> {
        let sent = payload.content_length() as u64;
        let is_create = matches!(options.mode, PutMode::Create);
        let is_unmarked = !matches!(options.mode, PutMode::Overwrite) && options.attributes.is_empty();
        let put = self.inner.put_opts(location, payload, options);
        let put = async {
            let put = if is_unmarked {
                self.observer.without_end(sent, put).await
            } else {
                self.observer.within(sent, put).await
            };
            match put.map_err(|error| without_bucket(Class::Put, error)) {
                Err(error @ object_store::Error::AlreadyExists { .. }) if is_create => {
                    Err(self.why_refused(location, error).await)
                }
                put => put,
            }
        };
        self.observer.request(Class::Put, sent, put).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Answer<Box<dyn MultipartUpload>> {
        let begin = async {
            let begun = self.observer.within(0, self.inner.put_multipart_opts(location, options)).await;
            begun.map_err(|error| without_bucket(Class::Put, error))
        };
        let inner = self.observer.request(Class::Put, 0, begin).await?;
        Ok(Box::new(ObservedUpload { inner, observer: Arc::clone(&self.observer) }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Answer<GetResult> {
        self.observer.request(Class::Get, 0, self.get_whole(location, options)).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Answer<Path>>) -> BoxStream<'static, Answer<Path>> {
        let observer = Arc::clone(&self.observer);
        let counted = locations.inspect_ok(move |_| observer.traffic.count(Class::Delete, 0)).boxed();
        self.observer.stream(Class::Delete, self.inner.delete_stream(counted))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Answer<ObjectMeta>> {
        self.observer.traffic.count(Class::List, 0);
        self.observer.stream(Class::List, self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Answer<ObjectMeta>> {
        self.observer.traffic.count(Class::List, 0);
        self.observer.stream(Class::List, self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Answer<ListResult> {
        let list = async {
            let list = self.observer.within(0, self.inner.list_with_delimiter(prefix)).await;
            list.map_err(|error| without_bucket(Class::List, error))
        };
        self.observer.request(Class::List, 0, list).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Answer<()> {
        let copy = self.observer.within(0, self.inner.copy_opts(from, to, options));
        self.observer.request(Class::Put, 0, copy).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Answer<()> {
        let rename = self.observer.within(0, self.inner.rename_opts(from, to, options));
        self.observer.request(Class::Put, 0, rename).await
    }
}

/// An object that comes in parts.
#[derive(Debug)]
struct ObservedUpload {
    inner: Box<dyn MultipartUpload>,
    observer: Arc<Observer>,
}

#[async_trait]
impl MultipartUpload for ObservedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let sent = data.content_length() as u64;
        let (part, observer) = (self.inner.put_part(data), Arc::clone(&self.observer));
        async move {
            let put = async {
                let put = observer.within(sent, part).await;
                put.map_err(|error| without_bucket(Class::Put, error))
            };
            observer.request(Class::Put, sent, put).await
        }
        .boxed()
    }

    async fn complete(&mut self) -> Answer<PutResult> {
        let complete = async {
            let completed = self.observer.within(0, self.inner.complete()).await;
            completed.map_err(|error| without_bucket(Class::Put, error))
        };
        self.observer.request(Class::Put, 0, complete).await
    }

    async fn abort(&mut self) -> Answer<()> {
        let abort = self.observer.within(0, self.inner.abort());
        self.observer.request(Class::Delete, 0, abort).await
    }
}
