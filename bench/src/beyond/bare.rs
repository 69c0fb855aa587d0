//! A large object, without a file system: what the network and the server give.
//!
//! Thread safety: functions.

use crate::storage::{ACCESS_KEY, BUCKET, REGION, SECRET_KEY, Storage};
use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kvfs_device::Rng;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{ObjectStoreExt, WriteMultipart};
use std::time::{Duration, Instant};

const PART_BYTES: u64 = 8 << 20;
const AT_ONCE: usize = 8;

/// How long it takes to write so many bytes into an object, and to read them.
pub(crate) fn measure(storage: &Storage, bytes: u64, seed: u64) -> Result<(Duration, Duration)> {
    let service = AmazonS3Builder::new()
        .with_endpoint(storage.endpoint())
        .with_allow_http(true)
        .with_region(REGION)
        .with_bucket_name(BUCKET)
        .with_access_key_id(ACCESS_KEY)
        .with_secret_access_key(SECRET_KEY)
        .build()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let path = Path::from("large");
    let start = Instant::now();
    runtime.block_on(write(&service, &path, bytes, seed))?;
    let written = start.elapsed();
    kvfs_bench::host::drop_caches()?;
    let start = Instant::now();
    runtime.block_on(read(&service, &path, bytes))?;
    Ok((written, start.elapsed()))
}

async fn write(service: &AmazonS3, path: &Path, bytes: u64, seed: u64) -> Result<()> {
    let mut rng = Rng::new(seed);
    let mut part = vec![0; PART_BYTES as usize];
    rng.fill(&mut part);
    let mut upload =
        WriteMultipart::new_with_chunk_size(service.put_multipart(path).await?, PART_BYTES as usize);
    for _ in 0..bytes / PART_BYTES {
        upload.wait_for_capacity(AT_ONCE).await?;
        upload.write(&part);
    }
    upload.finish().await?;
    Ok(())
}

async fn read(service: &AmazonS3, path: &Path, bytes: u64) -> Result<()> {
    let parts = (0..bytes / PART_BYTES).map(|part| part * PART_BYTES..(part + 1) * PART_BYTES);
    let lengths =
        stream::iter(parts).map(|range| async { service.get_range(path, range).await.map(|it| it.len()) });
    let read: usize =
        lengths.buffered(AT_ONCE).try_fold(0, |sum, length| async move { Ok(sum + length) }).await?;
    ensure!(read as u64 == bytes, "{read} bytes came back of {bytes}");
    Ok(())
}
