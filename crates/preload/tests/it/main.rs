//! Programs under the preloaded library, on a store that the test serves, compared with a real directory.
#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

mod descriptors;
mod locks;
mod mapped;
mod outlive;
mod programs;
mod run;
mod servers;
mod signals;
