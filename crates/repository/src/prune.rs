//! Taking away what is not to be kept, and what nothing refers to.
//!
//! A push in another process may be about to refer to a chunk to which nothing refers yet, and nothing here
//! knows of it: there is no lock that a machine which was switched off could leave behind. So a chunk goes in
//! two steps, a day apart. It is *marked*, which is an object of its own; from then on no push that begins
//! uses it, for as long as it is there: a mark goes behind the last of its chunks. When the mark is a day old
//! no push that began before can be under way (`push` makes sure of it), so the snapshots that are there then
//! are all that ever refer to the chunk. Where none of them does, it is removed, and it does not matter when:
//! a prune that stands still in between removes nothing that has come into use meanwhile.
//!
//! What a push under way has written has nothing that refers to it, either. It is not marked for a week, or a
//! push that takes longer than a day would write everything anew for ever; and beside a push that says that
//! it is under way for longer, not what was written since a week before it began.
//!
//! Thread safety: any number at once. Invariants: a chunk to which a manifest refers is never removed; ages
//! are told by the clock of the service alone, which is asked before anything that they are an answer to: an
//! age that is too small does no harm.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use kvfs_fs::transfer::StreamId;
use zerocopy::IntoBytes;

use crate::chunks::{each_chunk, ids, marks};
use crate::error::{RepositoryError, Result};
use crate::layout::{ChunkId, MARKS, hex, manifest_object};
use crate::leftovers;
use crate::manifest::{Manifest, Summary};
use crate::policy::Policy;
use crate::pushing::Pushes;
use crate::repository::Repository;
use crate::seal::random;

/// So long a chunk is marked before it goes.
pub(crate) const GRACE: Duration = Duration::from_hours(24);

/// So long before all pushes under way a chunk was written that is marked.
const UNMARKED: Duration = Duration::from_hours(7 * 24);

/// So many chunks are in one mark.
const MARK_CHUNKS_MAX: usize = 1 << 16;

/// What was taken away, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Snapshots, oldest first.
    pub snapshots: Vec<Summary>,
    /// Chunks that are removed.
    pub removed: u64,
    /// Chunks that nothing refers to, and that go in a day.
    pub marked: u64,
    /// Chunks that nothing refers to, and that are not marked before they are a week old, or while a push
    /// goes on that may need them.
    pub young: u64,
}

/// What nothing refers to.
struct Unused {
    /// The time of the service before the rest was looked at.
    now: Duration,
    pushes: Pushes,
    /// What was marked before.
    marks: BTreeMap<String, Vec<ChunkId>>,
    /// When each chunk was written that nothing refers to.
    chunks: HashMap<ChunkId, Duration>,
    /// Marked ones that something refers to.
    relied_on: HashSet<ChunkId>,
    /// Marks that can't be read.
    damaged: Vec<String>,
}

impl Repository {
    /// Takes the snapshots away that `policy` does not keep, marks what nothing refers to (any more), and
    /// removes what has been marked for a day. `is_alone`: no other process pushes or prunes, so that all of
    /// it goes at once, and marks that are damaged. `only_tells`: all that is there stays. O(chunks and
    /// references).
    ///
    /// # Errors
    /// The repository can't be read or written; damage, and then nothing is removed.
    pub fn prune(&self, policy: &Policy, is_alone: bool, only_tells: bool) -> Result<Pruned> {
        let mut summaries = Vec::new();
        self.each_manifest(|_, manifest| {
            summaries.push(manifest?.summary());
            Ok(())
        })?;
        let mut pruned = Pruned { snapshots: policy.goes(&summaries), ..Pruned::default() };
        let mut gone: HashSet<_> = pruned.snapshots.iter().map(|summary| summary.id).collect();
        if !gone.is_empty() {
            // Were one that stays damaged, those that go could be the last whole ones.
            self.each_manifest(|id, manifest| {
                if gone.contains(&id) { Ok(()) } else { self.each_reference(&manifest?, |_| {}) }
            })?;
        }
        if !only_tells {
            self.remote().delete(pruned.snapshots.iter().map(|summary| manifest_object(summary.id)))?;
            // One that is there again has been pushed meanwhile.
            gone.clear();
        }
        let unused = self.unused(&gone, is_alone)?;
        self.remove_marked(&unused, only_tells, &mut pruned)?;
        self.mark_unused(&unused, is_alone, only_tells, &mut pruned)?;
        if !only_tells {
            self.remote().delete(unused.pushes.ended)?;
            self.remove_leftovers(unused.now.saturating_sub(GRACE))?;
        }
        Ok(pruned)
    }

