//! What there is to tell of a store, in the forms that commands print and that `.kvfs/` holds.

pub(crate) mod accesses;
pub(crate) mod charges;
pub(crate) mod held;
pub(crate) mod locks;
pub(crate) mod memory;
pub(crate) mod operations;
pub(crate) mod prometheus;
pub(crate) mod stats;
pub(crate) mod zones;
