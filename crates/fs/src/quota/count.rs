//! Turning quotas on and off, and counting everything.
//!
//! What was counted comes into the store as what the usage there lacks, added as a charge is: what is charged
//! between the count and that, and in whatever order, is there once. So a count may wait for space. Until it
//! is written the store says that nothing was counted, and an opening counts again.
//!
//! Thread safety: as [`FileSystem`]; turning on and off take turns by the gate. Invariant: what is counted
//! while the scan is under way is added to what the scan finds, whose snapshot was taken when counting began.

use std::collections::HashMap;
use std::sync::Arc;

use kvfs_store::progress::{self, Unit};
use kvfs_store::{Batch, Durability, KeyRange, Keyspace, Read, Snapshot, Store};

use super::charge::{Change, OPEN, charged_accounts, usage_of};
use super::record::{self, ACCOUNTS, Part, key};
use super::{Counted, QuotaKind, Quotas, Usage, find_keyspace, open_keyspace, state_of};
use crate::check::CheckReport;
use crate::error::done_unless_full;
use crate::schema::{Header, Keyspaces, ROOT_INODE, Row};
use crate::{FsError, Result};

/// Rows between two reports of progress.
const PROGRESS_ROWS: u64 = 10_000;

pub(super) const BEING_COUNTED: FsError = FsError::Busy("quotas are being turned on and counted already");

const TURNED_OFF: FsError = FsError::Busy("quotas were turned off during the count");

pub(super) type Sums = HashMap<(QuotaKind, u32), Usage>;

/// Accounts that are not counted yet, and what there was when they were begun.
type BegunCount = (Arc<Counted>, Arc<dyn Snapshot>);

impl Quotas {
    /// Turns quotas on, and counts everything; limits are looked at from then on. Others work meanwhile.
    /// `progress` is called now and then with the number of rows that were read. Without effect where they
    /// are on.
    ///
    /// # Errors
    /// `Busy` while transactions or branches are open, or another call counts, or turns them off; `ReadOnly`;
    /// store errors.
    pub fn turn_on(&self, progress: &dyn Fn(u64)) -> Result<()> {
        self.check_writable()?;
        let Some((quotas, snapshot)) = self.begin_count(open_keyspace(&*self.store)?)? else {
            return Ok(());
        };
        self.count(&quotas, &*snapshot, progress).inspect_err(|_| {
            // What was counted in part says nothing, and turning quotas on once more counts everything.
            if let Err(error) = self.turn_off_if(|current| Arc::ptr_eq(current, &quotas)) {
                tracing::warn!(%error, "quotas stay on, and are counted at the next mount");
            }
        })
    }

    /// What is to be counted then; `None`: that was done before.
    fn begin_count(&self, keyspace: Keyspace) -> Result<Option<BegunCount>> {
        let mut gate = self.counted.write();
        if let Some(quotas) = gate.as_ref() {
            return if quotas.accounts.is_counted() { Ok(None) } else { Err(BEING_COUNTED) };
        }
        // Of what is open nothing has been counted.
        if !self.admission.transactions().is_empty() || !self.store.checkpointed().is_empty() {
            return Err(OPEN);
        }
        // First, since nothing has changed where it fails.
        let quotas = self.load(keyspace, false)?;
        let mut batch = Batch::new();
        forget_count(&mut batch, keyspace);
        self.superblock.declare_quotas(batch)?;
        *gate = Some(Arc::clone(&quotas));
        Ok(Some((quotas, self.store.snapshot()?)))
    }

    /// Turns quotas off; limits are kept. Without effect where they are off.
    ///
    /// # Errors
    /// `ReadOnly`; store errors.
    pub fn turn_off(&self) -> Result<()> {
        self.check_writable()?;
        self.turn_off_if(|_| true)
    }

