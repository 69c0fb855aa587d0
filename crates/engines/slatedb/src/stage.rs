//! How a batch becomes one of `SlateDB`: merge records, patches and range deletes are resolved on what was
//! there before.
//!
//! Thread safety: one thread, which holds the order lock. Invariant: nothing is written here, so a failure
//! changes nothing.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use kvfs_engine_common::Resolving;
use kvfs_store::blocks::block_of_key;
use kvfs_store::{Batch, KeyRange, Keyspace, KeyspaceKind, MergeFunction, Op, Result};

use crate::journal::Record;
use crate::keys;
use crate::ranges::DeadRange;
use crate::segments::{BlockRef, Segments};
use crate::shared::Shared;
use crate::space::Space;
use crate::view::View;
use crate::write::Write;

/// A range of at most so many keys is deleted key by key.
const KEYS_DELETED_MAX: usize = 64;

/// The keyspaces of a batch.
pub(crate) struct Spaces {
    by_keyspace: BTreeMap<Keyspace, Arc<Space>>,
}

impl Spaces {
    /// Finds those of a record of the journal.
    pub(crate) fn of_record(shared: &Shared, record: &Record) -> Result<Self> {
        let of_values = record.values.iter().map(|(number, ..)| *number);
        let numbers: BTreeSet<_> =
            of_values.chain(record.deleted.iter().map(|(number, _)| *number)).collect();
        let found = numbers.into_iter().map(|number| Ok((Keyspace(number), shared.space(Keyspace(number))?)));
        Ok(Self { by_keyspace: found.collect::<Result<_>>()? })
    }

    /// Finds those of `batch`, and checks that its operations fit them.
    pub(crate) fn of(shared: &Shared, batch: &Batch) -> Result<Self> {
        let mut by_keyspace = BTreeMap::new();
        for op in batch.ops() {
            let keyspace = op.keyspace();
            let space = match by_keyspace.entry(keyspace) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(shared.space(keyspace)?),
            };
            op.check_kind(space.kind, &space.name)?;
            if matches!(op, Op::Merge { .. }) {
                space.merge_function()?;
            }
        }
        Ok(Self { by_keyspace })
    }

    fn get(&self, keyspace: Keyspace) -> &Space {
        &self.by_keyspace[&keyspace]
    }
}

/// What a batch comes to.
pub(crate) struct Staged<'a> {
    view: View<'a>,
    spaces: &'a Spaces,
    /// What each key that is written or deleted by itself holds in the end.
    values: BTreeMap<(Keyspace, Bytes), Option<Bytes>>,
    /// Earlier than all of `values` that lie in them.
    deleted: Vec<(Keyspace, KeyRange)>,
    /// Segments that deleted blocks were in.
    suspects: BTreeSet<u64>,
}

/// What is written of a batch.
pub(crate) struct Written {
    pub(crate) write: Write,
    /// The ranges that it deletes.
    pub(crate) dead: Vec<Arc<DeadRange>>,
    /// Segments that may be in no use behind it.
    pub(crate) suspects: BTreeSet<u64>,
}

/// What `batch` does, for `SlateDB`.
pub(crate) fn stage<'a>(shared: &'a Shared, spaces: &'a Spaces, batch: Batch) -> Result<Staged<'a>> {
    let view = View::newest(shared);
    let mut staged =
        Staged { view, spaces, values: BTreeMap::new(), deleted: Vec::new(), suspects: BTreeSet::new() };
    for op in batch.into_ops() {
        staged.add(op)?;
    }
    Ok(staged)
}

impl<'a> Staged<'a> {
    /// What a record of the journal says that a batch came to.
    pub(crate) fn of_record(shared: &'a Shared, spaces: &'a Spaces, record: Record) -> Result<Self> {
        let view = View::newest(shared);
        let mut suspects = BTreeSet::new();
        for (number, key, value) in &record.values {
            let space = spaces.get(Keyspace(*number));
            if value.is_none() && space.kind == KeyspaceKind::Block {
                let only = KeyRange::new(key.clone(), [key, &[0][..]].concat());
                view.walk(space, &only, 0, &mut |_, value| {
                    suspects.extend(space.segment_of(value));
                    Ok(true)
                })?;
            }
        }
        let values = record.values.into_iter().map(|(number, key, value)| ((Keyspace(number), key), value));
        let deleted = record.deleted.into_iter().map(|(number, range)| (Keyspace(number), range));
        Ok(Self { view, spaces, values: values.collect(), deleted: deleted.collect(), suspects })
    }

    /// For the journal, which knows what was before, of a batch that will have this sequence number.
    pub(crate) fn record(&self, sequence: u64) -> Record {
        let values = self.values.iter().map(|((space, key), value)| (space.0, key.clone(), value.clone()));
        let deleted = self.deleted.iter().map(|(space, range)| (space.0, range.clone()));
        Record { sequence, previous: 0, values: values.collect(), deleted: deleted.collect() }
    }
}

