//! What becomes of journals at an opening, and at a close.
//!
//! Purpose: the store says whose journal may hold more than object storage has: the record `journal`, with
//! the opening that writes it. While that stands there, and no other, nothing was written since by another
//! mount, so what the journal holds is the continuation of what is in the store. Who opens the store without
//! having that journal gives up what is in it, which has to be asked for, and leaves a note for its owner.
//!
//! ```text
//!                 record `journal`        files of the opening
//! clean           none                    none
//! open, crashed   that opening            there: applied by the next opening
//! lost            none, or another one    there: refused, where the record `journal-lost` of that
//!                                         opening says that something is missing
//! closed          none                    may be left: removed
//! ```
//!
//! Thread safety: functions; nothing else writes to the store meanwhile. Invariants: files are there, on the
//! disk, before the record names their opening, and until it names another one, or none; a version of kvfs
//! that knows no journals does not write to a store whose record names one.

use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use kvfs_store::{KeyspaceKind, Result, StoreError};
use slatedb::Db;

use super::files::{Set, Writer};
use super::{Journal, JournalOptions, Record};
use crate::error::of_slatedb;
use crate::follower::Opener;
use crate::holder::{Claimant, shown};
use crate::keys;
use crate::meta::{self, Meta};
use crate::segments::{self, parse_number};
use crate::shared::Shared;
use crate::space::Space;
use crate::stage::{Spaces, Staged};
use crate::view::View;
use crate::write::Write;

/// The key of the record of the journal that may hold more than the store: its opening (little-endian `u64`),
/// and who writes it.
const JOURNAL: &[u8] = b"journal";

/// Before an opening (big-endian `u64`), in the key of what the store had (sequence number, little-endian
/// `u64`) when its journal was given up.
const LOST: &[u8] = b"journal-lost/";

/// In memory, of what the engine may take: a part of so many.
const QUEUE_OF_BACKLOG: u64 = 4;

/// The journal that the store names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OpenJournal {
    opening: u64,
    /// For messages.
    holder: String,
}

impl OpenJournal {
    /// `None`: the store names none.
    pub(crate) fn read(view: &View<'_>, meta: &Space) -> Result<Option<Self>> {
        view.get(meta, JOURNAL)?.map(|value| Self::parse(&value)).transpose()
    }

    fn parse(value: &[u8]) -> Result<Self> {
        let Some((opening, holder)) = value.split_first_chunk() else {
            return Err(StoreError::corrupt("SlateDB", "the record of the journal is damaged"));
        };
        let holder = shown(&String::from_utf8_lossy(holder));
        Ok(Self { opening: u64::from_le_bytes(*opening), holder })
    }

    fn value(&self) -> Bytes {
        let mut value = BytesMut::new();
        value.put_u64_le(self.opening);
        value.put_slice(self.holder.as_bytes());
        value.freeze()
    }
}

fn lost_key(opening: u64) -> Bytes {
    keys::full(keys::META, &[LOST, &opening.to_be_bytes()].concat())
}

/// What is to be done with what was found.
#[derive(Default)]
pub(crate) struct Found {
    /// The journal that goes on where the store ends.
    own: Option<Set>,
    /// All of which is in the store, or not wanted any more.
    done: Vec<Set>,
    /// Opening of the journal elsewhere that is given up.
    given_up: Option<u64>,
}

