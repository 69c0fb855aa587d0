//! Giving back what deleted keys hold, when a write finds no room.
//!
//! Purpose: a database compacts what is large or often read, and not what is deleted: a full file system
//! stays full. So keyspaces are compacted piece by piece, from where the last call has ended, until there is
//! room or everything was seen once.
//!
//! Thread safety: the caller holds the lock of the reclaimer; writers that find no room wait for it.
//! Invariant: a piece is so small that its compaction finds room in the reserve.

use std::sync::Arc;

use kvfs_store::{KeyRange, Result, StoreError};

use crate::database::{Database, Entries};
use crate::room::Room;
use crate::shared::Shared;
use crate::space::Space;

/// Where the next piece begins.
#[derive(Default)]
pub(crate) struct Reclaimer {
    /// Index of the keyspace.
    space: usize,
    from: Vec<u8>,
    /// Keyspaces that were seen to their end since anything was deleted.
    clean: usize,
}

/// Admits a batch as soon as there is room for it.
pub(crate) fn make_room<D: Database>(
    shared: &Shared<D>,
    reclaimer: &mut Reclaimer,
    room: &Room,
    bytes: u64,
    deletes: bool,
) -> Result<()> {
    let spaces = shared.spaces.read().clone();
    if spaces.iter().filter(|space| space.take_deleted()).count() > 0 {
        // All of the one that it is at, and the others.
        reclaimer.clean = 0;
    }
    while reclaimer.clean <= spaces.len()
        && let Some(piece_bytes) = room.compaction_bytes()
    {
        let Some(space) = spaces.get(reclaimer.space) else { break };
        let start = std::mem::take(&mut reclaimer.from);
        let end = piece(shared, space, &start, piece_bytes)?;
        let range = KeyRange { start: start.into(), end: end.clone().map(Into::into) };
        shared.db.compact(space, &range).map_err(|error| shared.fail(&error))?;
        if let Some(end) = end {
            reclaimer.from = end;
        } else {
            reclaimer.space = (reclaimer.space + 1) % spaces.len();
            reclaimer.clean += 1;
        }
        match room.admit(bytes, deletes) {
            Err(StoreError::Full) => {}
            admitted => return admitted,
        }
    }
    Err(StoreError::Full)
}

/// The end of a piece of so many bytes from a key on; `None`: it reaches to the end of the keyspace.
fn piece<D: Database>(
    shared: &Shared<D>,
    space: &Arc<Space<D::Handle>>,
    from: &[u8],
    piece_bytes: u64,
) -> Result<Option<Vec<u8>>> {
    let range = KeyRange { start: from.to_vec().into(), end: None };
    let mut entries = shared.db.entries(None, space, &range)?;
    let mut bytes = 0;
    entries.first();
    while let Some((key, value)) = entries.entry() {
        if bytes > piece_bytes {
            return Ok(Some(key.to_vec()));
        }
        bytes += (key.len() + value.len()) as u64;
        entries.next();
    }
    entries.check()?;
    Ok(None)
}
