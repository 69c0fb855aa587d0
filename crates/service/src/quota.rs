//! Quotas: turned on and off, set, and told.
//!
//! Thread safety: for threads that may block. Invariant: as quotactl(2) has it, a user sees what is said of
//! that user and of its groups; root and the store's owner see and change everything. Exclusive bytes are for
//! these alone: a count takes long, and holds what merges replace.

use kvfs_fs::{FileSystem, Limits, Project, QuotaKind, QuotaLine};

use crate::authority::{authorize, authorize_server, is_master, is_said_of};
use crate::caller::Caller;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::lines::{LimitChanges, QuotaOwner, QuotaRow};
use crate::served::ServedStore;

/// Rows between two lines in the log.
const LOGGED_ROWS: u64 = 1_000_000;

impl ServedStore<'_> {
    /// Counts everything, and counts from then on. Refused while transactions are open, unless they may be
    /// aborted, and while there are branches. Transactions of other users are not the store owner's to abort.
    ///
    /// # Errors
    /// The caller may not; what is open or branched is in the way; store errors.
    pub fn turn_quotas_on(&self, caller: &Caller, abort_open: bool) -> Result<()> {
        admit(self.fs, caller)?;
        if abort_open {
            authorize_server(caller, "abort the transactions of all users")?;
        }
        self.clear_for_quotas(abort_open)?;
        let told = |rows: u64| {
            if rows.is_multiple_of(LOGGED_ROWS) {
                tracing::info!(rows, "counting for quotas");
            }
        };
        self.defrag.while_wanted(caller, || self.fs.quotas().turn_on(&told))?;
        tracing::info!("quotas are on");
        Ok(())
    }

    /// Forgets all counts.
    ///
    /// # Errors
    /// The caller may not; store errors.
    pub fn turn_quotas_off(&self, caller: &Caller) -> Result<()> {
        admit(self.fs, caller)?;
        self.fs.quotas().turn_off()?;
        tracing::info!("quotas are off");
        Ok(())
    }

    /// Changes the limits of a user, group or project.
    ///
    /// # Errors
    /// The caller may not; quotas are off; store errors.
    pub fn set_quota(&self, caller: &Caller, owner: QuotaOwner, changes: &LimitChanges) -> Result<()> {
        admit(self.fs, caller)?;
        let (kind, id) = parts(owner);
        if !self.fs.quotas().are_on() {
            return Err(are_off());
        }
        self.fs.quotas().change(kind, id, |limits| changed(limits, changes))?;
        Ok(())
    }

    /// What a user, group or project has; `exclusive`: with the bytes that are its alone, which only root and
    /// the store's owner may ask.
    ///
    /// # Errors
    /// The caller may not; quotas are off; as [`Self::quota_report`].
    pub fn quota(&self, caller: &Caller, owner: QuotaOwner, exclusive: bool) -> Result<QuotaRow> {
        if !is_said_of(caller, owner) {
            authorize(self.fs, caller, "see other people's quotas")?;
        }
        if exclusive {
            admit_exclusive(self.fs, caller)?;
        }
        let (kind, id) = parts(owner);
        let mut lines = [self.fs.quotas().get(kind, id).ok_or_else(are_off)?];
        if exclusive {
            tell_exclusive(self, caller, &mut lines)?;
        }
        Ok(row(&lines[0]))
    }

    /// What all have that the caller may see, and every user may ask; `exclusive`: with the bytes that are
    /// theirs alone, which only root and the store's owner may ask.
    ///
    /// # Errors
    /// Quotas are off; of exclusive bytes, the caller may not, store errors, and the count was given up.
    pub fn quota_report(&self, caller: &Caller, exclusive: bool) -> Result<Vec<QuotaRow>> {
        if exclusive {
            admit_exclusive(self.fs, caller)?;
        }
        if !self.fs.quotas().are_on() {
            return Err(are_off());
        }
        let mut lines = self.fs.quotas().report();
        let sees_all = is_master(self.fs, caller.uid);
        lines.retain(|line| sees_all || is_said_of(caller, whose(line.kind, line.id)));
        if exclusive {
            tell_exclusive(self, caller, &mut lines)?;
        }
        Ok(lines.iter().map(row).collect())
    }

    /// Number and path of each tree of a project, as raw bytes.
    ///
    /// # Errors
    /// The caller may not; store errors.
    pub fn project_trees(&self, caller: &Caller) -> Result<Vec<(u32, Vec<u8>)>> {
        authorize(self.fs, caller, "list the trees of projects")?;
        Ok(self.defrag.while_wanted(caller, || Project::trees(self.fs))?)
    }

    /// What open transactions and branches change is not counted: without them, or with a refusal that names
    /// them.
    fn clear_for_quotas(&self, abort_open: bool) -> Result<()> {
        if self.fs.quotas().are_on() {
            return Ok(());
        }
        if let Some(transactions) = self.transactions {
            if abort_open {
                transactions.abort_all("quotas are being turned on with --abort-open");
            }
            transactions.check_none_open("--abort-open")?;
        }
        let branches: Vec<String> = self.fs.branches().all().into_iter().map(|branch| branch.name).collect();
        if branches.is_empty() {
            return Ok(());
        }
        let message = format!(
            "what branches change is not counted; merge or delete them first: {}",
            branches.join(", ")
        );
        Err(ServiceError::new(ErrorKind::InUse, message))
    }
}

