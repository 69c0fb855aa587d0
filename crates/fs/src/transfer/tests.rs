use std::sync::Arc;

use bytes::Bytes;
use kvfs_kv::KeyspaceOwner;
use kvfs_store::model::ModelStore;
use kvfs_store::{Batch, Compression, Cursor, Durability, KeyRange, Keyspace, KeyspaceKind, Op, Read, Store};

use super::changes::Stage;
use super::frame::{FrameHeader, FrameKind, decode_keyspace, encode_frame, encode_keyspace};
use super::record::{CLONES, DATA, META, USERS, XATTR, decode_records, encode_records};
use super::references::{REFERENCES_MAX, decode_references, encode_references};
use super::*;
use crate::schema::{Header, Placement, encode_row, inode_key, keyspace_records, superblock_key, xattr_key};
use crate::{FileSystem, FileType, MkfsOptions, MountOptions, Timestamp};

const INODE_NEXT: u64 = 1000;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % bound
    }

    fn bytes(&mut self, len_max: u64) -> Vec<u8> {
        (0..self.below(len_max)).map(|_| self.below(256) as u8).collect()
    }
}

fn id(number: u8) -> SnapshotId {
    SnapshotId { store: [number; 16], position: u64::from(number) * 1000, created: u64::MAX - 5 }
}

fn begin(from: bool) -> Begin {
    Begin {
        to: (id(2), "two".into()),
        from: from.then(|| (id(1), "öne".into())),
        inline_len_max: 4096,
        inode_next: INODE_NEXT,
        has_projects: from,
        has_clones: from,
    }
}

fn row(inode: u64) -> Bytes {
    encode_row(&Header::new(inode, FileType::Regular, Timestamp { seconds: 1, nanos: 2 }), b"content")
}

fn batch(keyspace: u32) -> Batch {
    let handle = Keyspace(keyspace);
    let key = |inode: u64, rest: &[u8]| Bytes::from([&inode.to_be_bytes()[..], rest].concat());
    let mut batch = Batch::new();
    match keyspace {
        META => {
            batch.put(handle, Placement::own_subtree(1).key(b"name"), row(77));
            batch.delete(handle, Placement::own_subtree(1).key(b"gone"));
        }
        DATA => {
            batch.put_blocks(handle, inode_key(77), 5, vec![7; 8192]);
            batch.delete_range(handle, key(77, &9u64.to_be_bytes()), key(78, &[0; 8]));
        }
        XATTR => {
            batch.put(handle, key(77, b"user.note"), "value");
            batch.delete(handle, key(77, b"user.other"));
            batch.delete_range(handle, inode_key(78), inode_key(79));
        }
        CLONES => {
            batch.put(handle, key(77, b""), vec![7; 16]);
            batch.delete(handle, key(78, b""));
            batch.delete_range(handle, inode_key(78), inode_key(79));
        }
        _ => {
            batch.put(handle, "song", "value");
            batch.delete(handle, "gone");
        }
    }
    batch
}

#[test]
fn prologues_round_trip_and_others_are_named() {
    let prologue =
        Prologue { stream: begin(true).stream(), offset: 77, bytes_expected: 1 << 40, has_clones: false };
    let bytes = prologue.encode();
    assert_eq!(Prologue::decode(&bytes).unwrap(), prologue);
    assert_eq!(Prologue::read(&mut &bytes[..]).unwrap(), prologue);
    for at in 0..PROLOGUE_BYTES {
        let mut changed = bytes;
        changed[at] ^= 0x40;
        match (at, Prologue::decode(&changed)) {
            (0..8, Err(StreamError::NotAStream))
            | (8..12, Err(StreamError::OtherVersion(_)))
            | (12.., Err(StreamError::Damaged { .. })) => {}
            (_, other) => panic!("byte {at}: {other:?}"),
        }
    }
    for len in 0..PROLOGUE_BYTES {
        let cut = Prologue::read(&mut &bytes[..len]);
        let is_cut = matches!(cut, Err(StreamError::Truncated { .. } | StreamError::NotAStream));
        assert!(is_cut || (8..12).contains(&len), "{len} bytes: {cut:?}");
    }
}

