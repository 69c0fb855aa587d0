//! Object storage that fails: a service in memory behind a network of which a test says what it does.
//!
//! Purpose: which request meets which fault follows from a seed, the kind of the request, where its object
//! lies, and how many there were before, so it does not depend on how threads take turns. An outage is
//! switched on and off. A crash leaves what the storage has, and the crashed process behind: of it nothing
//! arrives any more.
//!
//! Thread safety: shared by all requests. Invariant: a request that has succeeded has done what it says,
//! whatever has failed before.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use kvfs_device::Rng;
use kvfs_engine_slatedb::seam::async_trait::async_trait;
use kvfs_engine_slatedb::seam::futures::stream::{self, BoxStream};
use kvfs_engine_slatedb::seam::futures::{FutureExt, StreamExt, TryStreamExt};
use kvfs_engine_slatedb::seam::object_store::memory::InMemory;
use kvfs_engine_slatedb::seam::object_store::path::Path;
use kvfs_engine_slatedb::seam::object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use kvfs_engine_slatedb::seam::tokio;

/// What becomes of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// It takes its time.
    Latency,
    /// 500, and nothing was done.
    ServerError,
    /// 503 `SlowDown`, and nothing was done.
    SlowDown,
    /// The connection is reset before the request arrives.
    Reset,
    /// It is done, and the answer is lost.
    LostAnswer,
    /// The content, or the list, stops coming in the middle.
    Stall,
    /// The connection is reset in the middle of the content, or of the list.
    Cut,
    /// The content ends too early, and nothing says so.
    Short,
}

pub(crate) const FAULTS: [Fault; 8] = [
    Fault::Latency,
    Fault::ServerError,
    Fault::SlowDown,
    Fault::Reset,
    Fault::LostAnswer,
    Fault::Stall,
    Fault::Cut,
    Fault::Short,
];

/// What becomes of all requests, until it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outage {
    None,
    /// Connections are refused.
    Down,
    /// Nothing answers.
    Silent,
    /// Nothing can be written.
    Full,
    /// Credentials are refused.
    Expired,
    /// The service knows no such bucket.
    NoBucket,
}

/// An answer that is true of the service, and tells another story than the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Misleading {
    /// The end of an upload is done, and its answer lost; the client that makes it again is told that there
    /// is no such upload.
    NoSuchUpload,
    /// An object that may not be there yet is not made, though there is none: another request is at work on
    /// it (409).
    Conflict,
    /// An object that may not be there yet is made, and the answer lost.
    LostCreate,
    /// As well, and the client that makes it again is told that it is there.
    RepeatedCreate,
}

/// What a slow request takes.
const SLOW: Duration = Duration::from_millis(100);

#[derive(Debug)]
struct Network {
    seed: u64,
    /// Requests of a thousand that meet a fault.
    rate: u64,
    outage: Outage,
    /// Of every request.
    latency: Duration,
    /// By kind of request, and of object.
    counts: HashMap<(&'static str, String), u64>,
    met: HashMap<Fault, u64>,
    /// So many requests are still to get such an answer.
    misleading: HashMap<Misleading, u64>,
}

/// The storage, and the network in front of it.
#[derive(Debug)]
pub(crate) struct Cloud {
    inner: Arc<InMemory>,
    network: Mutex<Network>,
    /// Processes so far; those before the last one have crashed.
    processes: AtomicU64,
    requests: AtomicU64,
    /// Contents that are on their way, now and at most.
    reads: (AtomicU64, AtomicU64),
}

impl Cloud {
    /// `rate` requests of a thousand meet a fault.
    pub(crate) fn new(seed: u64, rate: u64) -> Arc<Self> {
        let (counts, met, misleading) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (outage, latency) = (Outage::None, Duration::ZERO);
        let network = Network { seed, rate, outage, latency, counts, met, misleading };
        Arc::new(Self {
            inner: Arc::new(InMemory::new()),
            network: Mutex::new(network),
            processes: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            reads: Default::default(),
        })
    }

    /// As a new process reaches it. Those before have crashed.
    pub(crate) fn crash(self: &Arc<Self>) -> Arc<dyn ObjectStore> {
        let process = self.processes.fetch_add(1, Ordering::SeqCst) + 1;
        Arc::new(Reached { cloud: Arc::clone(self), process, is_cut_off: Arc::default() })
    }

    /// As another process does, beside the one that is there.
    pub(crate) fn beside(self: &Arc<Self>) -> Arc<dyn ObjectStore> {
        self.beside_behind(&Arc::default())
    }

    /// The same, which finds its connections refused while it is cut off.
    pub(crate) fn beside_behind(self: &Arc<Self>, is_cut_off: &Arc<AtomicBool>) -> Arc<dyn ObjectStore> {
        let (cloud, is_cut_off) = (Arc::clone(self), Arc::clone(is_cut_off));
        Arc::new(Reached { cloud, process: u64::MAX, is_cut_off })
    }

