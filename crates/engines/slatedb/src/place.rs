//! Where the objects of a store are: a URL, and for S3 perhaps an endpoint of one's own.
//!
//! Purpose: what `object_store` needs to reach them. Credentials are never a part of it: they come from the environment
//! (`AWS_…`, `GOOGLE_…`, `AZURE_…`) or from the machine (instance role) each time.
//!
//! Thread safety: plain values; functions. Invariants: an object is made under the prefix only after the claim, which one maker gets;
//! what is removed lies under a prefix that was empty before it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use kvfs_store::{Result, StoreError};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, RetryConfig};
use url::Url;

use crate::error::of_objects;

/// The object that says whose the prefix is, beside those of `SlateDB`.
const CLAIM: &str = "kvfs-store";
const CLAIM_TEXT: &str = "kvfs-slatedb 1\n";

/// A request that takes longer is made again.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectPlace {
    url: Url,
    endpoint: Option<String>,
}

impl ObjectPlace {
    /// The prefix that `url` names, such as `s3://bucket/prefix`, or a directory; `endpoint`: of a server that speaks S3.
    ///
    /// # Errors
    /// Why it can't be used, in words.
    pub fn new(url: &str, endpoint: Option<&str>) -> Result<Self, String> {
        let place = Self { url: parse(url)?, endpoint: endpoint.map(str::to_owned) };
        let text = place.url.as_str();
        let has_secret = !place.url.username().is_empty() || place.url.password().is_some();
        if has_secret || place.url.query().is_some() || place.url.fragment().is_some() {
            return Err(format!(
                "{text} has more than bucket and prefix; credentials come from the environment, such as AWS_ACCESS_KEY_ID"
            ));
        }
        if !place.is_local() && place.url.host_str().is_none_or(str::is_empty) {
            return Err(format!("{text} names no bucket"));
        }
        if endpoint.is_some() && place.url.scheme() != "s3" {
            return Err(format!("{text} has no endpoint of its own; s3://… may have one"));
        }
        place.builder().map(|_| place)
    }

