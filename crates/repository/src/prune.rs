//! Taking away what is not to be kept, and what nothing refers to.
//!
//! A push in another process may be about to refer to a chunk to which nothing refers yet, and nothing here knows of it: there is no lock
//! that a machine which was switched off could leave behind. So a chunk goes in two steps, a day apart. It is *marked*, which is an object
//! of its own; from then on no push that begins uses it. When the mark is a day old and still nothing refers to the chunk, no push that
//! began before can be under way (`push` makes sure of it), and the chunk is removed.
//!
//! Thread safety: any number at once. Invariants: a chunk to which a manifest refers is never removed; ages are told by the clock of
//! the service alone.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use zerocopy::IntoBytes;

use crate::chunks::{each_chunk, ids, marks};
use crate::error::{RepositoryError, Result};
use crate::layout::{ChunkId, MARKS, hex, manifest_object};
use crate::leftovers;
use crate::manifest::{Manifest, Summary};
use crate::policy::Policy;
use crate::repository::Repository;
use crate::seal::random;

/// So long a chunk is marked before it goes.
pub(crate) const GRACE: Duration = Duration::from_hours(24);

/// What was taken away, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Snapshots, oldest first.
    pub snapshots: Vec<Summary>,
    /// Chunks that are removed.
    pub removed: u64,
    /// Chunks that nothing refers to, and that go in a day.
    pub marked: u64,
}

impl Repository {
    /// Takes the snapshots away that `policy` does not keep, marks what nothing refers to (any more), and removes what has been marked for a
    /// day. `is_alone`: nothing is being pushed by any process, so that what is marked goes at once. `only_tells`: all that is there stays. O(chunks
    /// and references).
    ///
    /// # Errors
    /// The repository can't be read or written; damage, and then nothing is removed that was not marked before.
    pub fn prune(&self, policy: &Policy, is_alone: bool, only_tells: bool) -> Result<Pruned> {
        let manifests = self.manifests()?;
        let summaries: Vec<_> = manifests.iter().map(Manifest::summary).collect();
        let mut pruned = Pruned { snapshots: policy.goes(&summaries), ..Pruned::default() };
        let gone: HashSet<_> = pruned.snapshots.iter().map(|summary| summary.id).collect();
        if !only_tells {
            self.remote().delete(pruned.snapshots.iter().map(|summary| manifest_object(summary.id)))?;
        }
        // What is marked, before what is there, before what is referred to: so the latter knows all pushes that have ended before.
        let marks = marks(self.remote(), self.sealer())?;
        let mut unused = HashSet::new();
        each_chunk(self.remote(), |id| {
            unused.insert(id);
        })?;
        for manifest in self.manifests()? {
            if !gone.contains(&manifest.summary().id) {
                self.each_reference(&manifest, |id| {
                    unused.remove(&id);
                })?;
            }
        }
        self.remove_marked(&marks, &unused, is_alone, only_tells, &mut pruned)?;
        let listed: HashSet<_> = marks.values().flatten().copied().collect();
        let fresh: Vec<_> = unused.iter().filter(|id| !listed.contains(id)).copied().collect();
        if only_tells {
            pruned.marked += fresh.len() as u64;
        } else if is_alone {
            // With the mark, so that whatever happens meanwhile nothing uses one of them.
            let mark = self.mark(&fresh)?;
            self.remote().delete(fresh.iter().map(ChunkId::object))?;
            pruned.removed += fresh.len() as u64;
            self.remote().delete(mark)?;
        } else {
            self.mark(&fresh)?;
            pruned.marked += fresh.len() as u64;
        }
        if !only_tells {
            self.remove_leftovers(is_alone)?;
        }
        Ok(pruned)
    }

    /// Removes what pushes that were killed have left half-written.
    fn remove_leftovers(&self, is_alone: bool) -> Result<()> {
        let Some(dir) = self.remote().directory() else { return Ok(()) };
        let grace = if is_alone { Duration::ZERO } else { GRACE };
        let failed = |error| RepositoryError::Machine(format!("cannot clear up {}: {error}", dir.display()));
        leftovers::remove(&dir, self.now()?.saturating_sub(grace)).map_err(failed)
    }

    /// Removes what has been marked for long enough and is `unused`; what is used again is no longer marked.
    fn remove_marked(
        &self,
        marks: &BTreeMap<String, Vec<ChunkId>>,
        unused: &HashSet<ChunkId>,
        is_alone: bool,
        only_tells: bool,
        pruned: &mut Pruned,
    ) -> Result<()> {
        if marks.is_empty() {
            return Ok(());
        }
        let now = self.now()?;
        for (object, ids) in marks {
            let goes = ids.iter().filter(|id| unused.contains(id));
            // Another process may have done with it.
            let Some(written) = self.remote().written(object)? else { continue };
            let age = now.saturating_sub(written);
            if age < GRACE && !is_alone {
                pruned.marked += goes.count() as u64;
                continue;
            }
            if only_tells {
                pruned.removed += goes.count() as u64;
                continue;
            }
            let goes: Vec<_> = goes.map(ChunkId::object).collect();
            pruned.removed += goes.len() as u64;
            self.remote().delete(goes)?;
            self.remote().delete([object.clone()])?;
        }
        Ok(())
    }

    /// Marks them, if there are any. Returns the object that does.
    fn mark(&self, chunks: &[ChunkId]) -> Result<Option<String>> {
        if chunks.is_empty() { Ok(None) } else { self.put_mark(chunks).map(Some) }
    }

    fn put_mark(&self, chunks: &[ChunkId]) -> Result<String> {
        let mut name = [0; 8];
        random(&mut name)?;
        let object = format!("{MARKS}/{}", hex(&name));
        self.remote().put_new(&object, self.sealer().seal(&object, chunks.as_bytes())?)?;
        Ok(object)
    }

    /// The time of the service.
    fn now(&self) -> Result<Duration> {
        // A mark of nothing.
        let object = self.put_mark(&[])?;
        let now = self.remote().written(&object)?;
        self.remote().delete([object.clone()])?;
        now.ok_or(RepositoryError::Missing(object))
    }

    /// Calls `each` for every chunk that a snapshot needs.
    pub(crate) fn each_reference(&self, manifest: &Manifest, mut each: impl FnMut(ChunkId)) -> Result<()> {
        manifest.recipe.iter().chain(&manifest.contents).for_each(|chunk| each(chunk.id));
        let mut rest = Vec::new();
        for chunk in &manifest.contents {
            let object = chunk.id.object();
            rest.extend_from_slice(&chunk.open(self.sealer(), self.remote().get(&object)?.as_ref())?);
            let whole = rest.len() / size_of::<ChunkId>() * size_of::<ChunkId>();
            ids(&object, &rest[..whole])?.into_iter().for_each(&mut each);
            rest.drain(..whole);
        }
        if rest.is_empty() {
            return Ok(());
        }
        Err(RepositoryError::damaged(
            format!("the list of chunks of \"{}\"", manifest.name),
            "it ends in one",
        ))
    }
}
