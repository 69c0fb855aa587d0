//! A stream of a snapshot, received into an empty store.

use std::sync::{Arc, LazyLock};

use kvfs_fs::transfer::{FRAME_HEADER_BYTES, Receiver, SendStream, StreamId, StreamReader};
use kvfs_fs::{
    Attr, BeginOptions, Caller, CloneRights, FileSystem, MkfsOptions, MountOptions, NodeId, WriteFlags,
    clone_tree,
};
use kvfs_store::Store;
use kvfs_store::clock::SystemClock;
use kvfs_store::model::ModelStore;

use crate::input::{Parts, crc32c};

/// Kinds of frames (docs/FORMAT.md, "Streams"): a keyspace, records, references; and the last one.
const KINDS: [u32; 3] = [2, 3, 5];
const END: u32 = 4;

/// A valid stream: its identity, and its frames.
static VALID: LazyLock<(StreamId, Vec<Vec<u8>>)> = LazyLock::new(|| {
    let fs = file_system(1);
    crate::requests::fill(&fs);
    fill_with_clones(&fs);
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

/// A file of several blocks, and a clone of it of which one is another.
fn fill_with_clones(fs: &Arc<FileSystem>) {
    let caller = Caller::default();
    let write = |name: &[u8], offset: u64, content: Vec<u8>| {
        let made = fs.create(&caller, NodeId::ROOT, name, 0o644, false).expect("a file can be made");
        fs.write(&caller, made.0.node, offset, content.into(), WriteFlags::default()).expect("and written");
    };
    write(b"source", 0, vec![7; 9 * 4096]);
    let view = fs.begin(&BeginOptions::default()).expect("the model takes transactions");
    let (from, to) = ((NodeId::ROOT, &b"source"[..]), (NodeId::ROOT, &b"clone"[..]));
    assert!(clone_tree(&view, &caller, from, to, &Everything).is_ok(), "a file can be cloned");
    let frozen = view.expect_txn().and_then(|txn| txn.freeze()?.plan()).expect("it can be committed");
    drop(frozen.commit(|| ()).expect("nothing is in the way"));
    write(b"clone", 3 * 4096, vec![8; 4096]);
}

/// Rights to everything.
struct Everything;

impl CloneRights for Everything {
    fn is_everything(&self) -> bool {
        true
    }

    fn check_source(&self, _: NodeId, _: &Attr) -> kvfs_fs::Result<()> {
        Ok(())
    }

    fn owner_of(&self, attr: &Attr) -> (u32, u32) {
        (attr.uid, attr.gid)
    }

    fn is_alone(&self) -> bool {
        true
    }
}

/// The parts of the valid stream's frames; for seeds.
pub fn seed() -> Vec<u8> {
    let frames = &VALID.1[1..VALID.1.len() - 1];
    let number =
        |kind: u8| KINDS.iter().position(|&known| known == u32::from(kind)).unwrap_or_default() as u8;
    let parts = frames.iter().map(|frame| crate::input::part(number(frame[0]), &frame[FRAME_HEADER_BYTES..]));
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
        stream.extend(seal(KINDS[usize::from(kind) % KINDS.len()], stream.len() as u64, payload));
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
