//! Messages and stubs, generated from `proto/kvfs/v1/store.proto`; a test makes sure that they are.
#![expect(
    missing_docs,
    unused_qualifications,
    clippy::pedantic,
    reason = "generated; the protocol file has the words"
)]

include!("../generated/kvfs.v1.rs");
