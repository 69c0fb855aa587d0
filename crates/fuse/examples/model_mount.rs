//! The file system over the reference model of a store, mounted: everything of kvfs but its engine.
//!
//! `model_mount DIR [--workers N] [-o OPTIONS]` serves in the foreground and unmounts on SIGTERM or SIGINT;
//! nothing survives it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use kvfs_fs::{AtimePolicy, FileSystem, MkfsOptions, MountOptions as FsOptions};
use kvfs_fuse::bridge::{Bridge, BridgeConfig, init_config};
use kvfs_fuse::mount::{AtimeMode, MountOptions, Unmount, mount, set_read_ahead};
use kvfs_fuse::transport::DeviceTransport;
use kvfs_fuse::{Session, SessionConfig};
use kvfs_store::Store;
use kvfs_store::clock::SystemClock;
use kvfs_store::model::ModelStore;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

struct Arguments {
    dir: PathBuf,
    workers: usize,
    options: MountOptions,
}

fn arguments() -> Result<Arguments, String> {
    let usage = "usage: model_mount DIR [--workers N] [-o OPTIONS]";
    let mut dir = None;
    let mut workers = 2;
    let mut options = MountOptions { source: "model".into(), ..MountOptions::default() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--workers" => {
                let number = words.next().ok_or(usage)?;
                workers = number.parse().map_err(|_| format!("--workers {number}: not a number"))?;
            }
            "-o" => {
                let list = words.next().ok_or(usage)?;
                let unknown = options.apply(&list).map_err(|error| error.to_string())?;
                if !unknown.is_empty() {
                    return Err(format!("unknown mount options: {}", unknown.join(",")));
                }
            }
            _ if dir.is_none() => dir = Some(PathBuf::from(word)),
            _ => return Err(usage.to_owned()),
        }
    }
    Ok(Arguments { dir: dir.ok_or(usage)?, workers, options })
}

fn serve(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let clock = Arc::new(SystemClock::new());
    let store: Arc<dyn Store> = Arc::new(ModelStore::new());
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let root = MkfsOptions { uid: owner.0, gid: owner.1, ..MkfsOptions::default() };
    FileSystem::mkfs(&store, &*clock, &root)?;
    let atime = match arguments.options.atime {
        AtimeMode::Relatime => AtimePolicy::Relatime,
        AtimeMode::Noatime => AtimePolicy::Noatime,
    };
    let options = FsOptions { atime, read_only: arguments.options.read_only, ..FsOptions::default() };
    let fs = Arc::new(FileSystem::open(store, clock, options)?);

    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let bridge = Arc::new(Bridge::new(fs, BridgeConfig::default())?);
    let (point, device) = mount(&arguments.dir, &arguments.options)?;
    let point = Arc::new(point);
    let config =
        SessionConfig { init: init_config(), workers: arguments.workers, ..SessionConfig::default() };
    let session = Session::start(Box::new(DeviceTransport::new(device)), &config, bridge.clone())?;
    bridge.attach(session.notifier());
    if let Err(error) = set_read_ahead(point.path(), 1 << 20) {
        eprintln!("read-ahead stays at the kernel's default: {error}");
    }
    println!("mounted on {}", point.path().display());
    let unmounting = Arc::clone(&point);
    std::thread::spawn(move || {
        for _signal in signals.forever() {
            if let Err(error) = unmounting.unmount(Unmount::CleanOrLazy) {
                eprintln!("{error}");
            }
        }
    });
    session.wait()?;
    point.forget();
    Ok(())
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match arguments().map_err(Into::into).and_then(|arguments| serve(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("model_mount: {error}");
            ExitCode::FAILURE
        }
    }
}