/// Brings what an earlier journal of this machine holds into the store, and begins one if it is asked for.
///
/// # Errors
/// It can't be read, or something is missing before what it holds; object storage does not answer.
pub(crate) fn begin(
    shared: &Shared,
    meta: &Meta,
    found: &Found,
    options: Option<&JournalOptions>,
    claimant: &Claimant,
) -> Result<Option<Journal>> {
    if let Some(own) = &found.own {
        replay(shared, meta, own)?;
    }
    let opening = epoch(shared.writer()?);
    let journal = match options {
        Some(JournalOptions { dir, is_written: true }) => {
            let writer = Writer::create(dir, meta.uuid, opening);
            // What is promised without one is more. A disk that is full of an earlier one has space by the
            // next mount.
            let failed = |error: &io::Error| {
                tracing::error!(dir = %dir.display(), %error, "no journal can be made: until the next mount syncs wait for object storage");
            };
            let writer = writer.inspect_err(failed).ok();
            let queue_bytes_max = shared.backlog_bytes() / QUEUE_OF_BACKLOG;
            writer.map(|writer| Journal::new(dir, writer, shared.newest(), queue_bytes_max))
        }
        _ => None,
    };
    write_meta(shared, |write| {
        // Notes stay: there may be several copies of a journal, each of which is refused if it has more.
        for opening in found.given_up.into_iter().chain(found.own.as_ref().map(|own| own.opening)) {
            write.put(lost_key(opening), Bytes::copy_from_slice(&shared.newest().to_le_bytes()));
        }
        if journal.is_some() {
            shared.segments.set_told(true);
            let record = OpenJournal { opening, holder: claimant.name.clone() };
            write.put(keys::full(keys::META, JOURNAL), record.value());
            write.put(keys::full(keys::META, meta::VERSION), meta::VERSION_JOURNAL.into());
        } else if meta.journal.is_some() {
            forget(shared, write)?;
        }
        Ok(())
    })?;
    found.own.iter().chain(&found.done).for_each(Set::remove);
    Ok(journal)
}

/// Refuses to show a store that is only read as it is in object storage, where a journal here has more.
///
/// # Errors
/// So it is; the journal can't be read.
pub(crate) fn expect_applied(newest: u64, meta: &Meta, options: Option<&JournalOptions>) -> Result<()> {
    let (Some(journal), Some(options)) = (&meta.journal, options) else { return Ok(()) };
    for set in Set::find(&options.dir)?.iter().filter(|set| set.opening == journal.opening) {
        let lacking = set.count(meta.uuid, newest)?;
        if lacking > 0 {
            return Err(refused(format!(
                "{set} holds {lacking} changes that object storage lacks; mount it once, so that it has them (or with -o ro,follow, which \
                 shows it without them)"
            )));
        }
    }
    Ok(())
}

/// The store is closed, and object storage has all of it.
pub(crate) fn end(shared: &Shared, journal: &Journal) -> Result<()> {
    write_meta(shared, |write| forget(shared, write))?;
    journal.remove();
    Ok(())
}

/// By what `SlateDB` calls it: no other opening has had it, or will.
fn epoch(db: &Db) -> u64 {
    db.manifest().writer_epoch()
}

/// Looks for journals here, and at what the store says of them.
///
/// # Errors
/// A journal elsewhere may hold more than the store, and is not to be given up; one here has more, and the
/// store has gone on without it; one can't be read.
pub(crate) fn find(
    shared: &Shared,
    meta: &Meta,
    options: Option<&JournalOptions>,
    takes_over: bool,
) -> Result<Found> {
    let mut found = Found::default();
    let space = Space::new(keys::META, "", KeyspaceKind::Tuple);
    let sets = options.map_or_else(|| Ok(Vec::new()), |options| Set::find(&options.dir))?;
    for set in sets {
        let is_begun = set.is_begun(meta.uuid)?;
        if meta.journal.as_ref().is_some_and(|journal| journal.opening == set.opening) {
            if !is_begun {
                return Err(StoreError::corrupt(set.to_string(), "the first file is damaged"));
            }
            found.own = Some(set);
            continue;
        }
        // Without a note it was closed, and has no more than the store.
        let note = View::newest(shared).get(&space, &[LOST, &set.opening.to_be_bytes()].concat())?;
        let kept = note.map_or(Ok(shared.newest()), |note| parse_number(Some(&note)))?;
        let lost = set.count(meta.uuid, kept)?;
        if lost > 0 {
            return Err(refused(format!(
                "{set} holds {lost} changes that this mount has acknowledged and object storage lacks: another one, on another machine or with a \
                 copy of this directory, has gone on without them, or object storage was set back; move these files away to give them up"
            )));
        }
        found.done.push(set);
    }
    if let Some(journal) = &meta.journal
        && found.own.is_none()
    {
        if !takes_over {
            return Err(held(&journal.holder));
        }
        tracing::warn!(
            holder = journal.holder,
            "changes that the mount before has acknowledged, and not sent, are given up"
        );
        found.given_up = Some(journal.opening);
    }
    Ok(found)
}

