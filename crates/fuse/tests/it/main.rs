//! Tests of the protocol layer: against a kernel that the test plays, and against the real one.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod bridge;
mod gate;
mod held;
mod hidden;
mod kernel;
mod mounted;
mod overtaken;
mod pressure;
mod protocol;
mod rings;
mod slow;
mod steering;
mod timeouts;
mod view_calls;

// The in-memory server of the benchmarks is also the file system of these tests.
#[path = "../../examples/floor/operations.rs"]
mod floor;
#[path = "../../examples/floor/tree.rs"]
mod tree;
