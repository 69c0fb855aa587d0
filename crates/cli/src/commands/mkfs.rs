//! `kvfs mkfs`.

use std::path::Path;
use std::process::ExitCode;

use kvfs_open::{EngineKind, NewDevice, NewStore, linked_device, own_device};
use kvfs_store::Tier;

use crate::args::{DeviceArg, MkfsArgs};
use crate::error::Result;
use crate::progress::Bar;
use crate::units::human_bytes;

pub(crate) fn run(args: &MkfsArgs) -> Result<ExitCode> {
    let MkfsArgs { store, engine, device, size, inline, placement, force } = args;
    let bar = Bar::new("making the store");
    // The first one has journal and manifest: a fast one, or else a file in the store's directory.
    let as_new = |device: &DeviceArg| NewDevice { force: *force, ..device.to_new() };
    let mut others: Vec<_> = device.iter().map(as_new).collect();
    // An engine that has none refuses them all.
    let is_first = |device: &NewDevice| *engine == EngineKind::Kvdb && device.tier == Tier::Fast;
    let first = others.iter().position(is_first).map(|at| others.remove(at));
    let size = first.as_ref().and_then(|first| first.size_bytes).or(*size);
    let first = first.map(|first| NewDevice { size_bytes: size, ..first });
    let new = NewStore { engine: *engine, size, inline: *inline, others: &others, placement: *placement };
    let capacity = kvfs_open::make_store(store, new, |dir| match &first {
        None => own_device(dir, size),
        Some(first) => linked_device(dir, first),
    })?;
    drop(bar);
    if engine.is_volatile() {
        println!(
            "made a store in memory, named by {}: it is empty at each mount, and what it holds ends with the unmount",
            store.display()
        );
        return Ok(ExitCode::SUCCESS);
    }
    println!("made a store of at most {} in {}", human_bytes(capacity), store.display());
    Ok(ExitCode::SUCCESS)
}

/// Makes a store in a directory; leaves nothing behind when it fails.
pub(crate) fn make_plain(path: &Path, size: Option<u64>) -> Result<()> {
    kvfs_open::make_store(path, NewStore::of_size(size), |dir| own_device(dir, size))?;
    Ok(())
}
