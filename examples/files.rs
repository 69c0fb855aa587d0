//! A file system inside a program, without a mount: directories, files and a rename, in one file of the host.
//!
//! `files FILE` writes `notes/today` in the store of FILE anew, and prints what it holds.

use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_fs::{Caller, FileSystem, FsError, MkfsOptions, MountOptions, NodeId, RenameMode, WriteFlags};
use kvfs_kvdb::Db;
use kvfs_store::Store;
use kvfs_store::clock::SystemClock;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: files FILE")?;
    let db = Db::builder().memory_bytes(64 << 20).capacity_bytes(1 << 30).open(&path)?;
    let (store, clock) = (Arc::clone(&db) as Arc<dyn Store>, Arc::new(SystemClock::new()));
    match FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()) {
        // A store keeps its file system.
        Ok(()) | Err(FsError::Exists) => {}
        Err(error) => return Err(error.into()),
    }
    let fs = Arc::new(FileSystem::open(store, clock, MountOptions::default())?);
    let caller = Caller::default();

    // Calls go by node; each that returns one takes a reference, which `forget` gives back.
    let notes = match fs.lookup(&caller, NodeId::ROOT, b"notes") {
        Ok(entry) => entry.node,
        Err(FsError::NotFound) => fs.mkdir(&caller, NodeId::ROOT, b"notes", 0o755)?.node,
        Err(error) => return Err(error.into()),
    };
    let (file, _) = fs.create(&caller, notes, b"draft", 0o644, false)?;
    let line = Bytes::from_static(b"written without a mount\n");
    fs.write(&caller, file.node, 0, line, WriteFlags::default())?;

    // Each call is atomic, also when the power fails: `today` is the old file or the new one.
    fs.rename(&caller, notes, b"draft", notes, b"today", RenameMode::Replace)?;
    fs.sync(fs.sync_target_all()?)?;

    let mut buffer = vec![0; fs.getattr(&caller, file.node)?.size as usize];
    let len = fs.read(&caller, file.node, 0, &mut buffer)?;
    print!("{}", String::from_utf8_lossy(&buffer[..len]));
    fs.forget(file.node, 1);
    fs.forget(notes, 1);
    drop(fs);
    db.close()?;
    Ok(())
}
