//! The thread that finds segments which no block refers to any more, and removes them.
//!
//! Purpose: a segment names its blocks in its extents, so whether it is in use costs a look at those. Looked
//! at are segments whose blocks were deleted, of which records are kept until then, and in turn, two for as
//! many blocks as a segment has that are written: overwriting leaves no trace. While all of them are looked
//! at once, half as many are written, so what was overwritten comes to no more than what is in use. A segment
//! that is less than half in use is written anew, unless a snapshot needs it anyway.
//!
//! A dead segment goes when no state that can be read has references to it: its death is durable, so no crash
//! brings an earlier state back, no reader of this process may be at one before that, no named snapshot, in
//! the list or read, lies between its birth and its death, and readers elsewhere have had time to move on.
//!
//! Thread safety: one thread, ended by its owner; what it is to look at is asked for by any thread.
//! Invariants: nothing refers anew to a segment that is full, so a dead one stays dead; a segment is marked
//! as dead before it is removed, so a removal that is cut off is made again.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use kvfs_store::blocks::block_key;
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::{BLOCK_BYTES, KeyRange, Keyspace, KeyspaceKind, Result, StoreError};
use object_store::ObjectStoreExt;

use super::queue::{LOOK_AGAIN, Task};
use super::record::{DEAD, Dead, EXTENTS, LOOKED_AT, SUSPECTS, extents_of, suspect_key, suspect_of};
use super::{BlockRef, Extent, Segments, parse_number};
use crate::error::of_objects;
use crate::keys;
use crate::pin::Pin;
use crate::shared::Shared;
use crate::space::Space;
use crate::wait_limit::{Waiter, is_unanswered};
use crate::write::Write;

/// A dead segment that could not be removed is left alone for so long.
const REFUSED: Duration = Duration::from_mins(10);

/// See the module.
pub(crate) struct Sweeper {
    shared: Arc<Shared>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sweeper {
    /// Dead segments are kept for `kept` more.
    pub(crate) fn start(shared: &Arc<Shared>, kept: Duration) -> Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (theirs, end) = (Arc::clone(shared), Arc::clone(&is_over));
        let thread = std::thread::Builder::new().name("kvfs-slate-swp".into());
        let thread = thread.spawn(move || {
            let ends = || end.load(Ordering::Acquire) || theirs.check_writable().is_err();
            Sweep::new(&theirs, kept).run(&ends);
        });
        let thread = thread.map_err(|error| StoreError::io("starting a thread", error))?;
        Ok(Self { shared: Arc::clone(shared), is_over, thread: Some(thread) })
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.shared.segments.queue.notify();
        // A panic of the thread has been told of already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A block that is in use.
struct Live {
    key: Bytes,
    reference: BlockRef,
}

/// What is known of a segment.
struct Found {
    extents: Vec<Extent>,
    /// Those that they are of, by number.
    spaces: BTreeMap<u32, Arc<Space>>,
    live: Vec<(Extent, Vec<Live>)>,
    /// Sequence number of the state that was looked at.
    at: u64,
}

impl Found {
    fn blocks(&self) -> usize {
        self.extents.iter().map(|extent| usize::from(extent.count)).sum()
    }

    fn live_blocks(&self) -> usize {
        self.live.iter().map(|(_, live)| live.len()).sum()
    }

    fn born(&self) -> u64 {
        self.extents.iter().map(|extent| extent.born).min().unwrap_or_default()
    }
}

struct Sweep<'a> {
    shared: &'a Arc<Shared>,
    kept: Duration,
    meta: Space,
    clock: SystemClock,
    dead: BTreeMap<u64, Waiting>,
    /// When it was looked last which of them may go.
    removed_at: Duration,
    looked_at: u64,
}

/// A dead segment, and since when no state that can be read here has needed it, as far as this opening knows:
/// times of other openings are of other clocks.
#[derive(Clone, Copy)]
struct Waiting {
    dead: Dead,
    free_since: Option<Duration>,
}

impl<'a> Sweep<'a> {
    fn new(shared: &'a Arc<Shared>, kept: Duration) -> Self {
        let meta = Space::new(keys::META, "", KeyspaceKind::Tuple);
        let (clock, dead) = (SystemClock::new(), BTreeMap::new());
        Self { shared, kept, meta, clock, dead, removed_at: Duration::ZERO, looked_at: 0 }
    }

