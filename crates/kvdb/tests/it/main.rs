//! The engine through its façade, on a device in memory.

mod basics;
mod snapshots;
mod spilled;
mod spilled_faults;
mod transactions;
mod undo;
