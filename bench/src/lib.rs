//! What the programs of this package share.

pub mod host;
pub mod interrupt;
pub mod source;
pub mod summary;
