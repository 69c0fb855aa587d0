//! `kvfs mkfs`.

use std::path::Path;
use std::process::ExitCode;

use kvfs_device::FileDevice;
use kvfs_kvdb::Placement;
use kvfs_open::{EngineKind, NewDevice, NewStore, Objects, StoreDir, linked_device, own_device};
use kvfs_store::Tier;

use super::tier::warn_of_holes;
use crate::args::{DeviceArg, MkfsArgs, NewStoreArgs};
use crate::error::{CliError, Code, Result};
use crate::progress::Bar;
use crate::units::human_bytes;

/// A new store as arguments ask for it.
pub(super) struct Wanted {
    engine: EngineKind,
    size: Option<u64>,
    /// The one with journal and manifest; `None`: a file in the store's directory.
    first: Option<NewDevice>,
    others: Vec<NewDevice>,
    placement: Option<Placement>,
    url: Option<String>,
    endpoint: Option<String>,
}

impl Wanted {
    /// `engine`: where none is named.
    pub(super) fn of(args: &NewStoreArgs, engine: EngineKind) -> Self {
        let NewStoreArgs { device, size, placement, force, url, endpoint, .. } = args;
        let engine = args.engine.unwrap_or(engine);
        let as_new = |device: &DeviceArg| NewDevice { force: *force, ..device.to_new() };
        let mut others: Vec<_> = device.iter().map(as_new).collect();
        // The first one is a fast one, if there is any. An engine that has no devices refuses them all.
        let is_first = |device: &NewDevice| engine == EngineKind::Kvdb && device.tier == Tier::Fast;
        let first = others.iter().position(is_first).map(|at| others.remove(at));
        let size = first.as_ref().and_then(|first| first.size_bytes).or(*size);
        let first = first.map(|first| NewDevice { size_bytes: size, ..first });
        let (url, endpoint) = (url.clone(), endpoint.clone());
        Self { engine, size, first, others, placement: *placement, url, endpoint }
    }

    pub(super) fn as_new(&self, inline: u64) -> NewStore<'_> {
        let &Self { engine, size, ref others, placement, .. } = self;
        let endpoint = self.endpoint.as_deref();
        let objects = self.url.as_deref().map(|url| Objects { url, endpoint });
        NewStore { engine, size, inline, others, placement, objects }
    }

    pub(super) fn find_device(&self, dir: &StoreDir) -> kvfs_open::Result<(FileDevice, u64)> {
        match &self.first {
            None => own_device(dir, self.size),
            Some(first) => linked_device(dir, first),
        }
    }

    /// Warns of files beside the first one that may find no space later.
    pub(super) fn warn_of_holes(&self) {
        self.others.iter().for_each(|other| warn_of_holes(&other.path));
    }
}

pub(crate) fn run(args: &MkfsArgs) -> Result<ExitCode> {
    let MkfsArgs { store, new, inline } = args;
    let bar = Bar::new("making the store");
    let is_url = kvfs_open::is_url(store);
    let engine = if is_url { EngineKind::SlateDb } else { EngineKind::default() };
    let mut wanted = Wanted::of(new, engine);
    let mut store = store.clone();
    if is_url {
        if wanted.url.is_some() {
            let message = "the store is named by its URL, and --url names another one";
            return Err(CliError::new(Code::Usage, message));
        }
        wanted.url = Some(store.display().to_string());
        (store, wanted.endpoint) = kvfs_open::new_directory_of_url(&store, wanted.endpoint.as_deref())?;
    }
    let capacity = kvfs_open::make_store(&store, wanted.as_new(*inline), |dir| wanted.find_device(dir))?;
    drop(bar);
    wanted.warn_of_holes();
    if wanted.engine.is_volatile() {
        println!(
            "made a store in memory, named by {}: it is empty at each mount, and what it holds ends with the unmount",
            store.display()
        );
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(url) = wanted.url {
        println!("made a store at {url}, named by {}", store.display());
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