    fn turn_off_if(&self, is_meant: impl FnOnce(&Arc<Counted>) -> bool) -> Result<()> {
        let mut gate = self.counted.write();
        let Some(quotas) = gate.as_ref().filter(|quotas| is_meant(quotas)) else { return Ok(()) };
        let mut batch = Batch::new();
        batch.delete(quotas.keyspace, record::STATE_KEY);
        self.store.apply(batch, Durability::Buffered)?;
        *gate = None;
        Ok(())
    }

    /// Takes up quotas that are on in the store, and counts again what was not counted to the end. Writes
    /// nothing; [`Self::write_count`] does. Branches that were made while quotas were on have been counted.
    pub(crate) fn open(&self, keyspace: Keyspace) -> Result<()> {
        let Some(is_counted) = state_of(&*self.store, keyspace)? else { return Ok(()) };
        let quotas = self.load(keyspace, is_counted)?;
        if !is_counted {
            quotas.take_count(count_rows(&*self.store, &self.keyspaces, &|_| {})?);
            quotas.accounts.counted(self.now());
        }
        *self.counted.write() = Some(quotas);
        Ok(())
    }

    /// Takes up what the store says of quotas that another process keeps. While that one counts, what was
    /// known stays.
    pub(crate) fn renew(&self, keyspace: Keyspace) -> Result<()> {
        let quotas = match state_of(&*self.store, keyspace)? {
            None => None,
            Some(true) => Some(self.load(keyspace, true)?),
            Some(false) => return Ok(()),
        };
        *self.counted.write() = quotas;
        Ok(())
    }

    fn count(&self, quotas: &Arc<Counted>, read: &dyn Read, progress: &dyn Fn(u64)) -> Result<()> {
        let there_was = count_rows(read, &self.keyspaces, progress)?;
        let gate = self.counted.read();
        if !gate.as_ref().is_some_and(|current| Arc::ptr_eq(current, quotas)) {
            return Err(TURNED_OFF);
        }
        quotas.take_count(there_was);
        self.write_count_of(quotas)
    }

    /// Brings into the store what was counted, if that is still to be done. False: there is no space for it.
    pub(crate) fn write_count(&self) -> Result<bool> {
        let gate = self.counted.read();
        gate.as_ref().map_or(Ok(true), |quotas| done_unless_full(self.write_count_of(quotas)))
    }

    fn write_count_of(&self, quotas: &Counted) -> Result<()> {
        let mut lacking = quotas.lacking.lock();
        let Some(sums) = &*lacking else { return Ok(()) };
        let mut batch = Batch::new();
        for (&(kind, id), &usage) in sums {
            batch.merge(quotas.keyspace, key(kind, id, Part::Usage), record::encode_usage(usage));
        }
        batch.put(quotas.keyspace, record::STATE_KEY, record::encode_state(true));
        // The count can wait: what could be undone is not given up for it.
        if self.store.space().available_bytes < batch.whole_bytes() as u64 {
            return Err(FsError::NoSpace);
        }
        self.store.apply(batch, Durability::Buffered)?;
        *lacking = None;
        quotas.accounts.counted(self.now());
        Ok(())
    }
}

impl Counted {
    /// Adds what there was when counting began to what has been counted since.
    fn take_count(&self, there_was: Sums) {
        let changes: Vec<Change> =
            there_was.iter().map(|(&(kind, id), &usage)| Change { kind, id, usage }).collect();
        self.accounts.add(&changes);
        let mut lacking = there_was;
        for (&account, &usage) in &self.uncounted {
            let sum = lacking.entry(account).or_default();
            *sum = sum.minus(usage);
        }
        lacking.retain(|_, usage| *usage != Usage::default());
        *self.lacking.lock() = Some(lacking);
    }
}

/// Has the next opening count again: what follows is not counted.
pub(crate) fn stage_recount(store: &dyn Store, batch: &mut Batch) -> Result<()> {
    let Some(keyspace) = find_keyspace(store)? else { return Ok(()) };
    if state_of(store, keyspace)?.is_some() {
        forget_count(batch, keyspace);
    }
    Ok(())
}

