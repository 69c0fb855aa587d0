//! TPC-C by a loader and a client of its own, on `MariaDB`: tables, five transactions in the standard mix,
//! consistency conditions.
//!
//! Thread safety: a terminal is a thread with a connection of its own; everything else belongs to one thread.

mod check;
mod load;
mod random;
mod schema;
mod terminal;

pub(crate) use check::check;
pub(crate) use load::load;
pub(crate) use terminal::{Tally, Terminal};

/// Districts of a warehouse.
const DISTRICTS: u32 = 10;
/// Customers of a district.
const CUSTOMERS: u32 = 3000;
/// Items in all, and stock of each warehouse.
const ITEMS: u32 = 100_000;
/// Of a district's orders at first, the first that is not delivered.
const FIRST_NEW_ORDER: u32 = 2101;
