//! Which transactions are open, in words, and the refusal of what can't be done meanwhile.
//!
//! Thread safety: as [`Transactions`].

use super::Transactions;
use super::entry::Entry;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::units::human_duration;
use kvfs_store::clock::Clock;

/// Open transactions that a refusal names.
const OPEN_NAMED_MAX: usize = 20;

impl Transactions {
    /// Those that are open, in words.
    pub fn names(&self) -> Vec<String> {
        let now = self.clock.monotonic();
        let state = self.state.lock();
        let name = |(id, entry): (&u64, &Entry)| {
            let age = human_duration(now.saturating_sub(entry.begun));
            format!("{id} ({}, {age} old)", entry.owner)
        };
        state.open.iter().map(name).collect()
    }

    /// Refuses while any is open: `options` of a command say what to do with them.
    ///
    /// # Errors
    /// Which are open.
    pub fn check_none_open(&self, options: &str) -> Result<()> {
        let open = self.names();
        if open.is_empty() { Ok(()) } else { Err(are_open(&open, options)) }
    }
}

/// Why something is refused while these transactions are open.
fn are_open(open: &[String], options: &str) -> ServiceError {
    let (what, are) = if open.len() == 1 { ("transaction", "is") } else { ("transactions", "are") };
    let named = open.iter().take(OPEN_NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = match open.len().saturating_sub(OPEN_NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more (`kvfs txn list`)"),
    };
    ServiceError::new(
        ErrorKind::InUse,
        format!("{what} {named}{more} {are} open; commit or abort first, or use {options}"),
    )
}
