//! `kvfs debug`.

use std::path::Path;
use std::process::ExitCode;

use crate::args::{DebugArgs, DebugCommand, DebugLeaksArgs, DebugLocksArgs};
use crate::control::{self, Client, Daemon, Request, Response};
use crate::endpoint::{find_store, reach_public};
use crate::error::{CliError, Code, Result};
use crate::report::{charges, held};

pub(crate) fn run(args: &DebugArgs) -> Result<ExitCode> {
    match &args.command {
        DebugCommand::Locks(args) => locks(args),
        DebugCommand::Leaks(args) => leaks(args),
    }
}

fn locks(args: &DebugLocksArgs) -> Result<ExitCode> {
    let Response::HeldLocks(lines) = ask(args.store.as_deref(), &Request::HeldLocks)? else {
        return Err(control::confused());
    };
    print!("{}", if args.json { held::as_json(&lines) } else { held::as_text(&lines) });
    Ok(ExitCode::SUCCESS)
}

fn leaks(args: &DebugLeaksArgs) -> Result<ExitCode> {
    let lines = match ask(args.store.as_deref(), &Request::Charges)? {
        Response::Charges(lines) => lines,
        Response::Closing => return Err(CliError::new(Code::NotMounted, "the store is being closed")),
        _ => return Err(control::confused()),
    };
    print!("{}", if args.json { charges::as_json(&lines) } else { charges::as_text(&lines) });
    Ok(ExitCode::SUCCESS)
}

fn ask(target: Option<&Path>, request: &Request) -> Result<Response> {
    let mut client = match connect(target) {
        Err(error) => reach_public(target, error)?.0,
        connected => connected?,
    };
    Ok(client.call(request)?)
}

/// The daemon of a store, also while it is being closed: that may be what hangs.
fn connect(target: Option<&Path>) -> Result<Client> {
    let (store, _) = find_store(target)?;
    match control::connect(&store)? {
        Daemon::Serving { client, .. } | Daemon::Closing(client) => Ok(client),
        Daemon::Absent => {
            let store = store.path().display();
            let message =
                format!("{store} is not mounted, and no other daemon serves it: there is nothing to look at");
            Err(CliError::new(Code::NotMounted, message))
        }
    }
}
