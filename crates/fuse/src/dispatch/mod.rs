//! From request bytes to a call of [`Operations`], and from its answer to reply bytes.
//!
//! Thread safety: the router is shared by all workers. Invariants: see the crate.

mod args;
mod decode;
mod directory;
pub(crate) mod idle_class;
mod operations;
mod park;
mod payload;
mod reply;
mod router;

pub use args::*;
pub use directory::{DirectoryBuffer, DirectoryEntry};
pub use operations::Operations;
pub use park::{ParkError, Parked};
pub use payload::*;
pub use reply::{Reply, SessionRecorder};

pub(crate) use park::Registry;
pub(crate) use reply::{Channel, send_parts};
pub(crate) use router::{ROOT_NODEID, Router, Special, ZeroMessage};
