//! Stores that another process writes to, and that go on to newer states of it.
//!
//! Thread safety: any number of threads; searches take turns.

use crate::Result;

/// A store that is only read here, is written to elsewhere, and shows a newer state when it is told to. Each
/// state is one that the writer had made durable, whole batches and in their order. Snapshots and cursors
/// stay at the state that they were made of.
pub trait Follow: Send + Sync {
    /// Looks for a state that is newer than the one that is shown, and makes it ready. Blocks for as long as
    /// what it is read from does. Returns whether there is one.
    ///
    /// # Errors
    /// I/O errors, damage: the state that is shown stays.
    fn find_newer(&self) -> Result<bool>;

    /// Shows the state that was found last, from the next read on. No I/O; does nothing if none was found.
    fn show_newer(&self);

    /// Ends a search that is under way, and each later one at once: they find nothing.
    fn stop_following(&self);
}