/// What an opening is refused with where `holder` has a journal.
pub(crate) fn held(holder: &str) -> StoreError {
    refused(format!(
        "the mount before has not closed it, and its journal on its local disk may hold changes that it has acknowledged and object storage \
         lacks: {holder}; mount it there, or give them up with -o take_over"
    ))
}

fn refused(text: String) -> StoreError {
    StoreError::io("opening a store", io::Error::new(io::ErrorKind::ResourceBusy, text))
}

/// Refuses a store whose last mount may be alive, and cut off, and has a journal that is not on this machine:
/// opening it would end that mount.
///
/// # Errors
/// It has; the store can't be read.
pub(crate) async fn expect_here(opener: &Opener, options: Option<&JournalOptions>) -> Result<()> {
    let failed = |error: slatedb::Error| of_slatedb("looking for a journal", &error);
    let reader = opener.open().await?;
    let named = reader.db.get(keys::full(keys::META, JOURNAL)).await.map_err(failed);
    reader.db.close().await.map_err(failed)?;
    let Some(journal) = named?.map(|value| OpenJournal::parse(&value)).transpose()? else { return Ok(()) };
    let sets = options.map_or_else(|| Ok(Vec::new()), |options| Set::find(&options.dir))?;
    let is_here = sets.iter().any(|set| set.opening == journal.opening);
    if is_here { Ok(()) } else { Err(held(&journal.holder)) }
}

/// Applies what the store lacks, with the sequence numbers that it had.
fn replay(shared: &Shared, meta: &Meta, own: &Set) -> Result<()> {
    let mut count = 0_u64;
    own.read(meta.uuid, shared.newest(), &mut |record| {
        if record.previous > shared.newest() {
            let text =
                "object storage, and the journal, lack changes before others; one of both was set back";
            return Err(StoreError::corrupt(own.to_string(), text));
        }
        apply(shared, record)?;
        count += 1;
        Ok(())
    })?;
    if count > 0 {
        shared.sync(shared.newest())?;
        tracing::info!(
            count,
            "changes of the journal on the local disk, which object storage lacked, are there now"
        );
    }
    Ok(())
}

fn apply(shared: &Shared, record: Record) -> Result<()> {
    let sequence = record.sequence;
    let spaces = Spaces::of_record(shared, &record)?;
    shared.wait_for_room(&mut shared.wait_limit())?;
    let _order = shared.order.lock();
    let written = Staged::of_record(shared, &spaces, record)?.into_write(sequence);
    shared.commit(written.write, sequence, &written.dead)?;
    shared.segments.suspect(written.suspects);
    Ok(())
}

/// The store names no journal any more.
fn forget(shared: &Shared, write: &mut Write) -> Result<()> {
    let space = Space::new(keys::META, "", KeyspaceKind::Tuple);
    let has_segments = View::newest(shared).get(&space, segments::BYTES)?.is_some();
    shared.segments.set_told(has_segments);
    let version = if has_segments { meta::VERSION_SEGMENTS } else { meta::VERSION_NOW };
    write.put(keys::full(keys::META, meta::VERSION), version.into());
    write.delete(keys::full(keys::META, JOURNAL));
    Ok(())
}

/// Writes what `fill` says, which no batch comes between.
fn write_meta(shared: &Shared, fill: impl FnOnce(&mut Write) -> Result<()>) -> Result<()> {
    {
        let _order = shared.order.lock();
        let mut write = Write::default();
        fill(&mut write)?;
        if write.is_empty() {
            return Ok(());
        }
        shared.commit(write, shared.newest() + 1, &[])?;
    }
    shared.sync(shared.newest())
}