    /// The URL.
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    /// The endpoint.
    pub fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }

    /// Whether the objects are files.
    pub fn is_local(&self) -> bool {
        self.url.scheme() == "file"
    }

    fn builder(&self) -> Result<Builder, String> {
        let url = self.url.as_str();
        match self.url.scheme() {
            "file" => Ok(Builder::Local),
            "s3" | "s3a" => {
                let builder = AmazonS3Builder::from_env().with_url(url);
                let builder = match &self.endpoint {
                    Some(endpoint) => {
                        builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http:"))
                    }
                    None => builder,
                };
                Ok(Builder::S3(Box::new(builder)))
            }
            "gs" => Ok(Builder::Google(Box::new(GoogleCloudStorageBuilder::from_env().with_url(url)))),
            "az" | "azure" | "abfs" | "abfss" => {
                Ok(Builder::Azure(Box::new(MicrosoftAzureBuilder::from_env().with_url(url))))
            }
            scheme => {
                Err(format!("{url}: {scheme} is no object storage; s3://, gs://, az:// and file:// are"))
            }
        }
    }

    /// The service, and the prefix there.
    pub(crate) fn connect(&self) -> Result<(Arc<dyn ObjectStore>, Path)> {
        let what = || format!("reaching {}", self.url);
        let unusable = |text: String| StoreError::io(what(), std::io::Error::other(text));
        // What is not the service's answer is tried again by the engine, and reported where that is not yet at work.
        let retry = RetryConfig { max_retries: 2, retry_timeout: REQUEST_TIME_MAX, ..RetryConfig::default() };
        let client = ClientOptions::default().with_timeout(REQUEST_TIME_MAX).with_allow_http(
            self.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http:"))
                || std::env::var("AWS_ALLOW_HTTP").is_ok_and(|value| value == "true"),
        );
        let service: Result<Arc<dyn ObjectStore>, _> = match self.builder().map_err(unusable)? {
            Builder::Local => Ok(Arc::new(LocalFileSystem::new().with_fsync(true)) as Arc<dyn ObjectStore>),
            Builder::S3(builder) => {
                builder.with_retry(retry).with_client_options(client).build().map(|s3| Arc::new(s3) as _)
            }
            Builder::Google(builder) => builder.with_retry(retry).build().map(|gcs| Arc::new(gcs) as _),
            Builder::Azure(builder) => builder.with_retry(retry).build().map(|azure| Arc::new(azure) as _),
        };
        let service = service.map_err(|error| of_objects(what(), &error))?;
        // abfs://container@account/path has the prefix in its path, as all others have.
        let prefix = Path::from_url_path(self.url.path());
        let prefix = prefix.map_err(|error| unusable(error.to_string()))?;
        Ok((service, prefix))
    }

    /// Claims the prefix for a new store.
    pub(crate) async fn claim(&self, service: &dyn ObjectStore, prefix: &Path) -> Result<()> {
        let failed =
            |error: &object_store::Error| of_objects(format!("making a store at {}", self.url), error);
        let mut objects = service.list(Some(prefix));
        let found = objects.try_next().await.map_err(|error| failed(&error))?;
        if let Some(found) = found {
            return Err(self.occupied(&found.location));
        }
        let claim = prefix.clone().join(CLAIM);
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match service.put_opts(&claim, CLAIM_TEXT.into(), options).await {
            Ok(_) => Ok(()),
            Err(object_store::Error::AlreadyExists { .. }) => Err(self.occupied(&claim)),
            Err(error) => Err(failed(&error)),
        }
    }

    fn occupied(&self, found: &Path) -> StoreError {
        let text = format!("there are objects already, such as {found}; a store needs a prefix of its own");
        let error = std::io::Error::new(std::io::ErrorKind::AlreadyExists, text);
        StoreError::io(format!("making a store at {}", self.url), error)
    }

    /// Whether a store was made there; that the service can be reached, too.
    pub(crate) async fn check_claim(&self, service: &dyn ObjectStore, prefix: &Path) -> Result<()> {
        let failed = |error: &object_store::Error| of_objects(format!("reaching {}", self.url), error);
        let found = service.get(&prefix.clone().join(CLAIM)).await.map_err(|error| failed(&error))?;
        let text = found.bytes().await.map_err(|error| failed(&error))?;
        if text == CLAIM_TEXT {
            return Ok(());
        }
        let found = text.escape_ascii().to_string();
        Err(StoreError::corrupt(
            format!("{}/{CLAIM}", self.url),
            format!("it says \"{found}\", which this kvfs does not know"),
        ))
    }

    /// Removes all objects under the prefix.
    pub(crate) async fn remove_objects(&self, service: &dyn ObjectStore, prefix: &Path) -> Result<()> {
        let failed = |error: object_store::Error| of_objects(format!("removing {}", self.url), &error);
        let mut objects = service.list(Some(prefix));
        while let Some(object) = objects.try_next().await.map_err(failed)? {
            service.delete(&object.location).await.map_err(failed)?;
        }
        Ok(())
    }
}

enum Builder {
    Local,
    S3(Box<AmazonS3Builder>),
    Google(Box<GoogleCloudStorageBuilder>),
    Azure(Box<MicrosoftAzureBuilder>),
}

fn parse(text: &str) -> Result<Url, String> {
    if text.contains("://") {
        return Url::parse(text).map_err(|error| format!("{text} is no URL: {error}"));
    }
    let path = std::path::absolute(PathBuf::from(text)).map_err(|error| format!("{text}: {error}"))?;
    Url::from_file_path(&path).map_err(|()| format!("{} is no path of a directory", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_urls_without_secrets_or_directories() {
        let url = |text| ObjectPlace::new(text, None).map(|place| place.url().to_owned());
        assert_eq!(url("s3://bucket/a/b").unwrap(), "s3://bucket/a/b");
        assert_eq!(url("gs://bucket/a").unwrap(), "gs://bucket/a");
        assert_eq!(url("/tmp/x").unwrap(), "file:///tmp/x");
        assert!(url("x").unwrap().starts_with("file:///"));
        for (text, words) in [
            ("s3://key:secret@bucket/a", "environment"),
            ("s3://bucket/a?token=x", "environment"),
            ("ftp://bucket/a", "no object storage"),
            ("s3://", "no bucket"),
        ] {
            let refused = url(text);
            assert!(refused.as_ref().is_err_and(|error| error.contains(words)), "{text}: {refused:?}");
        }
        assert!(ObjectPlace::new("gs://bucket", Some("http://localhost")).is_err());
        let own = ObjectPlace::new("s3://bucket/a", Some("http://localhost:9000")).unwrap();
        assert_eq!(own.endpoint(), Some("http://localhost:9000"));
    }
}
