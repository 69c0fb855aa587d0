//! `kvfs debug`.

use std::path::Path;
use std::process::ExitCode;

use crate::args::{DebugArgs, DebugCommand, DebugLocksArgs};
use crate::control::{self, Client, Daemon, Request, Response};
use crate::endpoint::{find_store, reach_public};
use crate::error::{CliError, Code, Result};
use crate::report::held as report;

pub(crate) fn run(args: &DebugArgs) -> Result<ExitCode> {
    match &args.command {
        DebugCommand::Locks(args) => locks(args),
    }
}

fn locks(args: &DebugLocksArgs) -> Result<ExitCode> {
    let target = args.store.as_deref();
    let mut client = match connect(target) {
        Err(error) => reach_public(target, error)?.0,
        connected => connected?,
    };
    let Response::HeldLocks(lines) = client.call(&Request::HeldLocks)? else {
        return Err(control::confused());
    };
    print!("{}", if args.json { report::as_json(&lines) } else { report::as_text(&lines) });
    Ok(ExitCode::SUCCESS)
}

/// The daemon of a store, also while it is being closed: that may be what hangs.
fn connect(target: Option<&Path>) -> Result<Client> {
    let (store, _) = find_store(target)?;
    match control::connect(&store)? {
        Daemon::Serving { client, .. } | Daemon::Closing(client) => Ok(client),
        Daemon::Absent => {
            let store = store.path().display();
            let message =
                format!("{store} is not mounted, and no other daemon serves it: there are no locks");
            Err(CliError::new(Code::NotMounted, message))
        }
    }
}
