//! Pushing a snapshot: frames in, objects out.
//!
//! Thread safety: belongs to one thread. Invariants: the manifest is written when all that it refers to is; a
//! push that is broken off leaves chunks that the next one finds, or that a later `prune` removes.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_fs::transfer::{Begin, Frame};
use kvfs_store::clock::Clock;
use kvfs_store::{BLOCK_BYTES, Op};
use zerocopy::IntoBytes;

use crate::chunks::{ChunkRef, ChunkStore, Cutter};
use crate::error::{RepositoryError, Result};
use crate::layout::manifest_object;
use crate::manifest::{KeyspaceLine, Manifest};
use crate::prune::GRACE;
use crate::pushing::{Moment, Pushing, age, moment};
use crate::recipe::Step;
use crate::repository::Repository;

/// Blocks that lie together and come to no more stand in the recipe itself.
const INLINE_BYTES_MAX: usize = 128 << 10;

/// Neighbouring blocks on their way into chunks.
struct Run {
    prefix: Bytes,
    first: u64,
    /// The block behind it.
    end: u64,
    content: Cutter,
    /// The recipe says already that it comes.
    has_begun: bool,
}

/// What came of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pushed {
    /// Keys and values of the snapshot (bytes).
    pub bytes: u64,
    /// Keys, and ranges of blocks.
    pub records: u64,
    /// Objects that were not there.
    pub objects_new: u64,
    /// Their length (bytes).
    pub bytes_new: u64,
}

/// A snapshot on its way into a repository: it is there when [`Self::finish`] has returned, and not before.
pub struct Push<'r> {
    repository: &'r Repository,
    clock: Arc<dyn Clock>,
    /// When it was asked last whether what is used can be.
    looked: Moment,
    pushing: Pushing<'r>,
    object: String,
    /// The snapshot is in the repository, and something of it is not as it was written.
    is_there: bool,
    manifest: Manifest,
    chunks: ChunkStore<'r>,
    recipe: Cutter,
    contents: Cutter,
    keyspace: Option<u32>,
    run: Option<Run>,
}

impl<'r> Push<'r> {
    /// Begins to push the snapshot that the stream with that first frame leads to. O(chunks in the
    /// repository).
    ///
    /// # Errors
    /// [`RepositoryError::Present`]: it is there, and so is all that it needs; [`RepositoryError::NotWhole`];
    /// the repository can't be read.
    pub fn new(repository: &'r Repository, begin: &Begin, clock: &Arc<dyn Clock>) -> Result<Self> {
        if begin.from.is_some() {
            return Err(RepositoryError::NotWhole);
        }
        let object = manifest_object(begin.stream());
        let is_there = repository.remote().written(&object)?.is_some();
        if is_there && repository.is_whole(begin.stream())? {
            return Err(RepositoryError::Present(begin.to.1.clone()));
        }
        let clock = Arc::clone(clock);
        let looked = moment(&*clock);
        // Before a look at what is there.
        let pushing = Pushing::begin(repository, looked)?;
        let sealer = repository.sealer();
        Ok(Self {
            repository,
            looked,
            pushing,
            object,
            is_there,
            manifest: Manifest::new(begin, looked.1),
            clock,
            chunks: ChunkStore::new(repository.remote(), sealer)?,
            recipe: Cutter::new(sealer),
            contents: Cutter::new(sealer),
            keyspace: None,
            run: None,
        })
    }

    /// What has been written so far (bytes).
    pub fn written_bytes(&self) -> u64 {
        self.chunks.written_bytes()
    }

