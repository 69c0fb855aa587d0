//! `kvfs txn join`: a command sees the view in the place of the mount.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use super::{STORE_VARIABLE, TXN_VARIABLE, below, connect};
use crate::control::{Client, Request, Response};
use crate::error::{CliError, Code, Result};
use crate::namespace;

pub(super) fn run(store: Option<&Path>, id: u64, command: &[OsString]) -> Result<ExitCode> {
    let (mut client, mount) = connect(store)?;
    let Response::Begun { view, .. } = client.call(&Request::View { id })? else {
        return Err(Client::confused());
    };
    let view = PathBuf::from(OsString::from_vec(view));
    let here = std::env::current_dir().ok().filter(|here| below(here, &mount).is_some());
    namespace::enter(false)?;
    // First from where it is, because the mount point may lie on what it covers.
    namespace::bind(&view, &mount.dir)?;
    re_enter(here.as_deref())?;
    let [program, arguments @ ..] = command else {
        return Err(CliError::new(Code::Usage, "which command?"));
    };
    let error = Command::new(program)
        .args(arguments)
        .env(TXN_VARIABLE, id.to_string())
        .env(STORE_VARIABLE, &mount.store)
        .exec();
    Err(cannot_run(program, &error))
}

/// The working directory is still that of the main line: enters the one of the same name in the view.
pub(super) fn re_enter(here: Option<&Path>) -> Result<()> {
    let Some(here) = here else { return Ok(()) };
    std::env::set_current_dir(here).map_err(|error| CliError::io("enter the transaction's", here, &error))
}

/// A command that does not start.
pub(super) fn cannot_run(program: &OsString, error: &std::io::Error) -> CliError {
    CliError::new(Code::Failed, format!("cannot run {}: {error}", program.to_string_lossy()))
}
