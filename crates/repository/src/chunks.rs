//! Chunks: content cut where it says so itself, and each of them once.
//!
//! Thread safety: plain values. Invariants: what follows a change of some bytes is cut as before, a chunk or
//! two behind it (Xia and others, `FastCDC`, `TPDS` 2020); a chunk that is marked as unused is not used
//! again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use fastcdc::v2020::{FastCDC, Normalization};
use serde::{Deserialize, Serialize};

use crate::error::{RepositoryError, Result};
use crate::layout::{CHUNKS, ChunkId, MARKS};
use crate::remote::{Remote, Uploads};
use crate::seal::{Sealer, random};

const BYTES_MIN: usize = 256 << 10;
const BYTES_AVERAGE: usize = 1 << 20;
pub(crate) const BYTES_MAX: usize = 4 << 20;

/// A chunk where it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(String, u32)", into = "(String, u32)")]
pub(crate) struct ChunkRef {
    pub(crate) id: ChunkId,
    /// Bytes of content.
    pub(crate) len: u32,
}

impl TryFrom<(String, u32)> for ChunkRef {
    type Error = String;

    fn try_from((name, len): (String, u32)) -> Result<Self, String> {
        let id = ChunkId::parse(&name).ok_or_else(|| format!("{name} is no name of a chunk"))?;
        Ok(Self { id, len })
    }
}

impl From<ChunkRef> for (String, u32) {
    fn from(chunk: ChunkRef) -> Self {
        (chunk.id.to_string(), chunk.len)
    }
}

impl ChunkRef {
    /// Its content, of what the object holds.
    pub(crate) fn open(&self, sealer: &Sealer, sealed: Option<&Bytes>) -> Result<Bytes> {
        let content = self.id.open(sealer, sealed)?;
        if content.len() != self.len as usize {
            return Err(RepositoryError::damaged(self.id.object(), "it has another length"));
        }
        Ok(content)
    }
}

impl ChunkId {
    /// Its content, of what the object holds.
    pub(crate) fn open(&self, sealer: &Sealer, sealed: Option<&Bytes>) -> Result<Bytes> {
        let object = self.object();
        let Some(sealed) = sealed else { return Err(RepositoryError::Missing(object)) };
        let content = sealer.open(&object, sealed)?;
        if sealer.hash(&content) != self.hash {
            return Err(RepositoryError::damaged(object, "it holds something else"));
        }
        Ok(content)
    }
}

/// Where chunks are written, each once.
pub(crate) struct ChunkStore<'r> {
    remote: &'r Remote,
    sealer: Arc<Sealer>,
    generation: [u8; 4],
    /// Those that can be used, by their hashes.
    known: HashMap<[u8; 32], [u8; 4]>,
    /// Those that were used.
    used: HashSet<ChunkId>,
    uploads: Uploads,
}

impl<'r> ChunkStore<'r> {
    pub(crate) fn new(remote: &'r Remote, sealer: &Arc<Sealer>) -> Result<Self> {
        let mut generation = [0; 4];
        random(&mut generation)?;
        // Marks first: what is marked later is not gone for a day. What was marked once is so for as long as
        // it is there.
        let marked = marked(remote, sealer)?;
        let mut known = HashMap::new();
        each_chunk(remote, |id, _| {
            if !marked.contains(&id) {
                known.insert(id.hash, id.generation);
            }
        })?;
        let (used, uploads) = (HashSet::new(), Uploads::default());
        Ok(Self { remote, sealer: Arc::clone(sealer), generation, known, used, uploads })
    }

    /// Writes a chunk, unless it is there. Returns it, and whether this is its first use.
    pub(crate) fn put(&mut self, content: Bytes) -> Result<(ChunkRef, bool)> {
        let hash = self.sealer.hash(&content);
        let len = content.len() as u32;
        let known = self.known.get(&hash).copied();
        let id = ChunkId { hash, generation: known.unwrap_or(self.generation) };
        if known.is_none() {
            self.uploads.add(self.remote, id.object(), content, &self.sealer)?;
            self.known.insert(hash, self.generation);
        }
        Ok((ChunkRef { id, len }, self.used.insert(id)))
    }

    /// Everything is written when it returns: how many objects, and how long they are together (bytes).
    pub(crate) fn finish(&mut self) -> Result<(u64, u64)> {
        self.uploads.wait(self.remote)?;
        Ok((self.uploads.objects, self.uploads.bytes))
    }

    /// What is written so far (bytes).
    pub(crate) fn written_bytes(&self) -> u64 {
        self.uploads.bytes
    }

    /// Whether nothing of what was used is about to go.
    pub(crate) fn is_unmarked(&self) -> Result<bool> {
        Ok(marked(self.remote, &self.sealer)?.is_disjoint(&self.used))
    }

    /// Whether all that was used is still there.
    pub(crate) fn is_there(&self) -> Result<bool> {
        Ok(missing(self.remote, self.used.clone())?.is_empty())
    }
}

/// Content on its way into chunks.
pub(crate) struct Cutter {
    pending: BytesMut,
    seed: u64,
}

