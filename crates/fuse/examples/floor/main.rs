//! A FUSE server in memory, with no disk behind it: the floor under every benchmark of kvfs over FUSE.
//!
//! `floor DIR [--workers N] [--io-uring]` mounts, serves in the foreground, and unmounts on SIGTERM or
//! SIGINT. It does as little as a correct file system can: no durability, no permissions of its own (the
//! kernel checks them), no extended attributes, long time-outs.

mod operations;
mod tree;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use kvfs_fuse::Session;
use kvfs_fuse::mount::{MountOptions, Unmount, mount, set_read_ahead};
use kvfs_fuse::session::{InitConfig, Readdirplus, SessionConfig};
use kvfs_fuse::transport::DeviceTransport;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

struct Arguments {
    dir: PathBuf,
    workers: usize,
    io_uring: bool,
}

fn arguments() -> Result<Arguments, String> {
    let usage = "usage: floor DIR [--workers N] [--io-uring]";
    let mut dir = None;
    let (mut workers, mut io_uring) = (2, false);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--workers" {
            let number = words.next().ok_or(usage)?;
            workers = number.parse().map_err(|_| format!("--workers {number}: not a number"))?;
        } else if word == "--io-uring" {
            io_uring = true;
        } else if dir.is_none() {
            dir = Some(PathBuf::from(word));
        } else {
            return Err(usage.to_owned());
        }
    }
    Ok(Arguments { dir: dir.ok_or(usage)?, workers, io_uring })
}

fn serve(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let options = MountOptions {
        source: "floor".into(),
        subtype: "floor".to_owned(),
        allow_other: true,
        ..MountOptions::default()
    };
    let config = SessionConfig {
        init: InitConfig {
            no_open: true,
            no_opendir: true,
            no_create: true,
            no_flush: true,
            readdirplus: Readdirplus::Always,
            io_uring: arguments.io_uring,
            ..InitConfig::default()
        },
        workers: arguments.workers,
        ..SessionConfig::default()
    };
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let (point, device) = mount(&arguments.dir, &options)?;
    let point = Arc::new(point);
    let server = Arc::new(operations::Floor::new());
    let session = Session::start(Box::new(DeviceTransport::new(device)), &config, server)?;
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
    let done = arguments().map_err(Into::into).and_then(|arguments| serve(&arguments));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("floor: {error}");
            ExitCode::FAILURE
        }
    }
}
