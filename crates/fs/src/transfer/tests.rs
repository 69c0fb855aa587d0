use bytes::Bytes;
use kvfs_kv::KeyspaceOwner;
use kvfs_store::model::ModelStore;
use kvfs_store::{Batch, Compression, Cursor, Durability, KeyRange, Keyspace, KeyspaceKind, Op, Read, Store};

use super::changes::Stage;
use super::frame::{FrameHeader, FrameKind, decode_keyspace, encode_frame, encode_keyspace};
use super::record::{DATA, META, USERS, XATTR, decode_records, encode_records};
use super::*;
use crate::schema::{Header, Placement, encode_row, inode_key, keyspace_records, superblock_key};
use crate::{FileType, Timestamp};

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
        _ => {
            batch.put(handle, "song", "value");
            batch.delete(handle, "gone");
        }
    }
    batch
}

#[test]
fn prologues_round_trip_and_others_are_named() {
    let prologue = Prologue { stream: begin(true).stream(), offset: 77, bytes_expected: 1 << 40 };
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
    for keyspace in [META, DATA, XATTR, USERS, USERS + 9] {
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
    let whole: Vec<Vec<u8>> = [META, DATA, XATTR, USERS]
        .into_iter()
        .map(|keyspace| encode_records(keyspace, &batch(keyspace)))
        .chain([begin(true).encode(), encode_keyspace("tags", None)])
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
        stage.take(key, Some(value.clone()));
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