#[test]
fn what_frames_say_round_trips() {
    for from in [false, true] {
        assert_eq!(Begin::decode(&begin(from).encode()), Some(begin(from)));
    }
    assert_ne!(begin(false).stream(), begin(true).stream());
    for owner in [None, Some(KeyspaceOwner { uid: 7, gid: 8, mode: 0o640 })] {
        assert_eq!(decode_keyspace(&encode_keyspace("tags", owner)), Some(("tags".to_owned(), owner)));
    }
    for keyspace in [META, DATA, XATTR, CLONES, USERS, USERS + 9] {
        let payload = Bytes::from(encode_records(keyspace, &batch(keyspace)));
        assert_eq!(decode_records(&payload, INODE_NEXT), Some((keyspace, batch(keyspace))));
    }
    let frame = encode_frame(FrameKind::Records, 33, b"payload");
    let (header, payload) = frame.split_first_chunk().unwrap();
    let decoded = FrameHeader::decode(header, 33).unwrap();
    assert!(decoded.kind == FrameKind::Records && decoded.verify(header, payload));
    assert!(FrameHeader::decode(header, 34).is_err(), "in another place");
    assert!(!decoded.verify(header, b"paYload"));
}

#[test]
fn records_that_make_no_sense_are_refused() {
    let refused = |keyspace: u32, op: Op| {
        let mut batch = Batch::new();
        batch.push(op);
        let payload = Bytes::from(encode_records(keyspace, &batch));
        assert_eq!(decode_records(&payload, INODE_NEXT), None, "{keyspace}: {:?}", batch.ops());
    };
    let put = |key: Bytes, value: Bytes| Op::Put { keyspace: Keyspace(0), key, value };
    let delete = |key: Bytes| Op::Delete { keyspace: Keyspace(0), key };
    let range = |start: Bytes, end: Bytes| Op::DeleteRange { keyspace: Keyspace(0), start, end };
    let name = Placement::own_subtree(1).key(b"name");
    // The file system's own records, what is no row, and numbers that would be given out again.
    refused(META, put(superblock_key(), row(77)));
    refused(META, delete([&keyspace_records()[..], b"tags"].concat().into()));
    refused(META, put(name.clone(), Bytes::from_static(b"no row")));
    refused(META, put(name.clone(), row(INODE_NEXT)));
    refused(META, put(Placement::own_subtree(INODE_NEXT).own_key(), row(77)));
    refused(META, put(Bytes::from_static(b"short"), row(77)));
    refused(META, range(inode_key(1), inode_key(2)));
    // Names that lead elsewhere or that no entry has; rows under another number; attributes of no file.
    let long = [b'n'; 256];
    for name in [&b".."[..], b".", b"../up", b"a/b", b"nul\0", &long] {
        refused(META, put(Placement::own_subtree(1).key(name), row(77)));
    }
    refused(META, put(Placement::own_subtree(78).own_key(), row(77)));
    let header = Header::new(77, FileType::Regular, Timestamp { seconds: 1, nanos: 2 });
    for header in [Header { size: u64::MAX, ..header }, Header { mode: 0o40755, ..header }] {
        refused(META, put(name.clone(), encode_row(&header, b"content")));
    }
    // Blocks are whole, under an inode.
    let blocks = |prefix: Bytes, data: Bytes| {
        let (keyspace, compression) = (Keyspace(0), Compression::None);
        Op::PutBlocks { keyspace, prefix, first: 0, data, compression }
    };
    refused(DATA, blocks(inode_key(77), Bytes::from_static(b"half")));
    refused(DATA, blocks(Bytes::from_static(b"long prefix"), vec![0; 4096].into()));
    refused(DATA, put(inode_key(77), row(77)));
    refused(DATA, range(inode_key(77), inode_key(78)));
    refused(META, blocks(inode_key(77), vec![0; 4096].into()));
    refused(XATTR, put(inode_key(77), Bytes::new()));
    refused(XATTR, range(inode_key(79), inode_key(78)));
    refused(CLONES, put(inode_key(77), Bytes::from_static(b"no source")));
    refused(CLONES, put(inode_key(INODE_NEXT), vec![0; 16].into()));
    refused(CLONES, put(xattr_key(77, b"more"), vec![0; 16].into()));
    refused(CLONES, delete(inode_key(0)));
    refused(CLONES, range(inode_key(77), xattr_key(78, b"more")));
    refused(USERS, put(Bytes::new(), Bytes::from_static(b"the empty key")));
    for name in ["meta", "", "a\nb", &"n".repeat(256)] {
        assert_eq!(decode_keyspace(&encode_keyspace(name, None)), None, "{name:?}");
    }
    let mut absurd = begin(false);
    absurd.inode_next = u64::MAX;
    assert_eq!(Begin::decode(&absurd.encode()), None);
    absurd = begin(false);
    absurd.to.1 = "a/b".into();
    assert_eq!(Begin::decode(&absurd.encode()), None);
}

