//! `kvfs sync`.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use crate::args::SyncArgs;
use crate::control::{self, Request, Response};
use crate::endpoint::{Endpoint, mounted_at};
use crate::error::Result;
use crate::progress::Bar;

pub(crate) fn run(args: &SyncArgs) -> Result<ExitCode> {
    let target = args.target.as_deref().or(args.store.as_deref());
    let mounted = mounted_at(target)?;
    if let Some(mounted) = &mounted {
        let _bar = Bar::new("waiting for the kernel to hand over pages");
        hand_over_pages(&mounted.dir);
    }
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
    Ok(ExitCode::SUCCESS)
}

/// Has the kernel hand over what programs have written into shared mappings. Of nothing else it is the only owner, so
/// what can't be asked (of a dead mount, say) is not missed.
fn hand_over_pages(dir: &Path) {
    let done = std::fs::File::open(dir).map(rustix::fs::syncfs);
    if !matches!(done, Ok(Ok(()))) {
        tracing::debug!(?done, "the kernel was not asked for dirty pages");
    }
}