impl Resolving for Staged<'_> {
    fn set(&mut self, keyspace: Keyspace, key: Bytes, value: Option<Bytes>) {
        self.values.insert((keyspace, key), value);
    }

    fn current(&self, keyspace: Keyspace, key: &Bytes) -> Result<Option<Bytes>> {
        if let Some(value) = self.values.get(&(keyspace, key.clone())) {
            return Ok(value.clone());
        }
        let is_deleted = self.deleted.iter().any(|(of, range)| *of == keyspace && range.contains(key));
        if is_deleted { Ok(None) } else { self.view.get(self.spaces.get(keyspace), key) }
    }

    fn merge_function(&self, keyspace: Keyspace) -> Result<Arc<dyn MergeFunction>> {
        self.spaces.get(keyspace).merge_function()
    }

    fn delete_range(&mut self, keyspace: Keyspace, range: KeyRange) -> Result<()> {
        let (mut keys, mut suspects) = (Vec::new(), BTreeSet::new());
        let space = self.spaces.get(keyspace);
        self.view.walk(space, &range, 0, &mut |key, value| {
            keys.push(Bytes::copy_from_slice(key));
            suspects.extend(space.segment_of(value));
            Ok(keys.len() <= KEYS_DELETED_MAX)
        })?;
        let end = range.end.clone().unwrap_or_default();
        for (_, value) in self.values.range_mut((keyspace, range.start.clone())..(keyspace, end)) {
            *value = None;
        }
        if keys.len() <= KEYS_DELETED_MAX {
            for key in keys {
                self.set(keyspace, key, None);
            }
            self.suspects.append(&mut suspects);
        } else {
            self.deleted.push((keyspace, range));
        }
        Ok(())
    }
}

impl Staged<'_> {
    /// What is written, with the sequence number that the batch will have. Long runs of blocks go to
    /// segments: the caller holds the order lock until it is committed.
    pub(crate) fn into_write(self, sequence: u64) -> Written {
        let segments = &self.view.shared.segments;
        let mut write = Write::default();
        let mut runs = Runs { segments, born: sequence, blocks: 0, has_segments: false };
        let mut values = self.values.into_iter().peekable();
        while let Some(((keyspace, key), value)) = values.next() {
            match value {
                Some(block) if self.spaces.get(keyspace).kind == KeyspaceKind::Block => {
                    let mut run = vec![(key, block)];
                    while let Some(next) = values.next_if(|((of, next), value)| {
                        *of == keyspace && value.is_some() && follows(&run[run.len() - 1].0, next)
                    }) && let ((_, next), Some(block)) = next
                    {
                        run.push((next, block));
                    }
                    runs.put(keyspace.0, run, &mut write);
                }
                Some(value) => write.put(keys::full(keyspace.0, &key), value),
                None => write.delete(keys::full(keyspace.0, &key)),
            }
        }
        segments.written(runs.blocks);
        if runs.has_segments {
            write.put_all(segments.records());
        }
        write.put_all(Segments::suspect_records(&self.suspects));
        let dead = |(index, (keyspace, range)): (u32, (Keyspace, KeyRange))| {
            Arc::new(DeadRange { space: keyspace.0, range, sequence, index })
        };
        let dead: Vec<_> = (0..).zip(self.deleted).map(dead).collect();
        write.put_all(dead.iter().map(|dead| (keys::full(keys::META, &dead.key()), dead.value())));
        Written { write, dead, suspects: self.suspects }
    }
}

/// Where runs of blocks go.
struct Runs<'a> {
    segments: &'a Arc<Segments>,
    /// Sequence number of the batch.
    born: u64,
    /// Blocks so far.
    blocks: usize,
    /// Some of them went to segments.
    has_segments: bool,
}

impl Runs<'_> {
    /// Puts a run of blocks, by their keys in the keyspace: as it is, or as references.
    fn put(&mut self, space: u32, run: Vec<(Bytes, Bytes)>, write: &mut Write) {
        self.blocks += run.len();
        let (keys, mut values): (Vec<_>, Vec<_>) = run.into_iter().unzip();
        if values.len() >= self.segments.run_blocks_min() {
            self.has_segments = true;
            let appended = self.segments.append_run(space, &keys[0], self.born, &values);
            write.put_all(appended.records);
            values = appended.references.into_iter().map(BlockRef::value).collect();
        }
        write.put_all(keys.iter().map(|key| keys::full(space, key)).zip(values));
    }
}

/// Whether the second one is the key of the block behind that of the first one.
fn follows(key: &Bytes, next: &Bytes) -> bool {
    let (Some((prefix, block)), Some((next_prefix, next))) = (block_of_key(key), block_of_key(next)) else {
        return false;
    };
    prefix == next_prefix && block.checked_add(1) == Some(next)
}