    /// Takes the next frame of the stream.
    ///
    /// # Errors
    /// The repository can't be written; the frame is not one of a whole snapshot.
    pub fn frame(&mut self, frame: Frame) -> Result<()> {
        self.pushing.go_on(moment(&*self.clock))?;
        match frame {
            Frame::Keyspace { name, owner, .. } => {
                self.manifest.keyspaces.push(KeyspaceLine::new(name, owner));
            }
            Frame::Records { keyspace, batch, .. } => {
                for op in batch.into_ops() {
                    self.manifest.bytes += op.payload_bytes() as u64;
                    self.manifest.records += 1;
                    self.record(keyspace, op)?;
                }
            }
            Frame::References { references, .. } => {
                self.end_run()?;
                self.manifest.records += references.len() as u64;
                for reference in references {
                    self.step(&Step::Reference(reference))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn record(&mut self, keyspace: u32, op: Op) -> Result<()> {
        if self.keyspace != Some(keyspace) {
            self.end_run()?;
            self.keyspace = Some(keyspace);
            self.step(&Step::Keyspace(keyspace))?;
        }
        match op {
            Op::Put { key, value, .. } => {
                self.end_run()?;
                self.step(&Step::Record { key, value })
            }
            Op::PutBlocks { prefix, first, data, .. } => self.blocks(prefix, first, &data),
            _ => Err(RepositoryError::NotWhole),
        }
    }

    fn blocks(&mut self, prefix: Bytes, first: u64, data: &[u8]) -> Result<()> {
        if !self.run.as_ref().is_some_and(|run| run.prefix == prefix && run.end == first) {
            self.end_run()?;
        }
        let content = || Cutter::new(self.repository.sealer());
        let mut run = self.run.take().unwrap_or_else(|| Run {
            prefix,
            first,
            end: first,
            content: content(),
            has_begun: false,
        });
        run.end += (data.len() / BLOCK_BYTES) as u64;
        run.content.add(data);
        while let Some(chunk) = run.content.cut() {
            self.content(&mut run, chunk)?;
        }
        self.run = Some(run);
        Ok(())
    }

    /// What comes next is no neighbour of the blocks that came last.
    fn end_run(&mut self) -> Result<()> {
        let Some(mut run) = self.run.take() else { return Ok(()) };
        if !run.has_begun && run.content.len() <= INLINE_BYTES_MAX {
            let data = run.content.take();
            return self.step(&Step::Blocks { prefix: run.prefix, first: run.first, data });
        }
        while let Some(chunk) = run.content.cut_rest() {
            self.content(&mut run, chunk)?;
        }
        Ok(())
    }

    fn content(&mut self, run: &mut Run, content: Bytes) -> Result<()> {
        if !run.has_begun {
            run.has_begun = true;
            self.step(&Step::Run { prefix: run.prefix.clone(), first: run.first })?;
        }
        let (chunk, is_first) = self.chunks.put(content)?;
        if is_first {
            self.contents.add(chunk.id.as_bytes());
            while let Some(chunk) = self.contents.cut() {
                let chunk = self.chunks.put(chunk)?.0;
                self.manifest.contents.push(chunk);
            }
        }
        self.step(&Step::Content(chunk))
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        self.recipe.add(&step.encode());
        while let Some(chunk) = self.recipe.cut() {
            let chunk = self.chunks.put(chunk)?.0;
            self.manifest.recipe.push(chunk);
        }
        Ok(())
    }

    /// Makes sure that nothing of what is used is about to go. What was not marked at the last look is there
    /// for as long as the grace lasts, so this looks again where that is long ago.
    fn expect_unmarked(&mut self) -> Result<()> {
        let now = moment(&*self.clock);
        if age(self.looked, now) <= GRACE / 2 {
            return Ok(());
        }
        if !self.chunks.is_unmarked()? {
            return Err(RepositoryError::TooSlow);
        }
        self.looked = now;
        Ok(())
    }

    /// The same behind the manifest, which each prune sees from now on; and that nothing has gone, whatever
    /// the clocks say, and though a prune believed that nothing was pushed.
    fn expect_sound(&mut self) -> Result<()> {
        self.expect_unmarked()?;
        if self.chunks.is_there()? { Ok(()) } else { Err(RepositoryError::TooSlow) }
    }

    /// The stream is through: the snapshot is in the repository when it returns.
    ///
    /// # Errors
    /// The repository can't be written; [`RepositoryError::Present`]: another push of it was faster;
    /// [`RepositoryError::TooSlow`].
    pub fn finish(mut self) -> Result<Pushed> {
        self.end_run()?;
        let mut rest = |cutter: &mut Cutter| -> Result<Vec<ChunkRef>> {
            std::iter::from_fn(|| cutter.cut_rest()).map(|chunk| Ok(self.chunks.put(chunk)?.0)).collect()
        };
        let recipe = rest(&mut self.recipe)?;
        let contents = rest(&mut self.contents)?;
        self.manifest.recipe.extend(recipe);
        self.manifest.contents.extend(contents);
        let (objects_new, bytes_new) = self.chunks.finish()?;
        self.expect_unmarked()?;
        let sealed = self.repository.sealer().seal(&self.object, &self.manifest.encode()?)?;
        let bytes_new = bytes_new + sealed.len() as u64;
        let remote = self.repository.remote();
        if self.is_there {
            remote.replace(&self.object, sealed.clone())?;
        } else if !remote.put_new(&self.object, sealed.clone())? {
            return Err(RepositoryError::Present(self.manifest.name));
        }
        // It may have stood still while it wrote, and a prune has looked for snapshots meanwhile.
        if let Err(error) = self.expect_sound() {
            let remote = self.repository.remote();
            // Another push may have found that something is missing, and written the snapshot anew.
            if remote.get(&self.object)?.is_some_and(|there| there == sealed) {
                remote.delete([self.object])?;
            }
            return Err(error);
        }
        // It counts for two days where that fails. So it does where the push came to nothing: what the next
        // one relies on is not marked meanwhile.
        self.pushing.end().ok();
        let Manifest { bytes, records, .. } = self.manifest;
        Ok(Pushed { bytes, records, objects_new: objects_new + 1, bytes_new })
    }
}
