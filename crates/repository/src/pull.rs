//! Pulling a snapshot: objects in, the frames of its stream out.
//!
//! Thread safety: belongs to one thread. Invariants: the bytes are those of the stream that
//! `kvfs snapshot send` makes of the snapshot; what is read ahead is bounded; content in front of where the
//! stream is gone on with is not read.

use std::collections::VecDeque;
use std::io::Read;

use bytes::{Bytes, BytesMut};
use kvfs_fs::transfer::{Begin, Reframer, StreamId, StreamReader};
use kvfs_store::{BLOCK_BYTES, Compression, Keyspace, Op};

use crate::chunks::{BYTES_MAX, ChunkRef};
use crate::error::{RepositoryError, Result};
use crate::layout::manifest_object;
use crate::manifest::Manifest;
use crate::recipe::{RecipeReader, Step};
use crate::remote::Pending;
use crate::repository::Repository;

/// What is read ahead (bytes of steps and their content, and chunks of the recipe).
const AHEAD_BYTES: u64 = 48 << 20;
const AHEAD_RECIPE: usize = 4;
/// Chunks of content that are asked for at once: a recipe may say that they are shorter than they are.
const AHEAD_CONTENT: usize = 64;

/// Of what makes other frames than those that are there already.
const OTHER_STREAM: &str = "it does not begin with what has arrived";

/// A step, and what it needs of the repository.
struct Queued {
    step: Step,
    /// `None`: nothing, or its content is not asked for.
    content: Option<Pending<Option<Bytes>>>,
}

/// The blocks that content goes to.
struct Run {
    prefix: Bytes,
    next: u64,
    /// Less than a block.
    carry: BytesMut,
}

/// The stream of a snapshot in a repository, read as its frames come.
pub struct Pull<'r> {
    repository: &'r Repository,
    manifest: Manifest,
    /// Chunks of the recipe that are not asked for yet, and those that are.
    recipe: VecDeque<ChunkRef>,
    coming: VecDeque<(ChunkRef, Pending<Option<Bytes>>)>,
    reader: RecipeReader,
    queue: VecDeque<Queued>,
    queued_bytes: u64,
    /// Steps in the queue whose content is asked for.
    asked: usize,
    keyspace: u32,
    run: Option<Run>,
    reframer: Reframer,
    out: Bytes,
    is_through: bool,
}