/// Has the next opening count again where quotas are on.
pub(crate) fn forget_count(batch: &mut Batch, keyspace: Keyspace) {
    batch.put(keyspace, record::STATE_KEY, record::encode_state(false));
}

/// The usage of all users, groups and projects, from the rows.
fn count_rows(read: &dyn Read, keyspaces: &Keyspaces, report: &dyn Fn(u64)) -> Result<Sums> {
    let mut sums = Sums::new();
    progress::stage("counting", Unit::Items, 0);
    each_header(read, keyspaces, report, |header| add(&mut sums, header))?;
    Ok(sums)
}

/// Calls `each` for every inode, and `report` now and then with the number of rows that were read.
pub(super) fn each_header(
    read: &dyn Read,
    keyspaces: &Keyspaces,
    report: &dyn Fn(u64),
    mut each: impl FnMut(&Header),
) -> Result<()> {
    let mut rows = 0_u64;
    for keyspace in [keyspaces.meta, keyspaces.orphans] {
        // Below the root are the file system's own records.
        let from = if keyspace == keyspaces.meta { ROOT_INODE.to_be_bytes().to_vec() } else { Vec::new() };
        let mut cursor = read.cursor(keyspace, KeyRange::all())?;
        cursor.seek(&from)?;
        while let Some((key, bytes)) = cursor.entry() {
            if let Row::Inode(header, _) = Row::decode(key, bytes)? {
                each(&header);
            }
            progress::check_wanted()?;
            rows += 1;
            if rows.is_multiple_of(PROGRESS_ROWS) {
                progress::advance(PROGRESS_ROWS);
                report(rows);
            }
            cursor.next()?;
        }
    }
    Ok(())
}

fn add(sums: &mut Sums, header: &Header) {
    for account in charged_accounts(header) {
        let sum = sums.entry(account).or_default();
        *sum = sum.plus(usage_of(header));
    }
}

/// Looks at every record, and compares what is counted with what there is.
pub(crate) fn check_usage(
    read: &dyn Read,
    keyspaces: &Keyspaces,
    keyspace: Keyspace,
    report: &mut CheckReport,
) -> Result<()> {
    let problems_before = report.problems.len();
    let mut cursor = read.cursor(keyspace, KeyRange::all())?;
    cursor.next()?;
    while let Some((at, value)) = cursor.entry() {
        if let Some(invalid_record) = record::invalid_record(at, value) {
            report.problem(invalid_record.to_string(), "it says nothing that is known".to_owned());
        }
        cursor.next()?;
    }
    if report.problems.len() > problems_before || state_of(read, keyspace)? != Some(true) {
        return Ok(());
    }
    let there_is = count_rows(read, keyspaces, &|_| {})?;
    let mut wrong: Sums =
        there_is.into_iter().map(|(account, usage)| (account, Usage::default().minus(usage))).collect();
    let mut cursor = read.cursor(keyspace, KeyRange::all())?;
    cursor.seek(ACCOUNTS.0)?;
    while let Some((at, value)) = cursor.entry() {
        if let Some((kind, id, Part::Usage)) = record::parse_key(at) {
            // Both are sums: what is left in the end is what is counted, less what there is.
            let sum = wrong.entry((kind, id)).or_default();
            *sum = sum.plus(record::decode_usage(value)?);
        }
        cursor.next()?;
    }
    let mut wrong: Vec<_> = wrong.into_iter().filter(|(_, usage)| *usage != Usage::default()).collect();
    wrong.sort_unstable_by_key(|(account, _)| *account);
    for ((kind, id), Usage { bytes, inodes }) in wrong {
        let place = format!("quota of {} {id}", kind.word());
        let detail = format!(
            "what is counted differs from what there is by {bytes} bytes and {inodes} inodes; `kvfs quota off` and \
             `kvfs quota on` count again"
        );
        report.problem(place, detail);
    }
    Ok(())
}
