//! Writes a corpus of valid beginnings into `corpus/`: fuzzers find the rest from there.

use std::path::Path;
use std::{fs, io};

use kvfs_fuse::abi::{GetattrIn, MkdirIn, Opcode, WriteIn};
use kvfs_fuzz::input::part;
use kvfs_fuzz::{messages, pieces, streams};
use kvfs_kvdb::format::RecordKind;
use kvfs_kvdb::format::{
    Extent, SUPERBLOCK_BYTES, Superblock, TupleBlockBuilder, TupleEntry, ZoneId, encode_tombstones,
    encode_tuples,
};
use zerocopy::IntoBytes;

fn superblock() -> Vec<u8> {
    let superblock = Superblock {
        uuid: [7; 16],
        generation: 3,
        format_version: kvfs_kvdb::FORMAT_VERSION,
        zone_bytes: 8 << 20,
        capacity_bytes: 1 << 30,
        journal_first: ZoneId(1),
        journal_zones: 8,
        epoch: 2,
        manifest_zones: vec![ZoneId(9), ZoneId(10)],
        manifest_seq: 5,
        has_stamps: true,
    };
    let bytes: [u8; SUPERBLOCK_BYTES] = superblock.encode();
    bytes.to_vec()
}

fn tuple_block() -> Vec<u8> {
    let mut builder = TupleBlockBuilder::default();
    for index in 0..40_u64 {
        let key = format!("key{index:03}");
        builder.add(key.as_bytes(), 1000 - index, RecordKind::Put, b"value");
    }
    [&[pieces::BLOCK][..], builder.finish().0].concat()
}

fn tuple_index() -> Vec<u8> {
    let entry = TupleEntry {
        first_key: (&b"key000"[..]).into(),
        last_key: (&b"key039"[..]).into(),
        extent: Extent { addr: 8 << 20, len: 4096 },
        bytes: 900,
        records: 40,
        crc: 1,
        flags: 0,
        seqno_min: 1,
        seqno_max: 1000,
        shift: 0,
        packed: None,
    };
    let mut bytes = vec![pieces::TUPLES];
    encode_tuples(&mut bytes, &[entry]);
    bytes
}

fn tombstones() -> Vec<u8> {
    let mut bytes = vec![pieces::TOMBSTONES];
    encode_tombstones(&mut bytes, 2, [(&b"a"[..], &b"b"[..], 7), (b"ab", b"c", 5)].into_iter());
    bytes
}

fn requests() -> Vec<u8> {
    let mkdir = [&[1][..], MkdirIn { mode: 0o755, umask: 0 }.as_bytes(), b"dir\0"].concat();
    let create = [&[1][..], &[0; 16], b"file\0"].concat();
    let write = WriteIn { offset: 0, size: 5, ..WriteIn::default() };
    let write = [&[3][..], write.as_bytes(), b"hello"].concat();
    let getattr = [&[2][..], GetattrIn::default().as_bytes()].concat();
    [
        part(Opcode::Mkdir as u8, &mkdir),
        part(Opcode::Create as u8, &create),
        part(Opcode::Write as u8, &write),
        part(Opcode::Getattr as u8, &getattr),
        part(Opcode::Lookup as u8, &[&[1][..], b"dir\0"].concat()),
        part(Opcode::Unlink as u8, &[&[1][..], b"file\0"].concat()),
    ]
    .concat()
}

/// Messages of protobuf by hand: field 1 of type string or bytes.
fn calls() -> Vec<u8> {
    let keyspace = b"\x0a\x04keys";
    let key = [&keyspace[..], b"\x12\x01k\x1a\x01v"].concat();
    (0..messages::METHODS.len() as u8).map(|method| part(method, &key)).collect::<Vec<_>>().concat()
}

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let words = |line: &str| line.replace(' ', "\n").into_bytes();
    let seeds = [
        ("superblock", "valid", superblock()),
        ("journal", "record", kvfs_kvdb::fuzzing::journal_payload()),
        ("manifest", "edits", kvfs_kvdb::fuzzing::manifest_edits()),
        ("pieces", "block", tuple_block()),
        ("pieces", "index", tuple_index()),
        ("pieces", "tombstones", tombstones()),
        ("streams", "whole", streams::seed()),
        ("requests", "session", requests()),
        ("messages", "calls", calls()),
        (
            "arguments",
            "mount",
            words("mount --create --memory 256M -o ro,noatime,commit=5,io_limit=1G store dir"),
        ),
        ("arguments", "mkfs", words("mkfs --size 20G --device /dev/sdb1 store")),
        (
            "arguments",
            "run",
            words("txn run --isolation serializable --retry 3 --timeout 5m -- make install"),
        ),
        ("arguments", "kv", words("kv scan -s dir tags --from a --to b --json")),
        ("arguments", "quota", words("quota set --project 42 --bytes-hard 20G --inodes-soft 10")),
    ];
    for (target, name, bytes) in seeds {
        let dir = corpus.join(target);
        fs::create_dir_all(&dir)?;
        fs::write(dir.join(name), bytes)?;
    }
    Ok(())
}
