//! Clients of object storage, if this build has them.
//!
//! Thread safety: functions. Invariant: all clients have the same patience.

#[cfg(feature = "cloud")]
pub(crate) use with::{check, connect};
#[cfg(not(feature = "cloud"))]
pub(crate) use without::{check, connect};

#[cfg(feature = "cloud")]
mod with {
    use std::sync::Arc;

    use object_store::aws::AmazonS3Builder;
    use object_store::azure::MicrosoftAzureBuilder;
    use object_store::gcp::GoogleCloudStorageBuilder;
    use object_store::{ClientOptions, ObjectStore, RetryConfig};

    use crate::{ObjectPlace, Patience};

    /// In the environment: where a server is that speaks S3, if the place does not say so.
    const ENDPOINTS: [&str; 2] = ["AWS_ENDPOINT_URL", "AWS_ENDPOINT"];

    enum Builder {
        S3(Box<AmazonS3Builder>),
        Google(Box<GoogleCloudStorageBuilder>),
        Azure(Box<MicrosoftAzureBuilder>),
    }

    fn builder(place: &ObjectPlace) -> Result<Builder, String> {
        let url = place.url();
        match place.scheme() {
            "s3" | "s3a" => {
                let builder = AmazonS3Builder::from_env().with_url(url);
                let builder = match place.endpoint() {
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
            _ => Err(format!("{url}: this is no object storage; s3://, gs://, az:// and file:// are")),
        }
    }

    /// Whether there is a client for it; else why not.
    pub(crate) fn check(place: &ObjectPlace) -> Result<(), String> {
        builder(place).map(drop)
    }

    pub(crate) fn connect(
        place: &ObjectPlace,
        patience: Patience,
    ) -> object_store::Result<Arc<dyn ObjectStore>> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        // Who names an endpoint without encryption has asked for that.
        let endpoint =
            place.endpoint().map(str::to_owned).or_else(|| ENDPOINTS.into_iter().find_map(variable));
        let client = ClientOptions::default().with_timeout(patience.request_time_max).with_allow_http(
            endpoint.is_some_and(|endpoint| endpoint.starts_with("http:"))
                || variable("AWS_ALLOW_HTTP").is_some_and(|value| value == "true"),
        );
        let (max_retries, retry_timeout) = (patience.retries_max, patience.age_max);
        let retry = RetryConfig { max_retries, retry_timeout, ..RetryConfig::default() };
        let unusable = |text: String| object_store::Error::Generic { store: "URL", source: text.into() };
        match builder(place).map_err(unusable)? {
            Builder::S3(builder) => {
                builder.with_retry(retry).with_client_options(client).build().map(|s3| Arc::new(s3) as _)
            }
            Builder::Google(builder) => {
                builder.with_retry(retry).with_client_options(client).build().map(|gcs| Arc::new(gcs) as _)
            }
            Builder::Azure(builder) => builder
                .with_retry(retry)
                .with_client_options(client)
                .build()
                .map(|azure| Arc::new(azure) as _),
        }
    }
}

#[cfg(not(feature = "cloud"))]
mod without {
    use std::sync::Arc;

    use object_store::ObjectStore;

    use crate::{ObjectPlace, Patience};

    /// There is no client for any.
    pub(crate) fn check(place: &ObjectPlace) -> Result<(), String> {
        Err(format!(
            "{}: this kvfs is built without clients of object storage, so objects are files of a directory; a build with \
             the feature `cloud` has them",
            place.url()
        ))
    }

    pub(crate) fn connect(
        place: &ObjectPlace,
        _patience: Patience,
    ) -> object_store::Result<Arc<dyn ObjectStore>> {
        let source = check(place).err().unwrap_or_default().into();
        Err(object_store::Error::Generic { store: "URL", source })
    }
}
