//! Places of objects: a directory, S3 and what speaks like it, GCS, Azure.
//!
//! Purpose: a URL in, a client of the crate `object_store` out. Credentials come from the environment
//! (`AWS_…`, `GOOGLE_…`, `AZURE_…`) or from the machine (instance role) each time. Without the feature
//! `cloud` a place is a directory.
//!
//! Thread safety: plain values; functions.

mod cloud;
mod message;
mod place;

pub use message::brief;
pub use place::{ObjectPlace, Patience};
