//! How much content of a small file lies in its row.
//!
//! Thread safety: for threads that may block.

use kvfs_fs::{inline_len_max, set_inline_len_max};

use crate::authority::authorize;
use crate::caller::Caller;
use crate::error::Result;
use crate::served::ServedStore;

/// The inline threshold of an open store (bytes). `change`: another one from now on, durably; what is there
/// stays where it is until it is written again.
///
/// # Errors
/// The caller may not; it is too large; as a change of a file.
pub fn inline_threshold(store: &ServedStore<'_>, caller: &Caller, change: Option<u32>) -> Result<u32> {
    if let Some(bytes) = change {
        authorize(store.fs, caller, "change how much content of a file lies in its row")?;
        set_inline_len_max(store.fs, bytes)?;
        tracing::info!(bytes, "the inline threshold is another one");
    }
    Ok(inline_len_max(store.fs))
}
