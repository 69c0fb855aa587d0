//! What a store keeps of committed transactions must be the states that were there.

use kvfs_store::{Position, Store, StoreError};

use crate::crash_check::{History, compare};
use crate::spaces::Handles;

/// Compares both states of every transaction that `store` says can be taken back with those of the history.
///
/// # Errors
/// The first differences.
pub fn check_undo(store: &dyn Store, handles: &Handles, history: &History) -> Result<(), String> {
    let newest = store.position();
    let mut last = Position::default();
    for point in store.undo_points() {
        if point.before < last || point.before >= point.after || point.after > newest {
            return Err(format!("{point:?} is listed behind {last:?}, at {newest:?}"));
        }
        last = point.after;
        let views = match store.open_undo(point.txn) {
            // A store that needed its space may have let it go just now.
            Err(StoreError::NotKept(_)) => continue,
            views => views.map_err(|error| format!("opening {point:?}: {error}"))?,
        };
        for (view, position) in [(views.before, point.before), (views.after, point.after)] {
            let unknown = || format!("{point:?} is listed, and the state at {position:?} is of no commit");
            let state = history.state_at_position(position).ok_or_else(unknown)?;
            compare(&*view, handles, &**state, history.handles())
                .map_err(|difference| format!("transaction {} at {position:?}: {difference}", point.txn))?;
        }
    }
    Ok(())
}