#[test]
fn decoding_of_streams_survives_any_bytes() {
    const SEED: u64 = 0x5eed_0001;
    let mut random = Random(SEED);
    let whole: Vec<Vec<u8>> = [META, DATA, XATTR, CLONES, USERS]
        .into_iter()
        .map(|keyspace| encode_records(keyspace, &batch(keyspace)))
        .chain([begin(true).encode(), encode_keyspace("tags", None)])
        .chain([encode_references(&[reference(77, 5, 20, 0, 2), reference(78, 0, 77, 5, 9)])])
        .collect();
    for round in 0..20_000 {
        let mut bytes = match random.below(4) {
            0 => random.bytes(300),
            _ => whole[random.below(whole.len() as u64) as usize].clone(),
        };
        for _ in 0..random.below(4) {
            if let Some(at) = (!bytes.is_empty()).then(|| random.below(bytes.len() as u64) as usize) {
                bytes[at] = random.below(256) as u8;
            }
        }
        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize + 8);
        let _ = (Begin::decode(&bytes), decode_keyspace(&bytes));
        if let Some(all) = decode_references(&bytes, INODE_NEXT, None) {
            assert_eq!(encode_references(&all), bytes, "seed {SEED:#x}, round {round}");
        }
        if let Some((keyspace, batch)) = decode_records(&Bytes::from(bytes.clone()), INODE_NEXT) {
            let again = Bytes::from(encode_records(keyspace, &batch));
            assert_eq!(&again[..], &bytes[..], "seed {SEED:#x}, round {round}");
        }
        let stream = begin(false).stream();
        let mut reader = StreamReader::new(stream);
        assert!(reader.next(&mut &bytes[..]).is_err(), "seed {SEED:#x}, round {round}");
        assert!(reader.position() == 0 && reader.last_frame().len() <= FRAME_HEADER_BYTES + (2 << 20));
    }
}

/// What is in `range`, block by block.
fn copy_one_by_one(stage: &mut Stage, mut cursor: Box<dyn Cursor>) -> Option<Bytes> {
    cursor.next().unwrap();
    while let Some((key, value)) = cursor.entry() {
        stage.take(key, Some(value.clone())).unwrap();
        if stage.is_full() {
            return Some([key, &[0]].concat().into());
        }
        cursor.next().unwrap();
    }
    None
}

#[test]
fn stretches_of_blocks_come_in_the_frames_in_which_single_ones_would() {
    const SEED: u64 = 0x5eed_0002;
    let mut random = Random(SEED);
    let store = ModelStore::new();
    let data = store.open_keyspace("data", KeyspaceKind::Block, None).unwrap();
    let mut block = 0;
    for inode in [1, 2, 3, 300] {
        for _ in 0..40 {
            let mut batch = Batch::new();
            let count = 1 + [random.below(4), random.below(60), random.below(500)][random.below(3) as usize];
            batch.put_blocks(
                data,
                inode_key(inode),
                block,
                vec![random.below(256) as u8; count as usize * 4096],
            );
            store.apply(batch, Durability::Buffered).unwrap();
            block += count + random.below(3);
        }
        block = random.below(1000);
    }
    let walk = |by_stretches: bool| {
        let (mut batches, mut range) = (Vec::new(), KeyRange::all());
        loop {
            let mut stage = Stage::new(data, true);
            let rest = if by_stretches {
                stage.copy(&store, &range, |key| key.starts_with(&inode_key(2))).unwrap()
            } else {
                copy_one_by_one(&mut stage, store.cursor(data, range.clone()).unwrap())
            };
            batches.push(stage.finish());
            let Some(start) = rest else { return batches };
            range.start = start;
        }
    };
    let by_stretches = walk(true);
    let mut without = Batch::new();
    without.delete_range(data, inode_key(2), inode_key(3));
    store.apply(without, Durability::Buffered).unwrap();
    assert!(by_stretches.len() > 10 && by_stretches == walk(false), "seed {SEED:#x}");
}

fn reference(inode: u64, first: u64, source: u64, source_first: u64, count: u64) -> BlockReference {
    BlockReference { inode, first, source, source_first, count }
}