impl<'r> Pull<'r> {
    /// The stream that leads to the snapshot `id`, from where `behind` has come to: nothing, or the beginning
    /// of that stream.
    ///
    /// # Errors
    /// There is no such snapshot; the repository can't be read; damage.
    pub fn new(repository: &'r Repository, id: StreamId, behind: &StreamReader) -> Result<Self> {
        let manifest = repository.manifest(id)?;
        let mut reframer = Reframer::behind(behind);
        let other = |_| RepositoryError::damaged(manifest_object(id), OTHER_STREAM);
        reframer.begin(&manifest.begin()).map_err(other)?;
        for line in &manifest.keyspaces {
            reframer.keyspace(&line.name, line.owner()).map_err(other)?;
        }
        Ok(Self {
            repository,
            recipe: manifest.recipe.iter().copied().collect(),
            manifest,
            coming: VecDeque::new(),
            reader: RecipeReader::default(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            asked: 0,
            keyspace: 0,
            run: None,
            reframer,
            out: Bytes::new(),
            is_through: false,
        })
    }

    /// What the first frame says.
    pub fn begin(&self) -> Begin {
        self.manifest.begin()
    }

    /// About the length of the stream (bytes).
    pub fn bytes_expected(&self) -> u64 {
        self.manifest.bytes
    }

    /// Does what comes next. `false`: everything was done.
    fn step(&mut self) -> Result<bool> {
        self.look_ahead()?;
        let Some(Queued { step, content }) = self.queue.pop_front() else {
            self.end_run()?;
            self.reframer.end().map_err(|_| self.damaged(OTHER_STREAM))?;
            return Ok(false);
        };
        self.queued_bytes -= weight(&step);
        self.asked -= usize::from(content.is_some());
        if !matches!(step, Step::Content(_)) {
            self.end_run()?;
        }
        let keyspace = Keyspace(self.keyspace);
        match step {
            Step::Keyspace(number) => self.keyspace = number,
            Step::Record { key, value } => self.record(Op::Put { keyspace, key, value })?,
            Step::Blocks { prefix, first, data } => {
                let compression = Compression::None;
                self.record(Op::PutBlocks { keyspace, prefix, first, data, compression })?;
            }
            Step::Run { prefix, first } => {
                self.run = Some(Run { prefix, next: first, carry: BytesMut::new() });
            }
            Step::Reference(reference) => {
                self.reframer.reference(reference).map_err(|_| self.damaged(OTHER_STREAM))?;
            }
            Step::Content(chunk) => {
                let content = match content {
                    Some(pending) => {
                        let sealed = self.repository.remote().finish(pending)?;
                        chunk.open(self.repository.sealer(), sealed.as_ref())?
                    }
                    None => Bytes::from(vec![0; chunk.len as usize]),
                };
                self.content(&content)?;
            }
        }
        Ok(true)
    }

    fn content(&mut self, content: &[u8]) -> Result<()> {
        let Some(run) = &mut self.run else { return Err(self.damaged("content of nothing")) };
        run.carry.extend_from_slice(content);
        let len = run.carry.len() / BLOCK_BYTES * BLOCK_BYTES;
        let (first, prefix, data) = (run.next, run.prefix.clone(), run.carry.split_to(len).freeze());
        let Some(next) = run.next.checked_add((len / BLOCK_BYTES) as u64) else {
            return Err(self.damaged("blocks behind the last number"));
        };
        run.next = next;
        let (keyspace, compression) = (Keyspace(self.keyspace), Compression::None);
        self.record(Op::PutBlocks { keyspace, prefix, first, data, compression })
    }

    fn end_run(&mut self) -> Result<()> {
        match self.run.take() {
            Some(run) if !run.carry.is_empty() => Err(self.damaged("a part of a block")),
            _ => Ok(()),
        }
    }

    fn record(&mut self, op: Op) -> Result<()> {
        let keyspace = op.keyspace().0;
        self.reframer.record(keyspace, op).map_err(|_| self.damaged("a record that has no place there"))
    }

    /// Asks for what the next steps need.
    fn look_ahead(&mut self) -> Result<()> {
        let has_room = |pull: &Self| pull.queued_bytes < AHEAD_BYTES && pull.asked < AHEAD_CONTENT;
        while self.queue.is_empty() || (has_room(self) && !self.is_behind()) {
            let Some(step) = self.next_step()? else { break };
            let mut content = None;
            if let Step::Content(chunk) = &step {
                let is_known = self.queue.is_empty() && self.reframer.is_known(chunk.len.into());
                content = (!is_known).then(|| self.repository.remote().start_get(chunk.id.object()));
            }
            self.queued_bytes += weight(&step);
            self.asked += usize::from(content.is_some());
            self.queue.push_back(Queued { step, content });
        }
        Ok(())
    }

    /// Whether what comes next is known, whatever it is.
    fn is_behind(&self) -> bool {
        self.reframer.is_known(BYTES_MAX as u64)
    }

    fn next_step(&mut self) -> Result<Option<Step>> {
        loop {
            let step = self.reader.next().map_err(|what| self.damaged(what))?;
            if step.is_some() {
                return Ok(step);
            }
            while self.coming.len() < AHEAD_RECIPE
                && let Some(chunk) = self.recipe.pop_front()
            {
                self.coming.push_back((chunk, self.repository.remote().start_get(chunk.id.object())));
            }
            let Some((chunk, pending)) = self.coming.pop_front() else {
                let is_whole = self.reader.is_empty();
                return if is_whole { Ok(None) } else { Err(self.damaged("it ends within a step")) };
            };
            let sealed = self.repository.remote().finish(pending)?;
            self.reader.add(&chunk.open(self.repository.sealer(), sealed.as_ref())?);
        }
    }

    fn damaged(&self, what: &'static str) -> RepositoryError {
        RepositoryError::damaged(format!("the recipe of \"{}\"", self.manifest.name), what)
    }
}

/// What a step that waits takes, or will (bytes).
fn weight(step: &Step) -> u64 {
    let payload = match step {
        Step::Record { key, value } => key.len() + value.len(),
        Step::Blocks { data, .. } => data.len(),
        Step::Content(chunk) => chunk.len as usize,
        Step::Keyspace(_) | Step::Run { .. } | Step::Reference(_) => 0,
    };
    (payload + size_of::<Queued>()) as u64
}

impl Read for Pull<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        while self.out.is_empty() {
            if let Some(frame) = self.reframer.next_frame() {
                self.out = frame.into();
            } else if self.is_through {
                return Ok(0);
            } else {
                self.is_through = !self.step()?;
            }
        }
        let len = buf.len().min(self.out.len());
        buf[..len].copy_from_slice(&self.out.split_to(len));
        Ok(len)
    }
}
