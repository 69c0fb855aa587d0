//! What the fuzz targets do with their input: one module each, one function `run`.
//!
//! Purpose: whatever reads bytes that a stranger may have written (a device, a stream, a request, a command
//! line) must answer with a value or an error: no panic, no endless loop, no memory beyond what the input
//! justifies. Where a checksum would keep a fuzzer out, the target seals its input first.
//!
//! `cargo fuzz run TARGET`; a corpus of valid beginnings is in `corpus/`, written by
//! `cargo run --example seeds`.

pub mod arguments;
pub mod input;
pub mod journal;
pub mod manifest;
pub mod messages;
pub mod mutate;
pub mod pieces;
pub mod requests;
pub mod streams;
pub mod superblock;
