//! Repositories of snapshots: a directory or a prefix in object storage, to which snapshots of stores are
//! pushed and from which they are pulled.
//!
//! Purpose: `kvfs snapshot push` and `pull`, `kvfs repository`. A snapshot there is complete by itself. What
//! several have in common is there once: content is cut where it says so itself (`FastCDC`), and each piece
//! is an object by the name of its hash. With a passphrase all objects are encrypted, and names say nothing
//! to who does not have it. docs/FORMAT.md draws the objects.
//!
//! The parts: `layout` names objects, `remote` reads and writes them, `config` and `seal` make them
//! unreadable for others, `chunks` cuts and names content, `recipe` is what a snapshot is made of, `manifest`
//! what it says of itself, `pushing` what is under way; `push`, `pull`, `verify` and `prune` work with them
//! ([decisions/repositories.md] says why so).
//!
//! Thread safety: a [`Repository`] and what works with it belong to one thread each; any number of processes,
//! on any machines, may work with one place at once.
//!
//! Invariants:
//! * a snapshot is there when its manifest is, which is written last; nothing that a manifest needs is ever
//!   removed;
//! * an object is never changed, but for the first one when the passphrase is; what is not referred to is
//!   only removed a day after it was marked, and what is marked is not used anew for as long as it is there;
//! * whatever is read is verified before it is used.
//!
//! [decisions/repositories.md]: https://github.com/kvfs/kvfs/blob/main/docs/decisions/repositories.md

mod chunks;
mod config;
mod error;
mod files;
mod layout;
mod leftovers;
mod manifest;
mod policy;
mod prune;
mod pull;
mod push;
mod pushing;
mod recipe;
mod remote;
mod repository;
mod seal;
#[cfg(test)]
mod tests;
mod verify;

pub use config::Passphrase;
pub use error::{RepositoryError, Result};
pub use kvfs_objects::ObjectPlace;
pub use manifest::Summary;
pub use policy::Policy;
pub use prune::Pruned;
pub use pull::Pull;
pub use push::{Push, Pushed};
pub use repository::{Listing, Reached, Repository};
pub use verify::Verification;
