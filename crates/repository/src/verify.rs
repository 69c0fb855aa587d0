//! Whether all that snapshots need is there, and as it was written.
//!
//! Thread safety: functions. Invariant: nothing is changed but that what is damaged is marked where that is
//! asked for.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use kvfs_fs::transfer::StreamId;

use crate::chunks::{marks, missing};
use crate::error::{RepositoryError, Result};
use crate::layout::ChunkId;
use crate::repository::Repository;

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verification {
    /// Snapshots.
    pub snapshots: u64,
    /// Chunks that they need.
    pub chunks: u64,
    /// Their content that was read and compared (bytes).
    pub bytes_read: u64,
    /// What is wrong: the object, what is wrong with it, and which snapshots need it.
    pub findings: Vec<String>,
    /// Chunks that were read and are not as they were written.
    damaged: Vec<ChunkId>,
}

impl Repository {
    /// Looks whether the chunks of all snapshots are there; with `reads_all` reads each of them. `at` hears
    /// how many chunks of how many have been read.
    ///
    /// # Errors
    /// The repository can't be read.
    pub fn verify(&self, reads_all: bool, at: &mut dyn FnMut(u64, u64)) -> Result<Verification> {
        let mut found = Verification::default();
        let (mut needed, mut incomplete) = (HashSet::new(), BTreeMap::new());
        self.each_manifest(|id, manifest| {
            found.snapshots += 1;
            let mut need = |id| {
                needed.insert(id);
            };
            match manifest.map(|manifest| self.each_reference(&manifest, &mut need)) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => drop(incomplete.insert(id, as_finding(error)?)),
                Err(error) => found.findings.push(error.to_string()),
            }
            Ok(())
        })?;
        found.chunks = needed.len() as u64;
        let missing = missing(self.remote(), needed.clone())?;
        let mut unsound: BTreeMap<_, _> =
            missing.iter().map(|id| (*id, RepositoryError::Missing(id.object()).to_string())).collect();
        marks(self.remote(), self.sealer(), |_, error| {
            found.findings.push(error.to_string());
            Ok(())
        })?;
        if reads_all {
            let there = needed.iter().filter(|id| !missing.contains(id));
            let mut read = 0;
            self.remote().get_all(there.map(|id| (id, id.object())), |id, sealed| {
                match sealed.and_then(|sealed| id.open(self.sealer(), sealed.as_ref())) {
                    Ok(content) => found.bytes_read += content.len() as u64,
                    Err(error) => {
                        if matches!(error, RepositoryError::Damaged { .. }) {
                            found.damaged.push(*id);
                        }
                        unsound.insert(*id, error.to_string());
                    }
                }
                read += 1;
                at(read, found.chunks);
                Ok(())
            })?;
        }
        self.name_who_needs(&incomplete, &unsound, &mut found)?;
        found.findings.sort();
        Ok(found)
    }

    /// Adds what is wrong with snapshots and chunks, if snapshots that are there now need it: what goes with
    /// one that is removed meanwhile is no damage.
    fn name_who_needs<'f>(
        &self,
        incomplete: &'f BTreeMap<StreamId, String>,
        unsound: &'f BTreeMap<ChunkId, String>,
        found: &mut Verification,
    ) -> Result<()> {
        if incomplete.is_empty() && unsound.is_empty() {
            return Ok(());
        }
        let mut needed_by: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        self.each_manifest(|id, manifest| {
            let Ok(manifest) = manifest else { return Ok(()) };
            let name = format!("\"{}\"", manifest.name);
            let mut needs = |what: Option<&'f String>| {
                if let Some(what) = what {
                    needed_by.entry(what).or_default().insert(name.clone());
                }
            };
            needs(incomplete.get(&id));
            let references = self.each_reference(&manifest, |id| needs(unsound.get(&id)));
            references.or_else(|error| as_finding(error).map(drop))
        })?;
        let lines = needed_by.into_iter().map(|(what, by)| {
            format!("{what} (needed by {})", by.into_iter().collect::<Vec<_>>().join(", "))
        });
        found.findings.extend(lines);
        Ok(())
    }

    /// Marks the chunks that were found to be damaged, so that no push that begins from now on relies on
    /// them: it writes their content anew. Snapshots that are there go on to need them. Returns how many
    /// there are.
    ///
    /// # Errors
    /// The repository can't be written.
    pub fn mark_damaged(&self, found: &Verification) -> Result<u64> {
        self.mark(&found.damaged)?;
        Ok(found.damaged.len() as u64)
    }
}

/// What is said of a snapshot's list of chunks that can't be read; what is not its fault is the error.
fn as_finding(error: RepositoryError) -> Result<String> {
    if error.is_damage() { Ok(error.to_string()) } else { Err(error) }
}