    fn run(&mut self, ends: &dyn Fn() -> bool) {
        loop {
            match self.load() {
                Ok(()) => break,
                Err(error) if is_unanswered(&error) && !ends() => self.shared.segments.queue.pause(ends),
                Err(error) => {
                    if !ends() {
                        tracing::warn!(%error, "objects of large files that are deleted stay until the next mount");
                    }
                    return;
                }
            }
        }
        while !ends() && !self.is_done("segments of a crash", |sweep| sweep.remove_orphans(ends)) {
            self.shared.segments.queue.pause(ends);
        }
        loop {
            let task = self.shared.segments.queue.next(!self.dead.is_empty(), ends);
            let is_done = match task {
                Task::End => return,
                Task::Suspect(segment) => {
                    // One that is being filled is sent within the commit interval.
                    let is_done = !self.shared.segments.is_filling(segment)
                        && self.is_done("a segment", |sweep| sweep.look_at_suspect(segment));
                    if !is_done {
                        self.shared.segments.suspect(BTreeSet::from([segment]));
                    }
                    is_done
                }
                Task::Next => self.is_done("a segment", Self::look_at_next),
                Task::Wait => true,
            };
            let now = self.clock.monotonic();
            if now.saturating_sub(self.removed_at) >= LOOK_AGAIN {
                self.removed_at = now;
                self.remove_dead();
            }
            if !is_done {
                self.shared.segments.queue.pause(ends);
            }
        }
    }

    /// Whether `step` need not be made again: damage is told, and stays.
    fn is_done(&mut self, what: &str, step: impl FnOnce(&mut Self) -> Result<()>) -> bool {
        match step(self) {
            Ok(()) => true,
            Err(error) if is_unanswered(&error) => false,
            Err(error) => {
                tracing::warn!(%error, "{what} could not be looked at; its objects stay");
                true
            }
        }
    }

    /// Reads what was found before.
    fn load(&mut self) -> Result<()> {
        let pin = self.pin()?;
        self.looked_at = parse_number(pin.view().get(&self.meta, LOOKED_AT)?.as_deref())?;
        let mut dead = BTreeMap::new();
        pin.view().walk(&self.meta, &KeyRange::prefix(DEAD), 0, &mut |key, value| {
            let found = Dead::parse(key, value)?;
            dead.insert(found.segment, Waiting { dead: found, free_since: None });
            Ok(true)
        })?;
        self.dead = dead;
        let mut suspects = BTreeSet::new();
        pin.view().walk(&self.meta, &KeyRange::prefix(SUSPECTS), 0, &mut |key, _| {
            suspects.extend(suspect_of(key));
            Ok(true)
        })?;
        self.shared.segments.suspect(suspects);
        Ok(())
    }

    /// Removes segments of earlier openings that a crash has kept from being referred to: batches become
    /// durable in their order, so those are the last ones.
    fn remove_orphans(&mut self, ends: &dyn Fn() -> bool) -> Result<()> {
        let segments = &self.shared.segments;
        let epoch = segments.pending.lock().epoch;
        let failed = |error: &object_store::Error| of_objects("listing segments", error);
        let mut by_epoch: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        let mut listed = segments.service.list(Some(&segments.directory));
        loop {
            let next = async { listed.try_next().await.map_err(|error| failed(&error)) };
            let Some(object) = self.shared.within_limit(Waiter::Background, "listing segments", next)? else {
                break;
            };
            let name = object.location.filename().unwrap_or_default();
            let Ok(segment) = u64::from_str_radix(name, 16) else { continue };
            let of = (segment >> 32) as u32;
            if of < epoch {
                by_epoch.entry(of).or_default().insert(segment);
            }
        }
        for segments in by_epoch.into_values() {
            for segment in segments.into_iter().rev() {
                let is_known =
                    self.dead.contains_key(&segment) || !self.extents(&self.pin()?, segment)?.is_empty();
                if is_known || ends() {
                    break;
                }
                self.delete(segment)?;
            }
        }
        Ok(())
    }

    /// The newest position, read for as long as the store lasts.
    fn pin(&self) -> Result<Pin> {
        Ok(Pin::newest(self.shared)?.of_background())
    }

    fn extents(&self, pin: &Pin, segment: u64) -> Result<Vec<Extent>> {
        let mut extents = Vec::new();
        let range = KeyRange::prefix(&extents_of(segment));
        pin.view().walk(&self.meta, &range, 0, &mut |key, value| {
            extents.push(Extent::parse(key, value)?);
            Ok(true)
        })?;
        Ok(extents)
    }

    fn look_at_suspect(&mut self, segment: u64) -> Result<()> {
        self.look_at(segment)?;
        let mut write = Write::default();
        write.delete(keys::full(keys::META, &suspect_key(segment)));
        self.wait_for_room()?;
        let _order = self.shared.order.lock();
        if self.shared.segments.queue.has(segment) {
            // The record is of another batch now.
            return Ok(());
        }
        self.shared.commit(write, self.shared.newest() + 1, &[])
    }

