//! The accounts of users, groups and projects in memory: how much each has, and whether it may have more.
//!
//! Thread safety: one lock, held for moments. Invariant: what was reserved is in the sums, so that several
//! operations admitted at the same time don't overstep a hard limit together.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use kvfs_locks::{Mutex, class};

use super::charge::Change;
use super::record::Since;
use super::{Limits, QuotaKind, QuotaLine, Usage};
use crate::{FsError, Result};

#[derive(Debug, Clone, Copy, Default)]
struct Account {
    usage: Usage,
    limits: Limits,
    since: Since,
    /// As it is in the store.
    stored: Since,
}

/// All accounts.
#[derive(Debug)]
pub(super) struct Accounts {
    all: Mutex<HashMap<(QuotaKind, u32), Account>, class::FsQuotaTableAll>,
    /// Before that, limits mean nothing, and times of grace stand still: what is known of usage is a part of
    /// it.
    is_counted: AtomicBool,
}

/// The times of grace that a charge has ended, and when they had begun: it may be taken back.
#[derive(Debug, Default)]
pub(crate) struct EndedGrace(Vec<(QuotaKind, u32, Since)>);

/// What a transaction has changed so far; no other view sees it.
#[derive(Debug, Default)]
pub(crate) struct Pending(Mutex<HashMap<(QuotaKind, u32), Usage>, class::FsQuotaTablePending>);

/// Which limits are checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct QuotaCheck {
    /// Those of users and groups.
    pub(super) owners: bool,
    pub(super) projects: bool,
}

impl QuotaCheck {
    pub(super) const NONE: Self = Self { owners: false, projects: false };

    fn covers(self, kind: QuotaKind) -> bool {
        match kind {
            QuotaKind::User | QuotaKind::Group => self.owners,
            QuotaKind::Project => self.projects,
        }
    }
}

/// What a caller is told whose operation would pass a limit.
fn refusal(kind: QuotaKind) -> FsError {
    match kind {
        QuotaKind::User | QuotaKind::Group => FsError::QuotaExceeded,
        QuotaKind::Project => FsError::ProjectFull,
    }
}

/// One of the two things that are limited.
struct Measure {
    now: i64,
    change: i64,
    soft: u64,
    hard: u64,
}

impl Account {
    fn measures(&self, change: Usage) -> [Measure; 2] {
        let Self { usage, limits, .. } = self;
        let (soft, hard) = (limits.bytes_soft, limits.bytes_hard);
        let bytes = Measure { now: usage.bytes, change: change.bytes, soft, hard };
        let (soft, hard) = (limits.inodes_soft, limits.inodes_hard);
        [bytes, Measure { now: usage.inodes, change: change.inodes, soft, hard }]
    }

    /// Whether the change is within the limits at `now` (seconds since 1970).
    fn allows(&self, change: Usage, now: i64) -> bool {
        let since = [self.since.bytes, self.since.inodes];
        self.measures(change).iter().zip(since).all(|(measure, since)| {
            let is_late = since != 0 && now as u64 > since.saturating_add(self.limits.grace_seconds);
            measure.change <= 0
                || !(measure.is_over(measure.hard) || (is_late && measure.is_over(measure.soft)))
        })
    }

    /// Begins and ends times of grace; returns those that end.
    fn keep_time(&mut self, now: i64) -> Since {
        let [bytes, inodes] = self.measures(Usage::default());
        let mut ended = Since::default();
        let Since { bytes: bytes_since, inodes: inodes_since } = &mut self.since;
        for (measure, since, ended) in
            [(bytes, bytes_since, &mut ended.bytes), (inodes, inodes_since, &mut ended.inodes)]
        {
            if !measure.is_over(measure.soft) {
                *ended = std::mem::take(since);
            } else if *since == 0 {
                *since = now.max(1) as u64;
            }
        }
        ended
    }

    /// As [`Self::keep_time`], when a change was taken back: the times of grace that it had ended go on.
    fn keep_time_again(&mut self, ended: Since, now: i64) {
        let Self { since, .. } = self;
        for (since, ended) in [(&mut since.bytes, ended.bytes), (&mut since.inodes, ended.inodes)] {
            if *since == 0 {
                *since = ended;
            }
        }
        self.keep_time(now);
    }

    fn line(&self, kind: QuotaKind, id: u32) -> QuotaLine {
        let until = |since: u64| (since != 0).then(|| since.saturating_add(self.limits.grace_seconds));
        QuotaLine {
            kind,
            id,
            usage: self.usage,
            bytes_exclusive: None,
            limits: self.limits,
            bytes_until: until(self.since.bytes),
            inodes_until: until(self.since.inodes),
        }
    }
}

impl Measure {
    fn is_over(&self, limit: u64) -> bool {
        limit != 0 && i128::from(self.now) + i128::from(self.change) > i128::from(limit)
    }
}

impl Accounts {
    pub(super) fn new(is_counted: bool) -> Self {
        Self { all: Mutex::default(), is_counted: AtomicBool::new(is_counted) }
    }

    /// From now on limits count, and times of grace run.
    pub(super) fn counted(&self, now: i64) {
        let mut all = self.all.lock();
        self.is_counted.store(true, Ordering::Release);
        for account in all.values_mut() {
            account.keep_time(now);
        }
    }