    pub(crate) fn set(&self, outage: Outage) {
        self.network.lock().unwrap().outage = outage;
    }

    pub(crate) fn set_latency(&self, latency: Duration) {
        self.network.lock().unwrap().latency = latency;
    }

    /// The next so many requests that can be answered so are.
    pub(crate) fn mislead(&self, by: Misleading, count: u64) {
        self.network.lock().unwrap().misleading.insert(by, count);
    }

    /// So many are still to come.
    pub(crate) fn misleads(&self, by: Misleading) -> u64 {
        self.network.lock().unwrap().misleading.get(&by).copied().unwrap_or(0)
    }

    fn is_misleading(&self, by: Misleading) -> bool {
        let mut network = self.network.lock().unwrap();
        let Some(left) = network.misleading.get_mut(&by).filter(|left| **left > 0) else { return false };
        *left -= 1;
        true
    }

    /// How many requests have met it.
    pub(crate) fn met(&self, fault: Fault) -> u64 {
        self.network.lock().unwrap().met.get(&fault).copied().unwrap_or(0)
    }

    /// Requests of such a kind so far, for objects of that directory.
    pub(crate) fn count(&self, kind: &'static str, directory: &str) -> u64 {
        self.network.lock().unwrap().counts.get(&(kind, directory.to_owned())).copied().unwrap_or(0)
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// So many contents were on their way at the same time, at most, since the last call.
    pub(crate) fn reads_at_once_max(&self) -> u64 {
        self.reads.1.swap(0, Ordering::SeqCst)
    }

    /// What becomes of the next request of this kind.
    fn next(&self, kind: &'static str, location: &Path) -> (Outage, Option<Fault>, Duration) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let directory = location.parts().next().map(|part| part.as_ref().to_owned()).unwrap_or_default();
        let mut network = self.network.lock().unwrap();
        let count = network.counts.entry((kind, directory.clone())).or_default();
        *count += 1;
        let mut hasher = DefaultHasher::new();
        (kind, directory, *count, network.seed).hash(&mut hasher);
        let mut rng = Rng::new(hasher.finish());
        let fault = rng.chance(network.rate, 1000).then(|| FAULTS[rng.index(FAULTS.len())]);
        if let Some(fault) = fault {
            *network.met.entry(fault).or_default() += 1;
        }
        (network.outage, fault, network.latency)
    }

    fn is_alive(&self, process: u64) -> bool {
        self.processes.load(Ordering::SeqCst) <= process
    }
}

fn failure(text: &str) -> Error {
    Error::Generic { store: "Cloud", source: text.into() }
}

/// As one process reaches it.
#[derive(Debug, Clone)]
struct Reached {
    cloud: Arc<Cloud>,
    process: u64,
    is_cut_off: Arc<AtomicBool>,
}

/// What is left of a fault when the request has arrived.
type Behind = Option<Fault>;

impl Reached {
    /// Returns when the request has arrived.
    async fn arrive(&self, kind: &'static str, location: &Path, is_write: bool) -> Result<Behind> {
        let (outage, fault, latency) = self.cloud.next(kind, location);
        if self.is_cut_off.load(Ordering::SeqCst) {
            return Err(failure("connection refused"));
        }
        let path = || location.to_string();
        match outage {
            Outage::None => tokio::time::sleep(latency).await,
            Outage::Down => return Err(failure("connection refused")),
            Outage::Silent => std::future::pending().await,
            Outage::Full if is_write => return Err(failure("507 Insufficient Storage")),
            Outage::Full => {}
            Outage::Expired => {
                let source = "403 Forbidden: ExpiredToken".into();
                return Err(Error::PermissionDenied { path: path(), source });
            }
            Outage::NoBucket => {
                return Err(Error::NotFound { path: path(), source: "404: NoSuchBucket".into() });
            }
        }
        match fault {
            Some(Fault::Latency) => tokio::time::sleep(SLOW).await,
            Some(Fault::ServerError) => return Err(failure("500 Internal Server Error")),
            Some(Fault::SlowDown) => return Err(failure("503 SlowDown")),
            Some(Fault::Reset) => return Err(failure("connection reset")),
            None | Some(Fault::LostAnswer | Fault::Stall | Fault::Cut | Fault::Short) => {}
        }
        self.live().await;
        Ok(fault)
    }

    /// Of a process that has crashed nothing arrives.
    async fn live(&self) {
        if !self.cloud.is_alive(self.process) {
            std::future::pending::<()>().await;
        }
    }

