//! Paths and descriptors inside a program: a tree of small files is made, listed and read, in one file of the
//! host.
//!
//! `posix FILE` makes 1,000 files in the store of FILE, in one transaction, and prints what it finds then.

use std::error::Error;
use std::sync::Arc;

use kvfs_fs::{BeginOptions, FileSystem, FsError, MkfsOptions, MountOptions, Owner};
use kvfs_kvdb::Db;
use kvfs_posix::{Identity, Volume};
use kvfs_store::Store;
use kvfs_store::clock::SystemClock;
use rustix::fs::OFlags;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: posix FILE")?;
    let db = Db::builder().memory_bytes(64 << 20).capacity_bytes(1 << 30).open(&path)?;
    let (store, clock) = (Arc::clone(&db) as Arc<dyn Store>, Arc::new(SystemClock::new()));
    match FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()) {
        // A store keeps its file system.
        Ok(()) | Err(FsError::Exists) => {}
        Err(error) => return Err(error.into()),
    }
    let volume = Volume::over(Arc::new(FileSystem::open(store, clock, MountOptions::default())?))?;

    let owner = Owner { uid: 0, pid: std::process::id(), name: "example".to_owned() };
    let transaction = volume.begin(&BeginOptions { owner, ..BeginOptions::default() })?;
    let inside = transaction.process(&Identity::root());
    let name = format!("/{}", std::process::id());
    inside.mkdir(name.as_str(), 0o755)?;
    inside.chdir(name.as_str())?;
    for number in 0..1000 {
        let file = inside.open(format!("file{number}").as_str(), OFlags::CREATE | OFlags::WRONLY, 0o644)?;
        inside.write(file, format!("content of file {number}\n").as_bytes())?;
        inside.close(file)?;
    }
    drop(inside);
    transaction.commit()?;

    let process = volume.process(&Identity::root());
    let (mut files, mut bytes) = (0, 0);
    for entry in process.opendir(name.as_str())? {
        let path = format!("{name}/{}", String::from_utf8_lossy(&entry?.name));
        let attr = process.stat(path.as_str())?;
        files += u64::from(attr.nlink == 1);
        bytes += if attr.nlink == 1 { attr.size } else { 0 };
    }
    println!("{files} files of {bytes} bytes together");
    drop(process);
    volume.unmount()?;
    drop(volume);
    db.close()?;
    Ok(())
}
