//! Counting what operations change, and refusing what limits forbid.
//!
//! Thread safety: as [`FileSystem`]. Invariant: an operation that changes an inode's space under the gate
//! must hold its owner shared (among `MODE`), and say so in the row's patch: so a change of owner or project,
//! which holds it exclusively, moves exactly what there is, among operations as among transactions.

use std::sync::Arc;

use kvfs_locks::{RwLockReadGuard, class};
use kvfs_store::clock::Clock;
use kvfs_store::{BLOCK_BYTES, Batch, BlockClone, Change as StoreChange, Position, Txn};
use kvfs_txn::{Fields, LockName, Want};

use super::record::{self, Part};
use super::table::{EndedGrace, QuotaCheck};
use super::{Counted, Pending, QuotaKind, Quotas, Usage};
use crate::node::Pin;
use crate::schema::{DETACHED_INODE, Header, RowFlags, RowPatch};
use crate::view::{NodeWriter, TxnView, each_change};
use crate::{Caller, FileSystem, FileType, FsError, Result, Timestamp};

/// What is added to the usage of a user, a group or a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) kind: QuotaKind,
    pub(crate) id: u32,
    pub(crate) usage: Usage,
}

/// What was counted of several inodes, by account.
#[derive(Debug, Default)]
pub(crate) struct Charges(Vec<Change>);

impl Charges {
    fn add(&mut self, change: Change) {
        match self.0.iter_mut().find(|sum| (sum.kind, sum.id) == (change.kind, change.id)) {
            Some(sum) => sum.usage = sum.usage.plus(change.usage),
            None => self.0.push(change),
        }
    }
}

/// Keeps quotas from being turned on or off while an operation is under way.
/// An operation's batches go through it, so that they are counted.
pub(crate) struct Gate<'v> {
    quotas: RwLockReadGuard<'v, Option<Arc<Counted>>, class::FsQuotaCounted>,
    writer: NodeWriter<'v>,
    clock: &'v dyn Clock,
}

impl<'v> Gate<'v> {
    /// Whether anything is counted.
    pub(crate) fn is_on(&self) -> bool {
        self.quotas.is_some()
    }

    /// From now on each batch comes with these clones.
    pub(crate) fn cloning(&mut self, clones: &'v [BlockClone]) {
        self.writer = self.writer.cloning(clones);
    }

    /// What an operation needs in addition that changes the space of an inode.
    pub(crate) fn want(&self, inode: u64) -> Option<Want<'static>> {
        self.is_on().then_some(Want::shared(LockName::Attributes { inode, fields: Fields::MODE }))
    }
}

/// What an inode with these attributes takes. The directory of detached trees is nothing of a user's.
pub(super) fn usage_of(header: &Header) -> Usage {
    let bytes = match header.kind {
        FileType::Regular if header.flags.has(RowFlags::BLOCKS) => {
            header.blocks.saturating_mul(BLOCK_BYTES as u64)
        }
        FileType::Regular | FileType::Symlink => header.size,
        _ => 0,
    };
    let inodes = i64::from(header.inode != DETACHED_INODE);
    Usage { bytes: i64::try_from(bytes).unwrap_or(i64::MAX), inodes }
}

/// The accounts that an inode with these attributes counts in.
pub(super) fn charged_accounts(header: &Header) -> impl Iterator<Item = (QuotaKind, u32)> + use<> {
    let project = (header.project != 0).then_some((QuotaKind::Project, header.project));
    [(QuotaKind::User, header.uid), (QuotaKind::Group, header.gid)].into_iter().chain(project)
}

/// What changes when an inode becomes another; `None`: it is not there.
fn changes(before: Option<&Header>, after: Option<&Header>) -> Vec<Change> {
    let mut charges = Charges::default();
    let mut add = |header: &Header, sign: fn(Usage, Usage) -> Usage| {
        let usage = sign(Usage::default(), usage_of(header));
        charged_accounts(header).for_each(|(kind, id)| charges.add(Change { kind, id, usage }));
    };
    if let Some(after) = after {
        add(after, Usage::plus);
    }
    if let Some(before) = before {
        add(before, Usage::minus);
    }
    let mut changes = charges.0;
    changes.retain(|change| change.usage != Usage::default());
    changes
}