    fn wait_for_room(&self) -> Result<()> {
        self.shared.wait_for_room(&mut self.shared.limit_of(Waiter::Background))
    }

    /// Looks at the segment behind the one that was looked at last.
    fn look_at_next(&mut self) -> Result<()> {
        let pin = self.pin()?;
        let mut next = None;
        for from in [self.looked_at.saturating_add(1), 0] {
            let end = KeyRange::prefix(EXTENTS).end.unwrap_or_default();
            let range = KeyRange::new(extents_of(from).freeze(), end);
            pin.view().walk(&self.meta, &range, 0, &mut |key, value| {
                next = Some(Extent::parse(key, value)?.segment);
                Ok(false)
            })?;
            if next.is_some() {
                break;
            }
        }
        drop(pin);
        let Some(next) = next else { return Ok(()) };
        let looked = self.look_at(next);
        if looked.as_ref().is_err_and(is_unanswered) {
            return looked;
        }
        // A damaged one is told of, and does not keep the others from their turn.
        self.looked_at = next;
        let mut write = Write::default();
        write.put(keys::full(keys::META, LOOKED_AT), Bytes::copy_from_slice(&next.to_le_bytes()));
        self.commit(write)?;
        looked
    }

    fn look_at(&mut self, segment: u64) -> Result<()> {
        let pin = {
            // What was appended is committed then.
            let _order = self.shared.order.lock();
            if self.shared.segments.is_filling(segment) {
                // Its turn comes again when it has been sent: no write may follow that would have it looked
                // at.
                self.shared.segments.suspect(BTreeSet::from([segment]));
                return Ok(());
            }
            self.pin()?
        };
        let found = self.find(&pin, segment)?;
        if found.extents.is_empty() {
            return Ok(());
        }
        if found.live_blocks() == 0 {
            return self.mark(segment, &found);
        }
        let is_needed = self.shared.named_sequences().iter().any(|sequence| *sequence >= found.born());
        if found.live_blocks() * 2 < found.blocks() && !is_needed {
            self.write_anew(segment, &found)?;
        }
        Ok(())
    }

    /// Which blocks of a segment are in use.
    fn find(&self, pin: &Pin, segment: u64) -> Result<Found> {
        let extents = self.extents(pin, segment)?;
        let mut spaces = BTreeMap::new();
        for extent in &extents {
            if let Entry::Vacant(new) = spaces.entry(extent.space) {
                new.insert(self.shared.space(Keyspace(extent.space))?);
            }
        }
        let live = live_in(pin, &extents, &spaces)?;
        Ok(Found { extents, spaces, live, at: pin.sequence() })
    }

    /// It is dead from now on, and its extents are of no use.
    fn mark(&mut self, segment: u64, found: &Found) -> Result<()> {
        let at_secs = self.clock.wall().as_secs();
        let bytes = (found.blocks() * BLOCK_BYTES) as u64;
        let dead = Dead { segment, born: found.born(), died: found.at, at_secs, bytes };
        let mut write = Write::default();
        write.put(keys::full(keys::META, &dead.key()), dead.value());
        for extent in &found.extents {
            write.delete(keys::full(keys::META, &extent.key()));
        }
        self.commit(write)?;
        self.dead.insert(segment, Waiting { dead, free_since: None });
        Ok(())
    }

    fn commit(&self, write: Write) -> Result<()> {
        self.wait_for_room()?;
        let _order = self.shared.order.lock();
        self.shared.commit(write, self.shared.newest() + 1, &[])
    }

    /// Writes the blocks that are in use to other segments.
    fn write_anew(&self, segment: u64, found: &Found) -> Result<()> {
        let content = self.content_of(found)?;
        self.wait_for_room()?;
        let _order = self.shared.order.lock();
        // Those that are still in use: it is looked once more, and nothing comes in between.
        let live = live_in(&self.pin()?, &found.extents, &found.spaces)?;
        let sequence = self.shared.newest() + 1;
        let mut write = Write::default();
        self.append(&live, &content, sequence, &mut write);
        let suspects = BTreeSet::from([segment]);
        write.put_all(Segments::suspect_records(&suspects));
        self.shared.commit(write, sequence, &[])?;
        self.shared.segments.suspect(suspects);
        Ok(())
    }

    /// The blocks that are in use, by their numbers in the segment.
    fn content_of(&self, found: &Found) -> Result<BTreeMap<u16, Bytes>> {
        let references = || found.live.iter().flat_map(|(_, live)| live).map(|live| live.reference);
        let content = self.shared.segments.read_all(references());
        let content = self.shared.within_limit(Waiter::Background, "reading a segment", content)?;
        let block = |at: usize| content.slice(at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES);
        Ok((0..).zip(references()).map(|(at, reference)| (reference.index, block(at))).collect())
    }

