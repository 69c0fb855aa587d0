//! Memory that devices read into, and the books of what memory is taken for.
//!
//! Purpose: a request to a device lists the pieces of memory that it is about, and each costs the device, or
//! the host that plays it, some time. 1 MiB in 256 scattered pages takes a virtual disk twice as long as in
//! one piece of a huge page. So buffers for large reads, which are used again and again, lie in huge pages;
//! nothing else does, since a huge page that is used in part is resident as a whole.
//!
//! [`Charges`] count what owners charge, wherever that lies.
//!
//! Thread safety: charges are shared, all else are functions without state.
//! [`huge_pages_only_where_asked_for`] is called before there are other threads.

mod advice;
mod charges;
mod mapping;

pub use advice::huge_pages_only_where_asked_for;
pub use charges::{Charge, Charges, ClassUse, LiveCharges, POOLS_MAX, SITES_MAX};
pub use mapping::{MappedBuf, zeroed_in_huge_pages};

/// What a huge page measures where pages have 4 KiB (bytes). Elsewhere buffers still begin at a multiple of
/// this.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