    /// Whether limits count.
    pub(super) fn is_counted(&self) -> bool {
        self.is_counted.load(Ordering::Acquire)
    }

    /// Whether all of it is within the limits, with what `pending` has already.
    pub(super) fn check(
        &self,
        changes: &[Change],
        pending: &Pending,
        check: QuotaCheck,
        now: i64,
    ) -> Result<()> {
        let (all, pending) = (self.all.lock(), pending.0.lock());
        for change in changes.iter().filter(|change| check.covers(change.kind)) {
            let Some(account) = all.get(&(change.kind, change.id)) else { continue };
            let more = pending.get(&(change.kind, change.id)).copied().unwrap_or_default();
            let account = Account { usage: account.usage.plus(more), ..*account };
            if self.is_counted() && !account.allows(change.usage, now) {
                return Err(refusal(change.kind));
            }
        }
        Ok(())
    }

    /// Adds the changes; all or, where a limit that is checked forbids it, none.
    pub(super) fn charge(&self, changes: &[Change], check: QuotaCheck, now: i64) -> Result<EndedGrace> {
        let mut all = self.all.lock();
        if self.is_counted() {
            for change in changes.iter().filter(|change| check.covers(change.kind)) {
                let account = all.get(&(change.kind, change.id));
                if account.is_some_and(|account| !account.allows(change.usage, now)) {
                    return Err(refusal(change.kind));
                }
            }
        }
        let mut ended = EndedGrace::default();
        for change in changes {
            let account = all.entry((change.kind, change.id)).or_default();
            account.usage = account.usage.plus(change.usage);
            if self.is_counted() {
                ended.add(change, account.keep_time(now));
            }
        }
        Ok(ended)
    }

    /// Adds the changes, whatever the limits.
    pub(super) fn add(&self, changes: &[Change]) {
        let mut all = self.all.lock();
        for change in changes {
            let account = all.entry((change.kind, change.id)).or_default();
            account.usage = account.usage.plus(change.usage);
        }
    }

    /// Takes back what was charged, and that a time of grace began or ended with it.
    pub(super) fn refund(&self, changes: &[Change], ended: &EndedGrace, now: i64) {
        let mut all = self.all.lock();
        for change in changes {
            let account = all.entry((change.kind, change.id)).or_default();
            account.usage = account.usage.minus(change.usage);
            if self.is_counted() {
                account.keep_time_again(ended.of(change), now);
            }
        }
    }

    pub(super) fn limit(&self, kind: QuotaKind, id: u32, limits: Limits, now: i64) {
        let mut all = self.all.lock();
        let account = all.entry((kind, id)).or_default();
        account.limits = limits;
        if now != 0 && self.is_counted() {
            account.keep_time(now);
        }
    }

    pub(super) fn set_since(&self, kind: QuotaKind, id: u32, since: Since) {
        let mut all = self.all.lock();
        let account = all.entry((kind, id)).or_default();
        (account.since, account.stored) = (since, since);
    }

    /// Where the times of grace are others than in the store.
    pub(super) fn changed_since(&self) -> Vec<(QuotaKind, u32, Since)> {
        let all = self.all.lock();
        let changed = all.iter().filter(|(_, account)| account.since != account.stored);
        changed.map(|(&(kind, id), account)| (kind, id, account.since)).collect()
    }

    pub(super) fn wrote_since(&self, changed: &[(QuotaKind, u32, Since)]) {
        let mut all = self.all.lock();
        for &(kind, id, since) in changed {
            all.entry((kind, id)).or_default().stored = since;
        }
    }

    pub(super) fn line(&self, kind: QuotaKind, id: u32) -> QuotaLine {
        self.all.lock().get(&(kind, id)).copied().unwrap_or_default().line(kind, id)
    }

    pub(super) fn lines(&self) -> Vec<QuotaLine> {
        let all = self.all.lock();
        let shown =
            all.iter().filter(|(_, account)| account.usage != Usage::default() || !account.limits.are_none());
        let mut lines: Vec<_> = shown.map(|(&(kind, id), account)| account.line(kind, id)).collect();
        lines.sort_unstable_by_key(|line| (line.kind, line.id));
        lines
    }
}

impl EndedGrace {
    fn add(&mut self, change: &Change, ended: Since) {
        if ended != Since::default() {
            self.0.push((change.kind, change.id, ended));
        }
    }

    /// Those of the account that this has changed.
    fn of(&self, change: &Change) -> Since {
        let found = self.0.iter().find(|(kind, id, _)| (*kind, *id) == (change.kind, change.id));
        found.map_or_else(Since::default, |&(.., ended)| ended)
    }
}

impl Pending {
    /// What it has changed of one.
    pub(super) fn of(&self, kind: QuotaKind, id: u32) -> Usage {
        self.0.lock().get(&(kind, id)).copied().unwrap_or_default()
    }

    /// Adds the changes.
    pub(super) fn add(&self, changes: &[Change]) {
        let mut all = self.0.lock();
        for change in changes {
            let usage = all.entry((change.kind, change.id)).or_default();
            *usage = usage.plus(change.usage);
        }
    }
}

#[cfg(test)]
mod tests;