fn admit(fs: &FileSystem, caller: &Caller) -> Result<()> {
    authorize(fs, caller, "change quotas")
}

fn admit_exclusive(fs: &FileSystem, caller: &Caller) -> Result<()> {
    authorize(fs, caller, "see exclusive bytes")
}

/// May be asked several times at once: a count changes nothing.
fn tell_exclusive(store: &ServedStore<'_>, caller: &Caller, lines: &mut [QuotaLine]) -> Result<()> {
    Ok(store.defrag.while_wanted(caller, || store.fs.quotas().tell_exclusive(lines))?)
}

fn are_off() -> ServiceError {
    ServiceError::new(ErrorKind::Failed, "quotas are off; `kvfs quota on` turns them on")
}

fn whose(kind: QuotaKind, id: u32) -> QuotaOwner {
    match kind {
        QuotaKind::User => QuotaOwner::User(id),
        QuotaKind::Group => QuotaOwner::Group(id),
        QuotaKind::Project => QuotaOwner::Project(id),
    }
}

fn parts(owner: QuotaOwner) -> (QuotaKind, u32) {
    match owner {
        QuotaOwner::User(id) => (QuotaKind::User, id),
        QuotaOwner::Group(id) => (QuotaKind::Group, id),
        QuotaOwner::Project(id) => (QuotaKind::Project, id),
    }
}

fn changed(limits: Limits, changes: &LimitChanges) -> Limits {
    Limits {
        bytes_soft: changes.bytes_soft.unwrap_or(limits.bytes_soft),
        bytes_hard: changes.bytes_hard.unwrap_or(limits.bytes_hard),
        inodes_soft: changes.inodes_soft.unwrap_or(limits.inodes_soft),
        inodes_hard: changes.inodes_hard.unwrap_or(limits.inodes_hard),
        grace_seconds: changes.grace_seconds.unwrap_or(limits.grace_seconds),
    }
}

fn row(line: &QuotaLine) -> QuotaRow {
    QuotaRow {
        owner: whose(line.kind, line.id),
        bytes: line.usage.bytes.max(0) as u64,
        bytes_exclusive: line.bytes_exclusive.map(|bytes| bytes.max(0) as u64),
        inodes: line.usage.inodes.max(0) as u64,
        limits: LimitChanges {
            bytes_soft: Some(line.limits.bytes_soft),
            bytes_hard: Some(line.limits.bytes_hard),
            inodes_soft: Some(line.limits.inodes_soft),
            inodes_hard: Some(line.limits.inodes_hard),
            grace_seconds: Some(line.limits.grace_seconds),
        },
        bytes_until: line.bytes_until,
        inodes_until: line.inodes_until,
    }
}

#[cfg(test)]
mod tests;
