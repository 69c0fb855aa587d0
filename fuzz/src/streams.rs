//! A stream of a snapshot, received into an empty store.

use std::sync::{Arc, LazyLock};

use kvfs_fs::transfer::{FRAME_HEADER_BYTES, Receiver, SendStream, StreamId, StreamReader};
use kvfs_fs::{FileSystem, MkfsOptions, MountOptions};
use kvfs_store::Store;
use kvfs_store::clock::SystemClock;
use kvfs_store::model::ModelStore;

use crate::input::{Parts, crc32c};

/// Kinds of frames (docs/FORMAT.md, "Streams").
const END: u32 = 4;

/// A valid stream: its identity, and its frames.
static VALID: LazyLock<(StreamId, Vec<Vec<u8>>)> = LazyLock::new(|| {
    let fs = file_system(1);
    crate::requests::fill(&fs);
    fs.store().create_snapshot("seed").expect("the model takes snapshots");
    let info = fs.store().named_snapshots().into_iter().next().expect("it was just created");
    let id = fs.snapshots().id(&info).expect("the snapshot has an identity");
    let mut stream = SendStream::new(&fs, None, &id).expect("a snapshot can be sent");
    let mut frames = Vec::new();
    while let Some(frame) = stream.next_frame().expect("the model reads") {
        frames.push(frame);
    }
    (stream.stream(), frames)
});

/// An empty file system in memory.
pub fn file_system(uuid: u8) -> Arc<FileSystem> {
    let store: Arc<dyn Store> = Arc::new(ModelStore::with_uuid([uuid; 16]));
    let clock = Arc::new(SystemClock::new());
    FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).expect("the model takes a file system");
    Arc::new(FileSystem::open(store, clock, MountOptions::default()).expect("it was just made"))
}

/// The parts of the valid stream's frames; for seeds.
pub fn seed() -> Vec<u8> {
    let frames = &VALID.1[1..VALID.1.len() - 1];
    let parts = frames.iter().map(|frame| crate::input::part(frame[0], &frame[FRAME_HEADER_BYTES..]));
    parts.collect::<Vec<_>>().concat()
}

/// A frame with the right position and checksum.
fn seal(kind: u32, position: u64, payload: &[u8]) -> Vec<u8> {
    let mut header = [0; FRAME_HEADER_BYTES];
    header[..4].copy_from_slice(&kind.to_le_bytes());
    header[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[8..16].copy_from_slice(&position.to_le_bytes());
    let crc = crc32c(&[&header[..FRAME_HEADER_BYTES - 4], payload]);
    header[FRAME_HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    [&header[..], payload].concat()
}

/// Receives the valid stream's first frame, the parts of the input as frames, and a right end. What was taken
/// is a tree that can be checked and sent on.
pub fn run(data: &[u8]) {
    let (id, frames) = &*VALID;
    let mut stream = frames[0].clone();
    for (kind, payload) in Parts(data) {
        stream.extend(seal(2 + u32::from(kind % 2), stream.len() as u64, payload));
    }
    let hash = blake3::hash(&stream);
    stream.extend(seal(END, stream.len() as u64, hash.as_bytes()));
    let fs = file_system(2);
    if Receiver::new(&fs).receive(StreamReader::new(*id), &mut &stream[..], false).is_err() {
        return;
    }
    drop(kvfs_fs::check::check(fs.store()));
    for info in fs.store().named_snapshots() {
        let Ok(id) = fs.snapshots().id(&info) else { continue };
        let Ok(mut stream) = SendStream::new(&fs, None, &id) else { continue };
        while let Ok(Some(_)) = stream.next_frame() {}
    }
}
