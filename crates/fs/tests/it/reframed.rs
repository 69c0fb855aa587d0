//! Frames that are made again of a snapshot's records.

use bytes::Bytes;
use kvfs_fs::transfer::{Begin, BlockReference, Frame, Reframer, StreamReader};
use kvfs_fs::{FsError, NodeId};
use kvfs_kv::KeyspaceOwner;
use kvfs_store::{BLOCK_BYTES, Keyspace, Op};

use crate::clones::clone;
use crate::driver::Driver;
use crate::setup::{Random, Setup};
use crate::transfer::{begin_of, change_keys, main_content, model, pass_on, snapshot_content, stream};
use crate::undo::{look, txn};

const ROOT: NodeId = NodeId::ROOT;

/// What a stream says, without its frames.
struct Records {
    begin: Begin,
    keyspaces: Vec<(String, Option<KeyspaceOwner>)>,
    changes: Vec<Change>,
}

enum Change {
    Record(u32, Op),
    Reference(BlockReference),
}

fn records(begin: Begin, mut reader: StreamReader, frames: &[Vec<u8>]) -> Records {
    let bytes = frames.concat();
    let mut source = &bytes[..];
    let (mut keyspaces, mut records) = (Vec::new(), Vec::new());
    while let Some(frame) = reader.next(&mut source).unwrap() {
        match frame {
            Frame::Keyspace { name, owner, .. } => keyspaces.push((name, owner)),
            Frame::Records { keyspace, batch, .. } => {
                records.extend(batch.ops().iter().map(|op| Change::Record(keyspace, op.clone())));
            }
            Frame::References { references, .. } => {
                records.extend(references.into_iter().map(Change::Reference));
            }
            _ => {}
        }
    }
    Records { begin, keyspaces, changes: records }
}

/// Feeds them with blocks cut anywhere, behind what `reader` has; content that is known comes as zeros.
fn reframe(all: &Records, reader: &StreamReader, random: &mut Random) -> Result<Vec<u8>, FsError> {
    let mut reframer = Reframer::behind(reader);
    let mut bytes = Vec::new();
    reframer.begin(&all.begin)?;
    for (name, owner) in &all.keyspaces {
        reframer.keyspace(name, *owner)?;
    }
    for change in &all.changes {
        let (keyspace, op) = match change {
            Change::Record(keyspace, op) => (keyspace, op),
            Change::Reference(reference) => {
                reframer.reference(*reference)?;
                continue;
            }
        };
        let Op::PutBlocks { prefix, mut first, data, compression, .. } = op.clone() else {
            reframer.record(*keyspace, op.clone())?;
            continue;
        };
        let mut rest = data;
        while !rest.is_empty() {
            let blocks = rest.len() / BLOCK_BYTES;
            let part = rest.split_to((random.below(blocks as u64) as usize + 1) * BLOCK_BYTES);
            let is_known = reframer.is_known(part.len() as u64);
            let data = if is_known { Bytes::from(vec![0; part.len()]) } else { part };
            let (count, prefix, keyspace) =
                ((data.len() / BLOCK_BYTES) as u64, prefix.clone(), Keyspace(*keyspace));
            reframer.record(keyspace.0, Op::PutBlocks { keyspace, prefix, first, data, compression })?;
            first += count;
            while let Some(frame) = reframer.next_frame() {
                bytes.extend_from_slice(&frame);
            }
        }
    }
    reframer.end()?;
    while let Some(frame) = reframer.next_frame() {
        bytes.extend_from_slice(&frame);
    }
    Ok(bytes)
}