    /// What nothing refers to but snapshots that would be `gone`.
    fn unused(&self, gone: &HashSet<StreamId>, is_alone: bool) -> Result<Unused> {
        // What is marked and what the time is, before what is there, before what is referred to: so the
        // latter knows all pushes that have ended before, also where this stands still in between. Where
        // nothing is pushed everything is old.
        let mut damaged = Vec::new();
        let marks = marks(self.remote(), self.sealer(), |object, error| {
            // What it marks may be what a push under way does not use for that.
            if !is_alone {
                return Err(error);
            }
            damaged.push(object);
            Ok(())
        })?;
        let now = if is_alone { Duration::MAX } else { self.now()? };
        let pushes = Pushes::list(self, now)?;
        let marked: HashSet<_> = marks.values().flatten().copied().collect();
        let (mut chunks, mut relied_on) = (HashMap::new(), HashSet::new());
        each_chunk(self.remote(), |id, written| {
            chunks.insert(id, written);
        })?;
        self.each_manifest(|id, manifest| {
            let manifest = manifest?;
            if gone.contains(&id) {
                return Ok(());
            }
            self.each_reference(&manifest, |id| {
                chunks.remove(&id);
                if marked.contains(&id) {
                    relied_on.insert(id);
                }
            })
        })?;
        Ok(Unused { now, pushes, marks, chunks, relied_on, damaged })
    }

    /// Removes what has been marked for long enough and is not used.
    fn remove_marked(&self, unused: &Unused, only_tells: bool, pruned: &mut Pruned) -> Result<()> {
        for (object, ids) in &unused.marks {
            let goes: Vec<_> = ids.iter().filter(|id| unused.chunks.contains_key(id)).collect();
            // Another process may have done with it.
            let Some(written) = self.remote().written(object)? else { continue };
            if unused.now.saturating_sub(written) < GRACE {
                pruned.marked += goes.len() as u64;
                continue;
            }
            pruned.removed += goes.len() as u64;
            if only_tells {
                continue;
            }
            self.remote().delete(goes.into_iter().map(ChunkId::object))?;
            // What is used stays marked. Were it not, a push could come to rely on it, and its other
            // snapshots could go, while another prune that has seen neither stands still.
            if !ids.iter().any(|id| unused.relied_on.contains(id)) {
                self.remote().delete([object.clone()])?;
            }
        }
        Ok(())
    }

    /// Marks what is not marked yet and old enough; removes it where nothing is pushed.
    fn mark_unused(
        &self,
        unused: &Unused,
        is_alone: bool,
        only_tells: bool,
        pruned: &mut Pruned,
    ) -> Result<()> {
        let marked: HashSet<_> = unused.marks.values().flatten().collect();
        let fresh = unused.chunks.iter().filter(|(id, _)| !marked.contains(id));
        let since = unused.pushes.since.unwrap_or(unused.now).min(unused.now);
        let (old, young): (Vec<_>, Vec<_>) =
            fresh.partition(|(_, written)| since.saturating_sub(**written) >= UNMARKED);
        let old: Vec<_> = old.into_iter().map(|(id, _)| *id).collect();
        pruned.young += young.len() as u64;
        *(if is_alone { &mut pruned.removed } else { &mut pruned.marked }) += old.len() as u64;
        if only_tells {
            return Ok(());
        }
        // Also where they go at once: whatever happens meanwhile, nothing uses one of them.
        let marks = self.mark(&old)?;
        if is_alone {
            self.remote().delete(old.iter().map(ChunkId::object))?;
            self.remote().delete(marks)?;
        }
        // What they marked and nothing refers to has gone.
        self.remote().delete(unused.damaged.iter().cloned())
    }

    /// Removes what pushes that were killed have left half-written `before`.
    fn remove_leftovers(&self, before: Duration) -> Result<()> {
        let Some(dir) = self.remote().directory() else { return Ok(()) };
        let failed = |error| RepositoryError::Machine(format!("cannot clear up {}: {error}", dir.display()));
        leftovers::remove(&dir, before).map_err(failed)
    }

    /// Marks chunks, so that nothing comes to use them; returns the objects that do.
    pub(crate) fn mark(&self, chunks: &[ChunkId]) -> Result<Vec<String>> {
        chunks.chunks(MARK_CHUNKS_MAX).map(|part| self.put_mark(part)).collect()
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