impl FileSystem {
    /// The caller must hold it from before an operation takes its names until its batch is applied.
    pub(crate) fn gate(&self) -> Gate<'_> {
        self.quotas().gate(self.writer())
    }
}

impl Quotas {
    /// The gate of operations that change by `writer`.
    pub(crate) fn gate<'v>(&'v self, writer: NodeWriter<'v>) -> Gate<'v> {
        // Never twice in one thread: the thread that turns quotas on waits for the holders, and new ones wait
        // for it.
        Gate { quotas: self.counted.read(), writer, clock: &*self.clock }
    }
}

impl Gate<'_> {
    /// Applies a batch that makes an inode (`before` is `None`), ends one (`after`), or changes one.
    ///
    /// # Errors
    /// `QuotaExceeded`, unless root asks; `ProjectFull`; as [`Origin::apply`].
    ///
    /// [`Origin::apply`]: crate::view::Origin::apply
    pub(crate) fn apply_counted(
        &self,
        caller: &Caller,
        batch: Batch,
        before: Option<&Header>,
        after: Option<&Header>,
    ) -> Result<Position> {
        let Some(quotas) = self.quotas.as_ref() else { return self.writer.apply(batch) };
        self.apply_changes(quotas, self.quota_check(caller.uid), batch, &changes(before, after))
    }

    /// Applies a batch that makes these inodes, and adds to `charges` what was counted.
    ///
    /// # Errors
    /// As [`Self::apply_counted`].
    pub(crate) fn apply_new(
        &self,
        caller: &Caller,
        batch: Batch,
        made: &[Header],
        charges: &mut Charges,
    ) -> Result<Position> {
        let Some(quotas) = self.quotas.as_ref() else { return self.writer.apply(batch) };
        let mut new = Charges::default();
        made.iter().flat_map(|header| changes(None, Some(header))).for_each(|change| new.add(change));
        let position = self.apply_changes(quotas, self.quota_check(caller.uid), batch, &new.0)?;
        new.0.into_iter().for_each(|change| charges.add(change));
        Ok(position)
    }

    /// Applies a batch that deletes all inodes that were counted in `charges`.
    ///
    /// # Errors
    /// As [`Origin::apply`].
    ///
    /// [`Origin::apply`]: crate::view::Origin::apply
    pub(crate) fn apply_discard(&self, batch: Batch, charges: &Charges) -> Result<()> {
        let negated = |change: &Change| Change { usage: Usage::default().minus(change.usage), ..*change };
        let changes: Vec<Change> = charges.0.iter().map(negated).collect();
        match self.quotas.as_ref() {
            Some(quotas) => self.apply_changes(quotas, QuotaCheck::NONE, batch, &changes)?,
            None => self.writer.apply(batch)?,
        };
        Ok(())
    }

    /// Applies a batch that ends these inodes.
    pub(crate) fn apply_ends(&self, batch: Batch, ends: &[Header]) -> Result<Position> {
        let Some(quotas) = self.quotas.as_ref() else { return self.writer.apply(batch) };
        let changes: Vec<Change> = ends.iter().flat_map(|header| changes(Some(header), None)).collect();
        self.apply_changes(quotas, QuotaCheck::NONE, batch, &changes)
    }

    /// Applies a batch that has an inode be counted again whose end was none.
    pub(crate) fn apply_return(&self, batch: Batch, header: &Header) -> Result<Position> {
        let Some(quotas) = self.quotas.as_ref() else { return self.writer.apply(batch) };
        self.apply_changes(quotas, QuotaCheck::NONE, batch, &changes(None, Some(header)))
    }

    /// As [`NodeWriter::apply_to_node`], for patches that may change owner or space.
    pub(crate) fn apply_counted_to_node(
        &self,
        caller: &Caller,
        batch: Batch,
        node: &Pin<'_>,
        patch: RowPatch,
    ) -> Result<Position> {
        self.apply_checked(self.quota_check(caller.uid), batch, node, patch)
    }

    /// The limits that are checked for `uid`. Root is no exception for projects: their limits are those of a
    /// place, such as a container's. A restore brings back what was there.
    fn quota_check(&self, uid: u32) -> QuotaCheck {
        QuotaCheck { owners: uid != 0, projects: !self.writer.origin().restores() }
    }

    pub(super) fn apply_checked(
        &self,
        check: QuotaCheck,
        mut batch: Batch,
        node: &Pin<'_>,
        mut patch: RowPatch,
    ) -> Result<Position> {
        let Some(quotas) = self.quotas.as_ref() else {
            return self.writer.apply_to_node(batch, node, &patch);
        };
        let before = node.header();
        let mut after = before;
        patch.apply(&mut after);
        let changes = changes(Some(&before), Some(&after));
        if changes.is_empty() {
            return self.writer.apply_to_node(batch, node, &patch);
        }
        patch.is_counted = true;
        let patch = self.writer.stage_patch(&mut batch, node, &patch);
        let position = self.apply_changes(quotas, check, batch, &changes)?;
        self.writer.tell_node(node, &patch, position);
        Ok(position)
    }

    /// Seconds since 1970.
    fn now(&self) -> i64 {
        Timestamp::from(self.clock.wall()).seconds
    }

    fn apply_changes(
        &self,
        quotas: &Counted,
        check: QuotaCheck,
        mut batch: Batch,
        changes: &[Change],
    ) -> Result<Position> {
        for change in changes {
            let key = record::key(change.kind, change.id, Part::Usage);
            batch.merge(quotas.keyspace, key, record::encode_usage(change.usage));
        }
        let now = self.now();
        if let Some(view) = self.writer.origin().txn() {
            quotas.accounts.check(changes, &view.pending_usage, check, now)?;
            let position = self.writer.apply(batch)?;
            view.pending_usage.add(changes);
            return Ok(position);
        }
        let ended = quotas.accounts.charge(changes, check, now)?;
        self.writer.apply(batch).inspect_err(|_| quotas.accounts.refund(changes, &ended, now))
    }

    /// The usage that a commit of `uid`'s transaction adds to the main line's: reserved there now, all or
    /// nothing. To be given back to [`Self::refund_commit`] when the commit fails.
    pub(crate) fn charge_commit(&self, view: &TxnView, uid: u32) -> Result<(Vec<Change>, EndedGrace)> {
        let Some(quotas) = self.quotas.as_ref() else { return Ok(Default::default()) };
        let changes = quotas.changes_of(&*view.txn)?;
        let check = QuotaCheck { owners: uid != 0, projects: !view.restores() };
        let ended = quotas.accounts.charge(&changes, check, self.now())?;
        Ok((changes, ended))
    }

    /// The commit did not take place.
    pub(crate) fn refund_commit(&self, (changes, ended): &(Vec<Change>, EndedGrace)) {
        if let Some(quotas) = self.quotas.as_ref() {
            quotas.accounts.refund(changes, ended, self.now());
        }
    }
}

impl Counted {
    /// What a transaction has changed.
    fn changes_of(&self, txn: &dyn Txn) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        each_change(txn.changes(self.keyspace)?, |change| {
            let StoreChange::Merge { key, operands } = change else { return Ok(()) };
            let Some((kind, id, Part::Usage)) = record::parse_key(&key) else { return Ok(()) };
            let mut usage = Usage::default();
            for operand in operands {
                usage = usage.plus(record::decode_usage(&operand)?);
            }
            changes.push(Change { kind, id, usage });
            Ok(())
        })?;
        Ok(changes)
    }
}

impl Quotas {
    /// What a transaction has changed so far, which may go on with what a checkpoint holds.
    pub(crate) fn pending_of(&self, txn: &dyn Txn) -> Result<Pending> {
        let pending = Pending::default();
        let counted = self.counted.read().clone();
        if let Some(quotas) = counted {
            pending.add(&quotas.changes_of(txn)?);
        }
        Ok(pending)
    }
}

/// What refuses an operation while transactions or branches are open that must end first.
pub(super) const OPEN: FsError =
    FsError::Busy("transactions or branches are open, whose changes are not counted; end them first");
