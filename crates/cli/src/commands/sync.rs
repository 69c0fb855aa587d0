//! `kvfs sync`.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use rustix::io::Errno;

use crate::args::SyncArgs;
use crate::control::{self, Request, Response};
use crate::endpoint::{Endpoint, mounted_at};
use crate::error::{CliError, Result};
use crate::progress::Bar;

pub(crate) fn run(args: &SyncArgs) -> Result<ExitCode> {
    let target = args.target.as_deref().or(args.store.as_deref());
    let mounted = mounted_at(target)?;
    let handed_over = mounted.as_ref().map_or(Ok(()), |mounted| {
        let _bar = Bar::new("waiting for the kernel to hand over pages");
        hand_over_pages(&mounted.dir)
    });
    let answer = Endpoint::with(target, false, |endpoint| endpoint.call(&Request::Sync))?;
    let Response::Synced { branches } = answer else { return Err(control::confused()) };
    if let Some(view) = mounted.filter(|mounted| mounted.is_view)
        && !branches.iter().any(|dir| dir == view.dir.as_os_str().as_bytes())
    {
        eprintln!(
            "kvfs: {} is the view of a transaction: what is written there is durable when it is committed",
            view.dir.display()
        );
    }
    handed_over.map(|()| ExitCode::SUCCESS)
}

/// Has the kernel hand over what programs have written into its pages: in shared mappings, and with
/// `-o writeback` all. What of that can't be stored is the command's failure, though all else is durable; a
/// mount that can't be asked has no pages.
fn hand_over_pages(dir: &Path) -> Result<()> {
    let what = "store all that programs have written (fsync of a file says whether it is one) on";
    match std::fs::File::open(dir).map(rustix::fs::syncfs) {
        Ok(Err(errno)) if !matches!(errno, Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV) => {
            Err(CliError::io(what, dir, &errno.into()))
        }
        done => {
            tracing::debug!(?done, "the kernel was asked for dirty pages");
            Ok(())
        }
    }
}
