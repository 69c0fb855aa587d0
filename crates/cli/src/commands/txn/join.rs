//! `kvfs txn join`: a command sees the view in the place of every mount of the store.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use super::cover::{Cover, open_view};
use super::{STORE_VARIABLE, TXN_VARIABLE, connect_to_main, expect_mount};
use crate::control::{self, Client, Request, Response};
use crate::error::{CliError, Code, Result};
use crate::mounts::MountedStore;
use crate::namespace;

pub(super) fn run(store: Option<&Path>, id: u64, command: &[OsString]) -> Result<ExitCode> {
    let (mut client, mount) = connect_to_main(store)?;
    expect_mount(&mount, "txn join")?;
    let [program, arguments @ ..] = command else {
        return Err(CliError::new(Code::Usage, "which command?"));
    };
    if client.is_public() {
        show_copy(&mut client, &mount, id)?;
    } else {
        show_mounted(&mut client, &mount, id)?;
    }
    let error = Command::new(program)
        .args(arguments)
        .env(TXN_VARIABLE, id.to_string())
        .env(STORE_VARIABLE, &mount.store)
        .exec();
    Err(cannot_run(program, &error))
}

/// Shows the view that the daemon has mounted below the store's directory.
fn show_mounted(client: &mut Client, mount: &MountedStore, id: u64) -> Result<()> {
    let Response::Begun { view, .. } = client.call(&Request::View { id })? else {
        return Err(control::confused());
    };
    let view = PathBuf::from(OsString::from_vec(view));
    namespace::enter()?;
    // From where it is, because a mount point may lie on what it covers.
    Cover::of(mount)?.show(&open_view(&view)?, None)
}

/// Shows a mount of the view that the daemon hands over, for users that do not get to the store's directory.
fn show_copy(client: &mut Client, mount: &MountedStore, id: u64) -> Result<()> {
    namespace::enter()?;
    let cover = Cover::of(mount)?;
    let view = client.take_view(id)?;
    let (point, place) = cover.uncover(mount)?;
    namespace::attach(&view, &place, &point)?;
    cover.show(&open_view(&point)?, Some(&point))
}

/// A command that does not start.
pub(crate) fn cannot_run(program: &OsStr, error: &std::io::Error) -> CliError {
    CliError::new(Code::Failed, format!("cannot run {}: {error}", program.to_string_lossy()))
}
