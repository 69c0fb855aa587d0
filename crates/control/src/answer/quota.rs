//! Requests about quotas.

use kvfs_service::lines::{QuotaRequest, QuotaRow};
use kvfs_service::{Caller, Result, ServedStore};
use kvfs_store::clock::{Clock, SystemClock};

use super::RequestHandler;
use crate::protocol::Response;

impl RequestHandler {
    pub(super) fn answer_quota(
        store: &ServedStore<'_>,
        caller: &Caller,
        request: &QuotaRequest,
    ) -> Result<Response> {
        match request {
            &QuotaRequest::On { abort_open } => store.turn_quotas_on(caller, abort_open)?,
            QuotaRequest::Off => store.turn_quotas_off(caller)?,
            QuotaRequest::Set(owner, changes) => store.set_quota(caller, *owner, changes)?,
            &QuotaRequest::Get { owner, exclusive } => {
                return Ok(told(vec![store.quota(caller, owner, exclusive)?]));
            }
            &QuotaRequest::Report { exclusive } => return Ok(told(store.quota_report(caller, exclusive)?)),
            QuotaRequest::ProjectTrees => return Ok(Response::ProjectTrees(store.project_trees(caller)?)),
        }
        Ok(Response::Done)
    }
}

fn told(rows: Vec<QuotaRow>) -> Response {
    Response::Quotas { now: SystemClock::new().wall().as_secs(), rows }
}
