//! Tests of the file system over the reference store.

mod areas;
mod driver;
mod random;
mod reference;
mod setup;
mod threads;
