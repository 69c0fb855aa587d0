//! Objects in a directory whose disk stalls: what was asked of it is done in the end, however long ago it was
//! asked.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvfs_engine_slatedb::seam::async_trait::async_trait;
use kvfs_engine_slatedb::seam::futures::stream::BoxStream;
use kvfs_engine_slatedb::seam::object_store::memory::InMemory;
use kvfs_engine_slatedb::seam::object_store::path::Path;
use kvfs_engine_slatedb::seam::object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use kvfs_engine_slatedb::seam::tokio;
use kvfs_store::{EngineStore, Store};

use super::{Fixture, Slate, SlateOptions, SlateStore, options, wait_until};

/// As the service for a directory does, it knows no attributes, and does what it was asked for on a thread of
/// its own.
#[derive(Debug)]
struct Directory {
    inner: Arc<InMemory>,
    /// One write at a time.
    disk: Arc<tokio::sync::Mutex<()>>,
    /// The next write of the log stalls until it is told to go on.
    stalls: AtomicBool,
    goes_on: Arc<tokio::sync::Notify>,
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Directory")
    }
}

#[async_trait]
impl ObjectStore for Directory {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        if !options.attributes.is_empty() {
            let (operation, implementer) = ("attributes".to_owned(), self.to_string());
            return Err(Error::NotImplemented { operation, implementer });
        }
        let stalls = location.as_ref().starts_with("wal/") && self.stalls.swap(false, Ordering::SeqCst);
        let (inner, disk, goes_on) =
            (Arc::clone(&self.inner), Arc::clone(&self.disk), Arc::clone(&self.goes_on));
        let location = location.clone();
        let put = tokio::spawn(async move {
            let _turn = disk.lock().await;
            if stalls {
                goes_on.notified().await;
            }
            inner.put_opts(&location, payload, options).await
        });
        put.await.unwrap()
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[test]
fn disk_that_stalls_for_longer_than_a_request_may_take_is_no_other_writer() {
    let directory = Arc::new(Directory {
        inner: Arc::new(InMemory::new()),
        disk: Arc::default(),
        stalls: AtomicBool::new(false),
        goes_on: Arc::default(),
    });
    let service = Arc::clone(&directory) as Arc<dyn ObjectStore>;
    let options = SlateOptions { request_time: Duration::from_millis(100), ..options() };
    SlateStore::create_over(Arc::clone(&service), &options, [7; 16]).unwrap();
    let store = Arc::new(SlateStore::open_over(Arc::clone(&service), &options).unwrap());
    let f = Fixture::<Slate>::over(Arc::clone(&store) as Arc<dyn Store>);
    store.sync(f.put("before", "1")).unwrap();
    let failed = f.stat("slatedb.requests_failed");
    directory.stalls.store(true, Ordering::SeqCst);
    let position = f.put("during", "1");
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| store.sync(position));
        wait_until("it takes too long", || f.stat("slatedb.requests_failed") >= failed + 3);
        directory.goes_on.notify_one();
        sync.join().unwrap().unwrap();
    });
    assert_eq!(store.failure(), None);
    store.sync(f.put("after", "1")).unwrap();
    store.close().unwrap();
    let store = Arc::new(SlateStore::open_over(service, &options).unwrap());
    let f = Fixture::<Slate>::over(Arc::clone(&store) as Arc<dyn Store>);
    for key in ["before", "during", "after"] {
        assert!(f.store.get(f.plain, key.as_bytes()).unwrap().is_some(), "{key}");
    }
    store.close().unwrap();
}