fn workload(seed: u64) -> Setup {
    let mut driver = Driver::new(model(1), seed, 20_000);
    driver.run(150);
    change_keys(&driver.setup, &mut Random::new(seed));
    let setup = driver.setup;
    // Of several frames, and neighbours in one.
    for (name, blocks) in [(&b"large"[..], 700), (b"larger", 1500)] {
        let file = setup.dir(ROOT, std::str::from_utf8(name).unwrap());
        let file = setup.file(file, "file");
        setup.write_at(file, 0, &vec![seed as u8; blocks * BLOCK_BYTES]).unwrap();
        setup.write_at(file, 4_000_000_000, b"behind a hole").unwrap();
    }
    // Clones of both, of which blocks here and there are others.
    for number in 0..3 {
        let (from, to) = (["large", "larger"][number % 2], format!("clone {number}"));
        txn(&setup, |view| assert!(clone(view, (ROOT, from), (ROOT, &to)).is_ok()));
        let file = look(&setup, look(&setup, ROOT, &to), "file");
        for at in 1..20 {
            let offset = (at * at * 5 + number) * BLOCK_BYTES;
            setup.write_at(file, offset as u64, &vec![9; (at % 3 + 1) * BLOCK_BYTES]).unwrap();
        }
    }
    setup.store.create_snapshot("one").unwrap();
    setup
}

#[test]
fn more_references_than_a_frame_has_make_the_stream_again() {
    const REFERENCES: u64 = (1 << 14) + 100;
    let setup = model(1);
    let file = setup.file(ROOT, "file");
    for number in 0..REFERENCES {
        setup.write_at(file, 2 * number * BLOCK_BYTES as u64, &[number as u8; BLOCK_BYTES]).unwrap();
    }
    txn(&setup, |view| assert!(clone(view, (ROOT, "file"), (ROOT, "clone")).is_ok()));
    setup.store.create_snapshot("one").unwrap();
    let frames = stream(&setup, None, "one");
    let (begin, reader) = begin_of(&frames, &setup, None, "one");
    let all = records(begin.clone(), reader, &frames);
    let references = all.changes.iter().filter(|change| matches!(change, Change::Reference(_))).count();
    assert_eq!(references as u64, REFERENCES);
    let again = reframe(&all, &StreamReader::new(begin.stream()), &mut Random::new(1)).unwrap();
    assert!(again == frames.concat(), "the bytes differ");
    let mut target = model(2);
    pass_on(&setup, None, "one", &mut target, false).unwrap();
    assert!(snapshot_content(&setup, "one") == main_content(&target));
}

#[test]
fn records_of_a_snapshot_make_its_stream_again_however_they_are_cut() {
    for seed in 1..=6 {
        let setup = workload(seed);
        let mut random = Random::new(seed);
        let frames = stream(&setup, None, "one");
        let (begin, reader) = begin_of(&frames, &setup, None, "one");
        let all = records(begin.clone(), reader, &frames);
        let again = reframe(&all, &StreamReader::new(begin.stream()), &mut random).unwrap();
        assert!(again == frames.concat(), "seed {seed}: the bytes differ");
    }
}

#[test]
fn a_stream_made_again_goes_on_behind_what_is_known_without_its_content() {
    let setup = workload(7);
    let mut random = Random::new(7);
    let frames = stream(&setup, None, "one");
    let (begin, reader) = begin_of(&frames, &setup, None, "one");
    let all = records(begin.clone(), reader, &frames);
    let whole = frames.concat();
    assert!(frames.len() > 10, "{} frames", frames.len());
    for known in 0..frames.len() {
        let mut reader = StreamReader::new(begin.stream());
        for frame in &frames[..known] {
            reader.next(&mut &frame[..]).unwrap();
        }
        let rest = reframe(&all, &reader, &mut random).unwrap();
        assert!(rest == whole[reader.position() as usize..], "from frame {known} of {}", frames.len());
    }
}

#[test]
fn a_stream_is_not_made_again_behind_what_is_no_beginning_of_it() {
    let (one, other, shorter) = (workload(8), workload(9), model(1));
    shorter.store.create_snapshot("one").unwrap();
    let frames = stream(&one, None, "one");
    let (_, mut reader) = begin_of(&frames, &one, None, "one");
    for frame in &frames[..frames.len() - 1] {
        reader.next(&mut &frame[..]).unwrap();
    }
    for setup in [&other, &shorter] {
        let frames = stream(setup, None, "one");
        let (begin, own) = begin_of(&frames, setup, None, "one");
        let made = reframe(&records(begin, own, &frames), &reader, &mut Random::new(8));
        assert!(matches!(made, Err(FsError::Invalid(_))), "{:?}", made.map(|bytes| bytes.len()));
    }
}