impl Cutter {
    pub(crate) fn new(sealer: &Sealer) -> Self {
        Self { pending: BytesMut::new(), seed: sealer.cut_seed }
    }

    /// What has not been cut off yet (bytes).
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn add(&mut self, content: &[u8]) {
        self.pending.extend_from_slice(content);
    }

    /// The next chunk, if where it ends does not depend on what follows.
    pub(crate) fn cut(&mut self) -> Option<Bytes> {
        (self.pending.len() >= BYTES_MAX).then(|| self.cut_off())
    }

    /// The next chunk, where nothing follows what was added.
    pub(crate) fn cut_rest(&mut self) -> Option<Bytes> {
        (!self.pending.is_empty()).then(|| self.cut_off())
    }

    /// Everything that is left, uncut.
    pub(crate) fn take(&mut self) -> Bytes {
        self.pending.split().freeze()
    }

    fn cut_off(&mut self) -> Bytes {
        let cdc = FastCDC::with_level_and_seed(
            &self.pending,
            BYTES_MIN,
            BYTES_AVERAGE,
            BYTES_MAX,
            Normalization::Level1,
            self.seed,
        );
        let (_, end) = cdc.cut(0, self.pending.len());
        self.pending.split_to(end).freeze()
    }
}

/// Calls `each` for every chunk that is there, and when it was written.
pub(crate) fn each_chunk(remote: &Remote, mut each: impl FnMut(ChunkId, Duration)) -> Result<()> {
    remote.list(CHUNKS, |name, written| {
        let file = name.rsplit('/').next().unwrap_or(name);
        if let Some(id) = ChunkId::parse(file) {
            each(id, written);
        }
        Ok(())
    })
}

/// Those of the chunks that are not there.
pub(crate) fn missing(remote: &Remote, mut needed: HashSet<ChunkId>) -> Result<HashSet<ChunkId>> {
    each_chunk(remote, |id, _| {
        needed.remove(&id);
    })?;
    Ok(needed)
}

/// Chunks that are marked. A mark that can't be read is an error.
pub(crate) fn marked(remote: &Remote, sealer: &Sealer) -> Result<HashSet<ChunkId>> {
    Ok(marks(remote, sealer, |_, error| Err(error))?.into_values().flatten().collect())
}

/// All chunks that are marked, by the objects that mark them. `damaged` hears of each mark that can't be
/// read.
pub(crate) fn marks(
    remote: &Remote,
    sealer: &Sealer,
    mut damaged: impl FnMut(String, RepositoryError) -> Result<()>,
) -> Result<BTreeMap<String, Vec<ChunkId>>> {
    let mut objects = Vec::new();
    remote.list(MARKS, |name, _| {
        objects.push(format!("{MARKS}/{name}"));
        Ok(())
    })?;
    let mut marks = BTreeMap::new();
    remote.get_all(objects.into_iter().map(|object| (object.clone(), object)), |object, sealed| {
        let opened = sealed.and_then(|sealed| {
            let content = sealed.map(|sealed| sealer.open(&object, &sealed)).transpose()?;
            content.map(|content| ids(&object, &content)).transpose()
        });
        match opened {
            Ok(Some(all)) => drop(marks.insert(object, all)),
            // One that has gone meanwhile has nothing left to say: its chunks have gone before.
            Ok(None) => {}
            Err(RepositoryError::Damaged { what, .. }) => {
                damaged(object.clone(), RepositoryError::DamagedMark { object, what })?;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    })?;
    Ok(marks)
}

/// Chunks that are listed one after another.
pub(crate) fn ids(object: &str, bytes: &[u8]) -> Result<Vec<ChunkId>> {
    use zerocopy::FromBytes;
    let all = <[ChunkId]>::ref_from_bytes(bytes);
    all.map(<[ChunkId]>::to_vec).map_err(|_| RepositoryError::damaged(object, "it is no list of chunks"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(cutter: &mut Cutter, content: &[u8]) -> Vec<Bytes> {
        let mut chunks = Vec::new();
        for part in content.chunks(700_001) {
            cutter.add(part);
            chunks.extend(std::iter::from_fn(|| cutter.cut()));
        }
        chunks.extend(std::iter::from_fn(|| cutter.cut_rest()));
        chunks
    }

    #[test]
    fn content_that_moves_is_cut_as_before() {
        let sealer = Sealer::new(None);
        let mut content = vec![0; 20 << 20];
        blake3::Hasher::new().finalize_xof().fill(&mut content);
        let before = cut(&mut Cutter::new(&sealer), &content);
        assert_eq!(before.concat(), content);
        assert!((10..60).contains(&before.len()), "{}", before.len());
        let rest = &before[..before.len() - 1];
        assert!(rest.iter().all(|chunk| (BYTES_MIN..=BYTES_MAX).contains(&chunk.len())));
        content.splice(5_000_000..5_000_000, *b"some bytes more");
        let after = cut(&mut Cutter::new(&sealer), &content);
        let new = after.iter().filter(|chunk| !before.contains(chunk)).count();
        assert!(new <= 3, "{new} of {} chunks are new", after.len());
    }
}
