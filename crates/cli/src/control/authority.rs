//! Which right each request needs; what a right means for a user is the service's.
//!
//! The socket for users of the mount lets in every user of the machine; the one in the store's directory lets in its
//! owner and root. Both come here.
//!
//! Thread safety: pure functions. Invariant: every request is named, so that a new one can't be forgotten.

use kvfs_service::{Caller, Right};

use super::protocol::Request;
use crate::error::Result;

/// Refuses what the caller may not ask.
pub(crate) fn authorize(caller: &Caller, request: &Request) -> Result<()> {
    Ok(kvfs_service::authorize(caller, right(request))?)
}

fn right(request: &Request) -> Right {
    match request {
        // Priorities are looked at where a transaction begins, whichever way the caller has come.
        Request::Begin(_)
        | Request::Hello { .. }
        | Request::Stats
        | Request::Health
        | Request::Commit { .. }
        | Request::Abort { .. }
        | Request::Mount { .. }
        | Request::Transactions
        | Request::Diff { .. }
        | Request::Undo(_)
        | Request::Locks { .. }
        // The service looks at rights itself.
        | Request::Snapshot(_)
        | Request::Branch(_)
        | Request::Quota(_)
        | Request::Grow { .. }
        | Request::Sync => Right::Everyone,
        // The view is mounted in the store's directory.
        Request::View { .. } => Right::Master("use views in the store's directory"),
        // A kernel side of the peer's making would be believed what it says of users and permissions.
        Request::Attach { .. } => Right::Master("serve a mount of their own making"),
        Request::Compression { .. } => Right::Master("see and change how keyspaces are stored"),
        Request::Check => Right::Master("check the store"),
        Request::Defrag(_) => Right::Master("defragment it"),
        Request::Zones => Right::Master("see the zones of the store"),
        Request::Leave { .. } | Request::AwaitClosed => Right::Master("unmount it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Begin, DefragRequest, UndoRequest};

    fn ask(uid: u32, request: &Request) -> bool {
        authorize(&Caller::of_mount(uid, 1), request).is_ok()
    }

    fn begin(tied: bool, nice: i32) -> Request {
        let request =
            Begin { serializable: false, timeout: None, idle_max: None, nice, label: String::new(), tied };
        Request::Begin(request)
    }

    #[test]
    fn every_user_may_ask_for_own_things_and_no_more() {
        let id = 1;
        let own = rustix::process::geteuid().as_raw();
        let stranger = own + 1000;
        let everyone = [
            begin(true, 0),
            begin(false, 0),
            Request::Mount { id },
            Request::Transactions,
            Request::Undo(UndoRequest::List),
            Request::Stats,
            Request::Health,
            Request::Sync,
        ];
        let masters = [
            Request::Attach { id },
            Request::View { id },
            Request::Check,
            Request::Zones,
            Request::Defrag(DefragRequest { rewrite: false, bytes_per_second: 0, dry_run: true }),
            Request::Leave { abort_open: true, checkpoint_open: false },
        ];
        for request in everyone.iter().chain(&masters) {
            assert!(ask(own, request) && ask(0, request), "{request:?}");
        }
        assert!(everyone.iter().all(|request| ask(stranger, request)));
        assert!(!masters.iter().any(|request| ask(stranger, request)));
    }
}