    /// Appends what of `content` is in use to segments, and puts what comes of it. The caller holds the order
    /// lock until that is committed.
    fn append(
        &self,
        live: &[(Extent, Vec<Live>)],
        content: &BTreeMap<u16, Bytes>,
        sequence: u64,
        write: &mut Write,
    ) {
        let segments = &self.shared.segments;
        for (extent, live) in live {
            for run in runs(live) {
                let blocks: Vec<_> =
                    run.iter().filter_map(|live| content.get(&live.reference.index).cloned()).collect();
                if blocks.len() < run.len() {
                    // Nothing comes to be in use again.
                    continue;
                }
                let appended = segments.append_run(extent.space, &run[0].key, sequence, &blocks);
                for (live, reference) in run.iter().zip(appended.references) {
                    write.put(keys::full(extent.space, &live.key), reference.value());
                }
                write.put_all(appended.records);
            }
        }
        write.put_all([segments.stored_record()]);
    }

    /// Removes what nothing can refer to any more. What can't be removed now stays for a while.
    fn remove_dead(&mut self) {
        let now = self.clock.monotonic();
        let durable = self.shared.durable();
        // On both sides: a snapshot that is being made comes to the list before it is no reader, one that is
        // read is a reader before it goes there.
        let before = self.shared.segments.positions().readers();
        let named = self.shared.named_sequences();
        let after = self.shared.segments.positions().readers();
        for waiting in self.dead.values_mut() {
            let Dead { born, died, .. } = waiting.dead;
            let is_read = || before.need(born..died) || after.need(born..died);
            let is_free = died <= durable
                && !is_read()
                && !named.iter().any(|sequence| (born..died).contains(sequence));
            waiting.free_since = is_free.then(|| waiting.free_since.unwrap_or(now));
        }
        let is_due = |waiting: &&Waiting| waiting.free_since.is_some_and(|since| since + self.kept <= now);
        let due: Vec<_> = self.dead.values().filter(is_due).map(|waiting| waiting.dead).collect();
        for dead in due {
            match self.remove(&dead) {
                Ok(()) => drop(self.dead.remove(&dead.segment)),
                Err(error) if is_unanswered(&error) => return,
                Err(error) => {
                    tracing::warn!(%error, "an object of a deleted file stays for now");
                    let later = Some(now + REFUSED);
                    self.dead.insert(dead.segment, Waiting { dead, free_since: later });
                }
            }
        }
    }

    fn remove(&self, dead: &Dead) -> Result<()> {
        self.delete(dead.segment)?;
        self.shared.segments.parts().forget(dead.segment);
        let mut write = Write::default();
        write.delete(keys::full(keys::META, &dead.key()));
        self.wait_for_room()?;
        let _order = self.shared.order.lock();
        self.shared.segments.removed(dead.bytes);
        write.put_all([self.shared.segments.stored_record()]);
        self.shared.commit(write, self.shared.newest() + 1, &[])
    }

    /// Deletes the object, which may be gone already.
    fn delete(&self, segment: u64) -> Result<()> {
        let segments = &self.shared.segments;
        let path = segments.path(segment);
        let deleted = async {
            match segments.service.delete(&path).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(of_objects("removing a segment", &error)),
            }
        };
        self.shared.within_limit(Waiter::Background, "removing a segment", deleted)
    }
}

/// The blocks of these extents that are in use.
fn live_in(
    pin: &Pin,
    extents: &[Extent],
    spaces: &BTreeMap<u32, Arc<Space>>,
) -> Result<Vec<(Extent, Vec<Live>)>> {
    let view = pin.view();
    let mut all = Vec::new();
    for extent in extents {
        let Some(space) = spaces.get(&extent.space) else { continue };
        let end = extent.first + u64::from(extent.count);
        let range = KeyRange::new(block_key(&extent.prefix, extent.first), block_key(&extent.prefix, end));
        let mut live = Vec::new();
        view.walk(space, &range, usize::from(extent.count), &mut |key, value| {
            if let Some(reference) = space.reference(value).filter(|found| found.segment == extent.segment) {
                live.push(Live { key: Bytes::copy_from_slice(key), reference });
            }
            Ok(true)
        })?;
        if !live.is_empty() {
            all.push((extent.clone(), live));
        }
    }
    Ok(all)
}

/// Those of `live` that are one after another in their file.
fn runs(live: &[Live]) -> impl Iterator<Item = &[Live]> {
    let number = |live: &Live| live.key.last_chunk::<8>().map(|number| u64::from_be_bytes(*number));
    live.chunk_by(move |left, right| number(left).map(|number| number + 1) == number(right))
}
