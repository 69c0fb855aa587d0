//! Whether all that snapshots need is there, and as it was written.
//!
//! Thread safety: functions. Invariant: nothing is changed but that what is damaged is marked where that is
//! asked for.

use std::collections::{BTreeMap, HashMap};

use crate::chunks::{each_chunk, marks};
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
        let mut needed: HashMap<ChunkId, Vec<usize>> = HashMap::new();
        let mut names = Vec::new();
        for (_, manifest) in self.manifests()? {
            found.snapshots += 1;
            let manifest = match manifest {
                Ok(manifest) => manifest,
                Err(error) => {
                    found.findings.push(error.to_string());
                    continue;
                }
            };
            let number = names.len();
            names.push(format!("\"{}\"", manifest.name));
            let references = self.each_reference(&manifest, |id| {
                let by = needed.entry(id).or_default();
                if by.last() != Some(&number) {
                    by.push(number);
                }
            });
            match references {
                Ok(()) => {}
                Err(error @ (RepositoryError::Missing(_) | RepositoryError::Damaged { .. })) => {
                    found.findings.push(format!("{error} (needed by {})", names[number]));
                }
                Err(error) => return Err(error),
            }
        }
        found.chunks = needed.len() as u64;
        let who = |by: &[usize]| by.iter().map(|&n| names[n].as_str()).collect::<Vec<_>>().join(", ");
        let mut missing: BTreeMap<_, _> = needed.iter().map(|(id, by)| (*id, by)).collect();
        each_chunk(self.remote(), |id, _| {
            missing.remove(&id);
        })?;
        for (id, by) in &missing {
            let error = RepositoryError::Missing(id.object());
            found.findings.push(format!("{error} (needed by {})", who(by)));
        }
        marks(self.remote(), self.sealer(), |_, error| {
            found.findings.push(error.to_string());
            Ok(())
        })?;
        if reads_all {
            let there = needed.iter().filter(|(id, _)| !missing.contains_key(id));
            let mut read = 0;
            self.remote().get_all(there.map(|(id, by)| ((id, by), id.object())), |(id, by), sealed| {
                match sealed.and_then(|sealed| id.open(self.sealer(), sealed.as_ref())) {
                    Ok(content) => found.bytes_read += content.len() as u64,
                    Err(error) => {
                        if matches!(error, RepositoryError::Damaged { .. }) {
                            found.damaged.push(*id);
                        }
                        found.findings.push(format!("{error} (needed by {})", who(by)));
                    }
                }
                read += 1;
                at(read, found.chunks);
                Ok(())
            })?;
        }
        found.findings.sort();
        found.findings.dedup();
        Ok(found)
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