#[test]
fn references_that_make_no_sense_are_refused() {
    let decode = |all: &[BlockReference], last| decode_references(&encode_references(all), INODE_NEXT, last);
    let sound = [
        reference(77, 5, 20, 0, 2),
        reference(77, 7, 20, 2, 1),
        reference(77, 90, 20, 85, 1),
        reference(78, 0, 77, 5, 9),
    ];
    assert_eq!(decode(&sound, None).as_deref(), Some(&sound[..]));
    assert_eq!(decode(&sound[1..], Some(sound[0])).as_deref(), Some(&sound[1..]));
    // Out of order, also behind what came in another frame.
    assert_eq!(decode(&sound, Some(sound[0])), None);
    assert_eq!(decode(&[sound[1], sound[0]], None), None);
    assert_eq!(decode(&[sound[3], sound[0]], None), None);
    for wrong in [
        reference(0, 0, 0, 0, 1),
        reference(20, 0, 20, 5, 1),
        reference(20, 0, 77, 0, 1),
        reference(77, 0, 0, 0, 1),
        reference(INODE_NEXT, 0, 77, 0, 1),
        reference(u64::MAX, 0, 77, 0, 1),
        reference(77, 0, 20, 0, 0),
        reference(77, u64::MAX, 20, 0, 1),
        reference(77, 0, 20, u64::MAX - 1, 2),
    ] {
        assert_eq!(decode(&[wrong], None), None, "{wrong:?}");
    }
    // A file has one source, and each block once.
    for second in [reference(77, 9, 21, 4, 1), reference(77, 9, 20, 5, 1), reference(77, 6, 20, 1, 1)] {
        assert_eq!(decode(&[sound[0], second], None), None, "{second:?}");
    }
    assert_eq!(decode(&[], None), None);
    assert_eq!(decode_references(&[0; 39], INODE_NEXT, None), None);
    let many: Vec<_> = (0..=REFERENCES_MAX as u64).map(|at| reference(77, 2 * at, 20, 2 * at, 1)).collect();
    assert_eq!(decode(&many, None), None);
    assert!(decode(&many[1..], None).is_some());
}

/// What comes of a stream from nothing with these frames between its first and its last one, and the blocks
/// of inode 77 that are there then.
fn received(has_clones: bool, frames: &[(FrameKind, Vec<u8>)]) -> Result<Vec<u64>, ReceiveError> {
    let store: Arc<dyn Store> = Arc::new(ModelStore::new());
    let clock = Arc::new(kvfs_store::clock::SystemClock::new());
    FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).unwrap();
    let fs = FileSystem::open(Arc::clone(&store), clock, MountOptions::default()).unwrap();
    let begin = Begin { has_clones, ..begin(false) };
    let mut framer = framer::Framer::new();
    let mut stream = framer.frame(FrameKind::Begin, &begin.encode());
    for (kind, payload) in frames {
        stream.extend(framer.frame(*kind, payload));
    }
    stream.extend(framer.end());
    let fs = Arc::new(fs);
    Receiver::new(&fs).receive(StreamReader::new(begin.stream()), &mut &stream[..], false)?;
    let mut cursor = store.cursor(fs.keyspaces.data, KeyRange::prefix(&inode_key(77))).unwrap();
    let mut blocks = Vec::new();
    cursor.next().unwrap();
    while let Some((key, _)) = cursor.entry() {
        blocks.push(u64::from_be_bytes(key[8..].try_into().unwrap()));
        cursor.next().unwrap();
    }
    Ok(blocks)
}

#[test]
fn reference_to_blocks_that_have_not_come_is_refused() {
    let source = |first| {
        let mut batch = Batch::new();
        batch.put_blocks(Keyspace(DATA), inode_key(20), first, vec![7; 2 * 4096]);
        (FrameKind::Records, encode_records(DATA, &batch))
    };
    let refer = |all: &[BlockReference]| (FrameKind::References, encode_references(all));
    let one = reference(77, 9, 20, 3, 2);
    assert_eq!(received(true, &[source(3), refer(&[one])]).unwrap(), [9, 10]);
    // Of a clone that comes in the same frame.
    let through = [reference(30, 3, 20, 3, 2), reference(77, 3, 30, 3, 2)];
    assert_eq!(received(true, &[source(3), refer(&through)]).unwrap(), [3, 4]);
    // Too late, too little, or not at all.
    for frames in [&[refer(&[one]), source(3)][..], &[source(4), refer(&[one])], &[refer(&[one])]] {
        assert!(matches!(received(true, frames), Err(ReceiveError::NoSource(20))));
    }
    let endless = reference(77, 0, 20, 3, u64::MAX - 3);
    assert!(matches!(received(true, &[source(3), refer(&[endless])]), Err(ReceiveError::NoSource(20))));
    // Two frames are in one order.
    let again = [source(3), refer(&[one]), refer(&[one])];
    assert!(matches!(received(true, &again), Err(ReceiveError::Stream(StreamError::Damaged { .. }))));
}

#[test]
fn what_concerns_clones_is_refused_in_a_stream_without_them() {
    let mut batch = Batch::new();
    batch.put(Keyspace(CLONES), inode_key(77), vec![0; 16]);
    let known = (FrameKind::Records, encode_records(CLONES, &batch));
    let nothing = (FrameKind::References, encode_references(&[reference(77, 0, 20, 0, 1)]));
    for frame in [&known, &nothing] {
        let refused = received(false, std::slice::from_ref(frame));
        assert!(matches!(refused, Err(ReceiveError::Stream(StreamError::Damaged { .. }))));
    }
    assert!(received(true, &[known]).is_ok());
}
