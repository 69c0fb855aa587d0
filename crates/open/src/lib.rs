//! Stores by their path, for every program that opens one: device → engine → file system.
//!
//! Purpose: what a store's directory may look like, how memory is divided, and what a failure means are
//! decided here once, for the command, its daemon, and programs that embed kvfs, and so is which engine a
//! store has ([`EngineKind`]). What needs a daemon is the command's.
//!
//! Thread safety: see the modules. Invariant: one process at a time has a store open; the device is locked.

mod by_url;
mod contents;
mod copy;
mod devices;
mod engines;
mod error;
mod make;
mod memory;
mod open;
mod store_dir;

pub use by_url::{directory_of_url, is_url, new_directory_of_url};
pub use copy::{CopiedStore, CopyOrder, copy_store};
pub use devices::{DeviceHealth, NewDevice, StoreDevices, Unopened};
pub use engines::{EngineKind, EngineMark, Objects, PluggedEngine};
pub use error::{Error, Result, explain_device, explain_open};
pub use make::{
    CAPACITY_BYTES_MIN, INLINE_DEFAULT, NewStore, linked_device, make_store, own_device, remove_remains,
};
pub use memory::{MEMORY_BYTES_MIN, Memory};
pub use open::{OpenOptions, OpenedEngine, OpenedStore};
pub use store_dir::{DevicePlace, StoreDir};
