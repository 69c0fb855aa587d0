//! Requests about quotas.

use kvfs_fs::{Limits, Project, QuotaKind, QuotaLine};
use kvfs_service::{Caller, is_said_of};
use kvfs_store::clock::{Clock, SystemClock};

use super::{Service, are_open};
use crate::control::{LimitChanges, QuotaOwner, QuotaRequest, QuotaRow, Response};
use crate::error::{CliError, Code, Result};
use crate::open::OpenStore;

/// Rows between two lines in the log.
const LOGGED_ROWS: u64 = 1_000_000;

impl Service {
    pub(super) fn answer_quota(
        &self,
        store: &OpenStore,
        caller: &Caller,
        request: &QuotaRequest,
    ) -> Result<Response> {
        match request {
            &QuotaRequest::On { abort_open } => {
                self.clear_for_quotas(store, abort_open)?;
                store.fs.quotas().turn_on(&|rows| {
                    if rows.is_multiple_of(LOGGED_ROWS) {
                        tracing::info!(rows, "counting for quotas");
                    }
                })?;
                tracing::info!("quotas are on");
                Ok(Response::Done)
            }
            QuotaRequest::Off => {
                store.fs.quotas().turn_off()?;
                tracing::info!("quotas are off");
                Ok(Response::Done)
            }
            QuotaRequest::Set(owner, changes) => {
                let (kind, id) = of(*owner);
                if !store.fs.quotas().are_on() {
                    return Err(are_off());
                }
                store.fs.quotas().change(kind, id, |limits| changed(limits, changes))?;
                Ok(Response::Done)
            }
            QuotaRequest::Get(owner) => {
                let (kind, id) = of(*owner);
                Ok(rows(&[store.fs.quotas().get(kind, id).ok_or_else(are_off)?]))
            }
            QuotaRequest::Report if !store.fs.quotas().are_on() => Err(are_off()),
            QuotaRequest::Report => {
                let mut lines = store.fs.quotas().report();
                lines.retain(|line| may_see(caller, line.kind, line.id));
                Ok(rows(&lines))
            }
            QuotaRequest::ProjectTrees => Ok(Response::ProjectTrees(Project::trees(&store.fs)?)),
        }
    }

    /// What open transactions and branches change is not counted: without them, or with a refusal that names them.
    fn clear_for_quotas(&self, store: &OpenStore, abort_open: bool) -> Result<()> {
        if store.fs.quotas().are_on() {
            return Ok(());
        }
        if let Ok(transactions) = self.transactions() {
            if abort_open {
                transactions.abort_all("quotas are being turned on with --abort-open");
            }
            let open = transactions.names();
            if !open.is_empty() {
                return Err(are_open(&open, "--abort-open"));
            }
        }
        let branches: Vec<String> = store.fs.branches().all().into_iter().map(|branch| branch.name).collect();
        if branches.is_empty() {
            return Ok(());
        }
        let message = format!(
            "what branches change is not counted; merge or delete them first: {}",
            branches.join(", ")
        );
        Err(CliError::new(Code::InUse, message))
    }
}

/// A report leaves out what is not for the caller.
fn may_see(caller: &Caller, kind: QuotaKind, id: u32) -> bool {
    caller.is_master() || is_said_of(caller, whose(kind, id))
}

fn whose(kind: QuotaKind, id: u32) -> QuotaOwner {
    match kind {
        QuotaKind::User => QuotaOwner::User(id),
        QuotaKind::Group => QuotaOwner::Group(id),
        QuotaKind::Project => QuotaOwner::Project(id),
    }
}

fn are_off() -> CliError {
    CliError::new(Code::Failed, "quotas are off; `kvfs quota on` turns them on")
}

fn of(owner: QuotaOwner) -> (QuotaKind, u32) {
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

fn rows(lines: &[QuotaLine]) -> Response {
    let row = |line: &QuotaLine| QuotaRow {
        owner: whose(line.kind, line.id),
        bytes: line.usage.bytes.max(0) as u64,
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
    };
    Response::Quotas { now: SystemClock::new().wall().as_secs(), rows: lines.iter().map(row).collect() }
}
