//! Requests about quotas.

use kvfs_fs::{Limits, QuotaKind, QuotaLine};
use kvfs_store::clock::{Clock, SystemClock};

use super::Service;
use crate::control::{LimitChanges, Peer, QuotaOwner, QuotaRequest, QuotaRow, Response};
use crate::error::{CliError, Code, Result};
use crate::open::OpenStore;

/// Rows between two lines in the log.
const LOGGED_ROWS: u64 = 1_000_000;

impl Service {
    pub(super) fn answer_quota(store: &OpenStore, peer: &Peer, request: &QuotaRequest) -> Result<Response> {
        expect_allowed(peer, request)?;
        match request {
            QuotaRequest::On => {
                store.fs.quota_on(&|rows| {
                    if rows.is_multiple_of(LOGGED_ROWS) {
                        tracing::info!(rows, "counting for quotas");
                    }
                })?;
                tracing::info!("quotas are on");
                Ok(Response::Done)
            }
            QuotaRequest::Off => {
                store.fs.quota_off()?;
                tracing::info!("quotas are off");
                Ok(Response::Done)
            }
            QuotaRequest::Set(owner, changes) => {
                let (kind, id) = of(*owner);
                if !store.fs.has_quotas() {
                    return Err(are_off());
                }
                store.fs.change_quota(kind, id, |limits| changed(limits, changes))?;
                Ok(Response::Done)
            }
            QuotaRequest::Get(owner) => {
                let (kind, id) = of(*owner);
                Ok(rows(&[store.fs.quota(kind, id).ok_or_else(are_off)?]))
            }
            QuotaRequest::Report if !store.fs.has_quotas() => Err(are_off()),
            QuotaRequest::Report => {
                let mut lines = store.fs.quota_report();
                lines.retain(|line| may_see(peer, line.kind, line.id));
                Ok(rows(&lines))
            }
            QuotaRequest::ProjectTrees => Ok(Response::ProjectTrees(store.fs.project_trees()?)),
        }
    }
}

/// As quotactl(2) has it: who is neither root nor the store's owner sees what is said of himself and of his groups.
fn may_see(peer: &Peer, kind: QuotaKind, id: u32) -> bool {
    peer.may_act_for(Peer::own().uid)
        || match kind {
            QuotaKind::User => peer.uid == id,
            QuotaKind::Group => peer.is_of_group(id),
            QuotaKind::Project => false,
        }
}

fn expect_allowed(peer: &Peer, request: &QuotaRequest) -> Result<()> {
    let is_allowed = match request {
        // A report leaves out what is not for everybody.
        QuotaRequest::Report => true,
        QuotaRequest::Get(owner) => {
            let (kind, id) = of(*owner);
            may_see(peer, kind, id)
        }
        QuotaRequest::On | QuotaRequest::Off | QuotaRequest::Set(..) | QuotaRequest::ProjectTrees => {
            peer.may_act_for(Peer::own().uid)
        }
    };
    let denied = match request {
        QuotaRequest::Get(_) => "only root and the store's owner see other people's quotas",
        QuotaRequest::ProjectTrees => "only root and the store's owner list the trees of projects",
        _ => "only root and the store's owner change quotas",
    };
    if is_allowed { Ok(()) } else { Err(CliError::new(Code::Denied, denied)) }
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
        owner: match line.kind {
            QuotaKind::User => QuotaOwner::User(line.id),
            QuotaKind::Group => QuotaOwner::Group(line.id),
            QuotaKind::Project => QuotaOwner::Project(line.id),
        },
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
