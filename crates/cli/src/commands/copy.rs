//! `kvfs copy`.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvfs_fs::check::Problem;
use kvfs_open::{CopiedStore, CopyOrder, EngineKind, MEMORY_BYTES_MIN, Memory, OpenOptions, copy_store};

use super::mkfs::Wanted;
use crate::args::CopyArgs;
use crate::endpoint::{find_store, stop_by_signals, tell_of_death};
use crate::error::{CliError, Code, Result};
use crate::open::{self, OpenStore};
use crate::progress::Bar;
use crate::staging::Staged;
use crate::store_dir::StoreDir;
use crate::units::human_bytes;

pub(crate) fn run(args: &CopyArgs) -> Result<ExitCode> {
    let (dir, mounted) = find_store(Some(&args.store))?;
    tell_of_death(mounted.as_ref());
    let kind = dir.engine()?;
    let wanted = Wanted::of(&args.new, kind);
    // Two stores are open.
    let memory = Memory::new(Some((Memory::default().bytes() / 2).max(MEMORY_BYTES_MIN)))?;
    let source = open_source(&dir, kind, memory)?;
    let is_stopping = Arc::new(AtomicBool::new(false));
    stop_by_signals(&is_stopping)?;
    // It is no part of the store yet.
    let staged =
        Staged::look(&dir)?.map(|_| "what has arrived of a stream that is being received".to_owned());
    let tell_left = |left: &[String]| {
        for what in left.iter().chain(&staged) {
            eprintln!("kvfs: {} will not have {what}", args.new_store.display());
        }
    };
    let order = CopyOrder {
        new: wanted.as_new(0),
        memory,
        goes_on: &|| !is_stopping.load(Ordering::Relaxed),
        tell_left: &tell_left,
    };
    let bar = Bar::new("copying the store");
    let parts = (&*source.fs, &source.engine);
    let copied = bar.watch(|| copy_store(parts, &args.new_store, &order, |dir| wanted.find_device(dir)));
    drop(bar);
    let closed = source.close();
    let mut copied = copied?;
    closed?;
    wanted.warn_of_holes();
    copied.left.extend(staged);
    Ok(report(args, &copied))
}

/// Opens what is to be copied, to be read.
fn open_source(dir: &StoreDir, kind: EngineKind, memory: Memory) -> Result<OpenStore> {
    let path = dir.path().display();
    let by_stream = "a snapshot of it: `kvfs snapshot create NAME`, then `kvfs snapshot send NAME | kvfs snapshot receive \
         --create -s NEWSTORE`";
    let options = OpenOptions { memory, read_only: true, ..OpenOptions::default() };
    let opened = if kind.is_volatile() {
        // Whether it is mounted or not, an unmount leaves nothing to be copied.
        let message = format!(
            "{path} holds something only while it is mounted (engine {}), and is not copied; what can be is {by_stream}",
            kind.name()
        );
        return Err(CliError::new(Code::Usage, message));
    } else {
        open::open_unmounted(dir, &options)
    };
    opened.map_err(|error| match error.code {
        Code::InUse if kind == EngineKind::Kvdb => {
            let message = format!(
                "{}; a store is copied while it is not in use: unmount it first, or send {by_stream} (without quotas)",
                error.message
            );
            CliError::new(Code::InUse, message)
        }
        Code::InUse => {
            let message =
                format!("{}; a store is copied while it is not in use: unmount it first", error.message);
            CliError::new(Code::InUse, message)
        }
        _ => error,
    })
}

fn report(args: &CopyArgs, done: &CopiedStore) -> ExitCode {
    let CopiedStore { copied, capacity_bytes, left, files } = done;
    let is_clean = files.problems.is_empty();
    if args.json {
        let as_json =
            |problem: &Problem| serde_json::json!({ "place": problem.place, "detail": problem.detail });
        let findings: Vec<_> = files.problems.iter().map(as_json).collect();
        let line = serde_json::json!({
            "keyspaces": copied.keyspaces, "snapshots": copied.snapshots, "records": copied.records,
            "bytes": copied.bytes, "capacity": capacity_bytes, "left": left,
            "clean": is_clean, "findings": findings,
        });
        println!("{line}");
    } else {
        for Problem { place, detail } in &files.problems {
            println!("damaged: {place}: {detail}");
        }
        let snapshots = match copied.snapshots {
            0 => String::new(),
            count => format!(", {count} named snapshots"),
        };
        let verdict = if is_clean { "clean" } else { "with the contradictions of what was copied" };
        println!(
            "copied {}{snapshots} to {}, a store of at most {}: compared, and {verdict}",
            human_bytes(copied.bytes),
            args.new_store.display(),
            human_bytes(*capacity_bytes)
        );
    }
    if is_clean { ExitCode::SUCCESS } else { ExitCode::from(Code::Damaged as u8) }
}