    /// What comes back of an answer without content.
    async fn answer<T>(&self, behind: Behind, answer: Result<T>) -> Result<T> {
        match behind {
            Some(Fault::LostAnswer | Fault::Cut) => Err(failure("connection reset before the answer")),
            Some(Fault::Stall) => std::future::pending().await,
            _ => answer,
        }
    }
}

/// As much of a stream as comes through.
fn cut<T: Send + 'static>(
    items: Vec<Result<T>>,
    behind: Behind,
    is_list: bool,
) -> BoxStream<'static, Result<T>> {
    let half = items.len() / 2;
    let items = items.into_iter();
    match behind {
        Some(Fault::Cut | Fault::LostAnswer) => {
            stream::iter(items.take(half).chain([Err(failure("connection reset within the answer"))])).boxed()
        }
        Some(Fault::Stall) => stream::iter(items.take(half)).chain(stream::pending()).boxed(),
        // A list says where it ends.
        Some(Fault::Short) if !is_list => stream::iter(items.take(half)).boxed(),
        _ => stream::iter(items).boxed(),
    }
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cloud")
    }
}

#[async_trait]
impl ObjectStore for Reached {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let behind = self.arrive("put", location, true).await?;
        if matches!(options.mode, PutMode::Create) && self.cloud.is_misleading(Misleading::Conflict) {
            let source = "409 Conflict: ConditionalRequestConflict".into();
            return Err(Error::AlreadyExists { path: location.to_string(), source });
        }
        let is_create = matches!(options.mode, PutMode::Create);
        let put = self.cloud.inner.put_opts(location, payload, options).await;
        if is_create && self.cloud.is_misleading(Misleading::LostCreate) {
            return Err(failure("connection reset before the answer"));
        }
        if is_create && self.cloud.is_misleading(Misleading::RepeatedCreate) {
            let source = "412 Precondition Failed".into();
            return Err(Error::AlreadyExists { path: location.to_string(), source });
        }
        self.answer(behind, put).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let behind = self.arrive("begin", location, true).await?;
        let inner = self.cloud.inner.put_multipart_opts(location, options).await?;
        let reached = Arc::new(self.clone());
        let upload =
            Upload { inner: Arc::new(tokio::sync::Mutex::new(inner)), reached, location: location.clone() };
        self.answer(behind, Ok(Box::new(upload) as Box<dyn MultipartUpload>)).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let at_once = self.cloud.reads.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.cloud.reads.1.fetch_max(at_once, Ordering::SeqCst);
        let arrived = self.arrive("get", location, false).await;
        self.cloud.reads.0.fetch_sub(1, Ordering::SeqCst);
        let behind = arrived?;
        let is_head = options.head;
        let got = self.cloud.inner.get_opts(location, options).await?;
        if is_head {
            return self.answer(behind, Ok(got)).await;
        }
        let (meta, range) = (got.meta.clone(), got.range.clone());
        let (attributes, extensions) = (got.attributes.clone(), got.extensions.clone());
        let content = got.bytes().await?;
        let pieces: Vec<Result<Bytes>> =
            content.chunks(4096).map(|piece| Ok(content.slice_ref(piece))).collect();
        let payload = GetResultPayload::Stream(cut(pieces, behind, false));
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let reached = Arc::new(self.clone());
        locations
            .then(move |location| {
                let reached = Arc::clone(&reached);
                async move {
                    let location = location?;
                    let behind = reached.arrive("delete", &location, false).await?;
                    let mut deleted =
                        reached.cloud.inner.delete_stream(stream::once(async { Ok(location) }).boxed());
                    let deleted = deleted.try_next().await.map(Option::unwrap_or_default);
                    reached.answer(behind, deleted).await
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let reached = Arc::new(self.clone());
        let prefix = prefix.cloned();
        let list = async move {
            let behind = reached.arrive("list", &prefix.clone().unwrap_or_default(), false).await?;
            let items: Vec<_> = reached.cloud.inner.list(prefix.as_ref()).collect().await;
            Ok::<_, Error>(cut(items, behind, true))
        };
        stream::once(list).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let behind = self.arrive("list", &prefix.cloned().unwrap_or_default(), false).await?;
        let list = self.cloud.inner.list_with_delimiter(prefix).await;
        self.answer(behind, list).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let behind = self.arrive("copy", to, true).await?;
        let copied = self.cloud.inner.copy_opts(from, to, options).await;
        self.answer(behind, copied).await
    }
}

/// An object that comes in parts.
#[derive(Debug)]
struct Upload {
    inner: Arc<tokio::sync::Mutex<Box<dyn MultipartUpload>>>,
    reached: Arc<Reached>,
    location: Path,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        // The order of the calls is that of the parts.
        let part = self.inner.try_lock().expect("parts come before the end").put_part(data);
        let (reached, location) = (Arc::clone(&self.reached), self.location.clone());
        async move {
            let behind = reached.arrive("part", &location, true).await?;
            let put = part.await;
            reached.answer(behind, put).await
        }
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let behind = self.reached.arrive("complete", &self.location, true).await?;
        let completed = self.inner.lock().await.complete().await;
        if self.reached.cloud.is_misleading(Misleading::NoSuchUpload) {
            completed?;
            return Err(Error::NotFound {
                path: self.location.to_string(),
                source: "404: NoSuchUpload".into(),
            });
        }
        self.reached.answer(behind, completed).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.lock().await.abort().await
    }
}
