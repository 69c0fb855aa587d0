//! One change of the live set of runs, and its bytes.
//!
//! An edit is a tag and its fields in the order of the match in [`Edit::encode`]: numbers as
//! varints, byte strings with their length in front.

use std::time::Duration;

use bytes::Bytes;
use kvfs_store::{Compression, Isolation, KeyspaceKind, Seqno, Tier, TxnId};

use super::state::CheckpointState;
use crate::format::{
    DecodeError, Decoder, Extent, Member, PieceDesc, PieceId, SECTOR_BYTES, Sink, ZoneId, ZoneUse,
};
use crate::journal::Lsn;
use crate::space::WrittenToFast;

/// Number of a run, unique in the store for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RunId(pub u64);

/// One change. The edits of one commit take effect together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Edit {
    /// A keyspace exists from now on; `id` and `name` are new.
    AddKeyspace { id: u32, name: String, kind: KeyspaceKind },
    /// An empty run of `keyspace`; greater `age` is newer, among equals the greater id.
    AddRun { keyspace: u32, run: RunId, age: Seqno },
    /// `piece` belongs to `run`; its keys meet no other piece of the run.
    AddPiece { keyspace: u32, run: RunId, piece: PieceDesc },
    /// Keys of `run` below `lower_bound` count no longer; pieces that end before it are gone.
    TrimRun { keyspace: u32, run: RunId, lower_bound: Bytes },
    /// `run` is gone, with its pieces.
    DropRun { keyspace: u32, run: RunId },
    /// `piece` of `run` is gone; what still counts of it is in others of the same commit.
    DropPiece { keyspace: u32, run: RunId, piece: PieceId },
    /// `inputs`, newest first, are being merged into `output`: what they hold from their bounds on is still
    /// to come. Replaces what was recorded of `output`, and is over with the last of the inputs, or when
    /// there is none.
    RecordMerge { keyspace: u32, output: RunId, inputs: Vec<RunId> },
    /// Recovery begins at `lsn`; every record at or below `seqno` is in runs.
    JournalTail { lsn: Lsn, seqno: Seqno },
    /// Ids of runs and pieces below this are taken.
    NextId(u64),
    /// A run of `keyspace` that waits for the commit of `txn`, without pieces yet. Its seqnos, and `age`,
    /// count from the commit's.
    PrepareRun { txn: TxnId, keyspace: u32, run: RunId, age: Seqno },
    /// The prepared runs of `txn` are runs from now on, and what they count begins behind `base`.
    AdoptRuns { txn: TxnId, base: Seqno },
    /// The prepared runs of `txn` are gone, and its checkpoint.
    DropPrepared { txn: TxnId },
    /// As [`Edit::AddRun`], for a run that was adopted; `age` is the run's, `base` has been added to it.
    AddAdopted { keyspace: u32, run: RunId, age: Seqno, base: Seqno },
    /// No transaction of a later opening has an id below this.
    NextTxn(u64),
    /// The transaction was committed, up to this seqno.
    Committed { txn: TxnId, seqno: Seqno },
    /// The position `seqno` has a name from now on; `created` is in nanoseconds since 1970.
    AddSnapshot { name: String, seqno: Seqno, created: u64 },
    /// The name is gone.
    DropSnapshot { name: String },
    /// The states before and after the transaction are kept: it took the seqnos behind `before` up to
    /// `after`. `committed` is in nanoseconds since 1970.
    KeepUndo { txn: TxnId, before: Seqno, after: Seqno, committed: u64, note: Bytes },
    /// They are kept no more.
    DropUndo { after: Seqno },
    /// The prepared runs of `txn`, as they are with the other edits of the commit, are a checkpoint: what
    /// there was before is replaced.
    Checkpoint { txn: TxnId, checkpoint: CheckpointState },
    /// Values of `keyspace` are to be stored so from now on.
    SetCompression { keyspace: u32, compression: Compression },
    /// The store has this device from now on; its zones lie behind those of all others.
    AddMember(Member),
    /// Whether anything new goes to the device `id`.
    FillMember { id: u32, takes_new: bool },
    /// The device `id`, to which nothing new goes, holds nothing, and is gone.
    DropMember { id: u32 },
    /// By which policy blocks of files are placed that have no wish.
    SetPlacement { name: String },
    /// How much was written to fast devices.
    NoteWritten(WrittenToFast),
}

const ADD_KEYSPACE: u8 = 1;
const ADD_RUN: u8 = 2;
const ADD_PIECE: u8 = 3;
const TRIM_RUN: u8 = 4;
const DROP_RUN: u8 = 5;
const JOURNAL_TAIL: u8 = 6;
const NEXT_ID: u8 = 7;
const PREPARE_RUN: u8 = 8;
const NEXT_TXN: u8 = 9;
const COMMITTED: u8 = 10;
const ADD_SNAPSHOT: u8 = 11;
const DROP_SNAPSHOT: u8 = 12;
const ADOPT_RUNS: u8 = 13;
const DROP_PREPARED: u8 = 14;
const ADD_ADOPTED: u8 = 15;
const KEEP_UNDO: u8 = 20;
const DROP_UNDO: u8 = 21;
const CHECKPOINT: u8 = 24;
const SET_COMPRESSION: u8 = 34;
const DROP_PIECE: u8 = 35;
const RECORD_MERGE: u8 = 36;
const ADD_MEMBER: u8 = 37;
const FILL_MEMBER: u8 = 38;
const DROP_MEMBER: u8 = 39;
const SET_PLACEMENT: u8 = 40;
const NOTE_WRITTEN: u8 = 41;

const SNAPSHOT_ISOLATION: u8 = 1;
const SERIALIZABLE: u8 = 2;

const KIND_TUPLE: u8 = 1;
const KIND_BLOCK: u8 = 2;

impl Edit {
    /// Appends the edit to `sink`.
    pub(crate) fn encode(&self, sink: &mut impl Sink) {
        match self {
            Self::AddKeyspace { id, name, kind } => {
                sink.put_u8(ADD_KEYSPACE);
                sink.put_varint((*id).into());
                sink.put_bytes(name.as_bytes());
                sink.put_u8(match kind {
                    KeyspaceKind::Tuple => KIND_TUPLE,
                    KeyspaceKind::Block => KIND_BLOCK,
                });
            }
            Self::AddRun { keyspace, run, age } => {
                put_run(sink, ADD_RUN, *keyspace, *run);
                sink.put_varint(*age);
            }
            Self::AddPiece { keyspace, run, piece } => encode_add_piece(*keyspace, *run, piece, sink),
            Self::TrimRun { keyspace, run, lower_bound } => {
                put_run(sink, TRIM_RUN, *keyspace, *run);
                sink.put_bytes(lower_bound);
            }
            Self::DropRun { keyspace, run } => put_run(sink, DROP_RUN, *keyspace, *run),
            Self::DropPiece { keyspace, run, piece } => {
                put_run(sink, DROP_PIECE, *keyspace, *run);
                sink.put_varint(piece.0);
            }
            Self::RecordMerge { keyspace, output, inputs } => encode_merge(*keyspace, *output, inputs, sink),
            Self::JournalTail { lsn, seqno } => {
                sink.put_u8(JOURNAL_TAIL);
                sink.put_varint(lsn.0);
                sink.put_varint(*seqno);
            }
            Self::NextId(id) => put_number(sink, NEXT_ID, *id),
            Self::PrepareRun { txn, keyspace, run, age } => {
                put_run(sink, PREPARE_RUN, *keyspace, *run);
                sink.put_varint(txn.0);
                sink.put_varint(*age);
            }
            Self::AdoptRuns { txn, base } => {
                sink.put_u8(ADOPT_RUNS);
                sink.put_varint(txn.0);
                sink.put_varint(*base);
            }
            Self::DropPrepared { txn } => put_number(sink, DROP_PREPARED, txn.0),
            Self::AddAdopted { keyspace, run, age, base } => {
                put_run(sink, ADD_ADOPTED, *keyspace, *run);
                sink.put_varint(*age);
                sink.put_varint(*base);
            }
            Self::NextTxn(txn) => put_number(sink, NEXT_TXN, *txn),
            Self::Committed { txn, seqno } => {
                sink.put_u8(COMMITTED);
                sink.put_varint(txn.0);
                sink.put_varint(*seqno);
            }
            Self::AddSnapshot { name, seqno, created } => {
                sink.put_u8(ADD_SNAPSHOT);
                sink.put_bytes(name.as_bytes());
                sink.put_varint(*seqno);
                sink.put_varint(*created);
            }
            Self::DropSnapshot { name } => put_name(sink, DROP_SNAPSHOT, name),
            Self::KeepUndo { txn, before, after, committed, note } => {
                sink.put_u8(KEEP_UNDO);
                for number in [txn.0, *before, *after, *committed] {
                    sink.put_varint(number);
                }
                sink.put_bytes(note);
            }
            Self::DropUndo { after } => put_number(sink, DROP_UNDO, *after),
            Self::Checkpoint { txn, checkpoint } => {
                sink.put_u8(CHECKPOINT);
                sink.put_varint(txn.0);
                encode_checkpoint(checkpoint, sink);
            }
            Self::SetCompression { keyspace, compression } => {
                encode_compression(*keyspace, *compression, sink);
            }
            Self::AddMember(member) => encode_member(member, sink),
            Self::FillMember { id, takes_new } => {
                put_number(sink, FILL_MEMBER, (*id).into());
                sink.put_u8((*takes_new).into());
            }
            Self::DropMember { id } => put_number(sink, DROP_MEMBER, (*id).into()),
            Self::SetPlacement { name } => put_name(sink, SET_PLACEMENT, name),
            Self::NoteWritten(written) => encode_written(written, sink),
        }
    }

    /// Reads one edit.
    ///
    /// # Errors
    /// Bytes that no [`Edit::encode`] wrote.
    pub(crate) fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let tag = decoder.u8()?;
        Ok(match tag {
            ADD_KEYSPACE => decode_keyspace(decoder)?,
            ADD_RUN => {
                let (keyspace, run) = run_of(decoder)?;
                Self::AddRun { keyspace, run, age: decoder.varint()? }
            }
            ADD_PIECE => {
                let (keyspace, run) = run_of(decoder)?;
                Self::AddPiece { keyspace, run, piece: decode_piece(decoder)? }
            }
            TRIM_RUN => {
                let (keyspace, run) = run_of(decoder)?;
                Self::TrimRun { keyspace, run, lower_bound: decoder.bytes_owned()? }
            }
            DROP_RUN => {
                let (keyspace, run) = run_of(decoder)?;
                Self::DropRun { keyspace, run }
            }
            JOURNAL_TAIL => Self::JournalTail { lsn: Lsn(decoder.varint()?), seqno: decoder.varint()? },
            NEXT_ID => Self::NextId(decoder.varint()?),
            PREPARE_RUN => {
                let (keyspace, run) = run_of(decoder)?;
                Self::PrepareRun { keyspace, run, txn: TxnId(decoder.varint()?), age: decoder.varint()? }
            }
            ADOPT_RUNS => Self::AdoptRuns { txn: TxnId(decoder.varint()?), base: decoder.varint()? },
            DROP_PREPARED => Self::DropPrepared { txn: TxnId(decoder.varint()?) },
            ADD_ADOPTED => {
                let (keyspace, run) = run_of(decoder)?;
                Self::AddAdopted { keyspace, run, age: decoder.varint()?, base: decoder.varint()? }
            }
            NEXT_TXN => Self::NextTxn(decoder.varint()?),
            COMMITTED => Self::Committed { txn: TxnId(decoder.varint()?), seqno: decoder.varint()? },
            ADD_SNAPSHOT => Self::AddSnapshot {
                name: decode_name(decoder)?,
                seqno: decoder.varint()?,
                created: decoder.varint()?,
            },
            DROP_SNAPSHOT => Self::DropSnapshot { name: decode_name(decoder)? },
            KEEP_UNDO => Self::KeepUndo {
                txn: TxnId(decoder.varint()?),
                before: decoder.varint()?,
                after: decoder.varint()?,
                committed: decoder.varint()?,
                note: decoder.bytes_owned()?,
            },
            DROP_UNDO => Self::DropUndo { after: decoder.varint()? },
            CHECKPOINT => {
                let txn = TxnId(decoder.varint()?);
                Self::Checkpoint { txn, checkpoint: decode_checkpoint(decoder)? }
            }
            SET_COMPRESSION => decode_compression(decoder)?,
            DROP_PIECE => {
                let (keyspace, run) = run_of(decoder)?;
                Self::DropPiece { keyspace, run, piece: PieceId(decoder.varint()?) }
            }
            RECORD_MERGE => decode_merge(decoder)?,
            ADD_MEMBER => decode_member(decoder)?,
            FILL_MEMBER => Self::FillMember { id: decoder.varint_u32()?, takes_new: decoder.u8()? != 0 },
            DROP_MEMBER => Self::DropMember { id: decoder.varint_u32()? },
            SET_PLACEMENT => Self::SetPlacement { name: decode_name(decoder)? },
            NOTE_WRITTEN => Self::NoteWritten(decode_written(decoder)?),
            _ => return Err(DecodeError("an edit has an unknown tag")),
        })
    }
}

/// As [`Edit::encode`] of [`Edit::AddPiece`], without owning the piece.
pub(super) fn encode_add_piece(keyspace: u32, run: RunId, piece: &PieceDesc, sink: &mut impl Sink) {
    put_run(sink, ADD_PIECE, keyspace, run);
    encode_piece(piece, sink);
}

fn encode_checkpoint(checkpoint: &CheckpointState, sink: &mut impl Sink) {
    sink.put_varint(checkpoint.snapshot);
    sink.put_u8(match checkpoint.isolation {
        Isolation::Snapshot => SNAPSHOT_ISOLATION,
        Isolation::Serializable => SERIALIZABLE,
    });
    sink.put_varint(checkpoint.created);
    sink.put_varint(checkpoint.operations);
    sink.put_varint(checkpoint.batches);
    sink.put_varint(checkpoint.bytes_written);
    sink.put_varint(checkpoint.bytes_spilled);
    sink.put_bytes(&checkpoint.owner);
}

fn decode_checkpoint(decoder: &mut Decoder<'_>) -> Result<CheckpointState, DecodeError> {
    Ok(CheckpointState {
        snapshot: decoder.varint()?,
        isolation: match decoder.u8()? {
            SNAPSHOT_ISOLATION => Isolation::Snapshot,
            SERIALIZABLE => Isolation::Serializable,
            _ => return Err(DecodeError("a checkpoint has an unknown isolation")),
        },
        created: decoder.varint()?,
        operations: decoder.varint()?,
        batches: decoder.varint()?,
        bytes_written: decoder.varint()?,
        bytes_spilled: decoder.varint()?,
        owner: decoder.bytes_owned()?,
    })
}

fn encode_merge(keyspace: u32, output: RunId, inputs: &[RunId], sink: &mut impl Sink) {
    put_run(sink, RECORD_MERGE, keyspace, output);
    sink.put_varint(inputs.len() as u64);
    for input in inputs {
        sink.put_varint(input.0);
    }
}

fn decode_merge(decoder: &mut Decoder<'_>) -> Result<Edit, DecodeError> {
    let (keyspace, output) = run_of(decoder)?;
    let input = |decoder: &mut Decoder<'_>| decoder.varint().map(RunId);
    Ok(Edit::RecordMerge { keyspace, output, inputs: decode_list(decoder, input)? })
}

fn encode_member(member: &Member, sink: &mut impl Sink) {
    sink.put_u8(ADD_MEMBER);
    for number in [member.id, member.first_zone.0, member.zones] {
        sink.put_varint(number.into());
    }
    sink.put_u8(member.tier.code());
    sink.put_bytes(&member.uuid);
}

fn decode_member(decoder: &mut Decoder<'_>) -> Result<Edit, DecodeError> {
    let (id, first_zone, zones) =
        (decoder.varint_u32()?, ZoneId(decoder.varint_u32()?), decoder.varint_u32()?);
    let tier = Tier::from_code(decoder.u8()?).ok_or(DecodeError("a device is of an unknown tier"))?;
    let uuid = decoder.bytes()?.try_into().map_err(|_| DecodeError("a device has no identity"))?;
    Ok(Edit::AddMember(Member { id, uuid, tier, first_zone, zones }))
}

fn number(decoder: &mut Decoder<'_>) -> Result<u64, DecodeError> {
    decoder.varint()
}

fn encode_written(written: &WrittenToFast, sink: &mut impl Sink) {
    let WrittenToFast { level, at, hours } = written;
    sink.put_u8(NOTE_WRITTEN);
    sink.put_varint(*level);
    sink.put_varint(at.as_nanos() as u64);
    sink.put_varint(hours.len() as u64);
    for bytes in hours {
        sink.put_varint(*bytes);
    }
}

fn decode_written(decoder: &mut Decoder<'_>) -> Result<WrittenToFast, DecodeError> {
    Ok(WrittenToFast {
        level: decoder.varint()?,
        at: Duration::from_nanos(decoder.varint()?),
        hours: decode_list(decoder, number)?,
    })
}

fn encode_compression(keyspace: u32, compression: Compression, sink: &mut impl Sink) {
    sink.put_u8(SET_COMPRESSION);
    sink.put_varint(keyspace.into());
    sink.put_u8(compression.code());
}

fn decode_compression(decoder: &mut Decoder<'_>) -> Result<Edit, DecodeError> {
    let keyspace = decoder.varint_u32()?;
    let compression = Compression::from_code(decoder.u8()?);
    let compression = compression.ok_or(DecodeError("a keyspace has an unknown compression"))?;
    Ok(Edit::SetCompression { keyspace, compression })
}

fn put_name(sink: &mut impl Sink, tag: u8, name: &str) {
    sink.put_u8(tag);
    sink.put_bytes(name.as_bytes());
}

fn put_number(sink: &mut impl Sink, tag: u8, number: u64) {
    sink.put_u8(tag);
    sink.put_varint(number);
}

fn put_run(sink: &mut impl Sink, tag: u8, keyspace: u32, run: RunId) {
    sink.put_u8(tag);
    sink.put_varint(keyspace.into());
    sink.put_varint(run.0);
}

fn run_of(decoder: &mut Decoder<'_>) -> Result<(u32, RunId), DecodeError> {
    Ok((decoder.varint_u32()?, RunId(decoder.varint()?)))
}

fn decode_keyspace(decoder: &mut Decoder<'_>) -> Result<Edit, DecodeError> {
    let id = decoder.varint_u32()?;
    let name = decode_name(decoder)?;
    let kind = match decoder.u8()? {
        KIND_TUPLE => KeyspaceKind::Tuple,
        KIND_BLOCK => KeyspaceKind::Block,
        _ => return Err(DecodeError("a keyspace has an unknown kind")),
    };
    Ok(Edit::AddKeyspace { id, name, kind })
}

fn decode_name(decoder: &mut Decoder<'_>) -> Result<String, DecodeError> {
    let name = String::from_utf8(decoder.bytes()?.to_vec());
    name.map_err(|_| DecodeError("a name is not UTF-8"))
}

fn encode_piece(piece: &PieceDesc, sink: &mut impl Sink) {
    sink.put_varint(piece.id.0);
    sink.put_bytes(&piece.first_key);
    sink.put_bytes(&piece.last_key);
    sink.put_varint(piece.seqno_min);
    sink.put_varint(piece.seqno_max);
    sink.put_varint(piece.data_bytes);
    sink.put_varint(piece.records);
    sink.put_varint(piece.tombstones);
    sink.put_varint(piece.meta_len.into());
    sink.put_u32(piece.meta_crc);
    sink.put_varint(piece.meta.len() as u64);
    for extent in &piece.meta {
        sink.put_varint(extent.addr / SECTOR_BYTES);
        sink.put_varint(u64::from(extent.len) / SECTOR_BYTES);
    }
    sink.put_varint(piece.zones.len() as u64);
    for zone_use in &piece.zones {
        sink.put_varint(zone_use.zone.0.into());
        sink.put_varint(zone_use.bytes);
        sink.put_varint(zone_use.pieces.into());
        sink.put_varint(zone_use.end.into());
    }
}

fn decode_piece(decoder: &mut Decoder<'_>) -> Result<PieceDesc, DecodeError> {
    Ok(PieceDesc {
        id: PieceId(decoder.varint()?),
        first_key: decoder.bytes_owned()?,
        last_key: decoder.bytes_owned()?,
        seqno_min: decoder.varint()?,
        seqno_max: decoder.varint()?,
        data_bytes: decoder.varint()?,
        records: decoder.varint()?,
        tombstones: decoder.varint()?,
        meta_len: decoder.varint_u32()?,
        meta_crc: decoder.u32()?,
        meta: decode_list(decoder, decode_extent)?,
        zones: decode_list(decoder, decode_use)?,
    })
}

fn decode_list<T>(
    decoder: &mut Decoder<'_>,
    item: impl Fn(&mut Decoder<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let len = decoder.varint()?;
    // An absurd length fails at the first missing item, not at an allocation.
    (0..len).map(|_| item(decoder)).collect()
}

fn decode_extent(decoder: &mut Decoder<'_>) -> Result<Extent, DecodeError> {
    let absurd = DecodeError("an extent is absurd");
    let addr = decoder.varint()?.checked_mul(SECTOR_BYTES).ok_or(absurd)?;
    let len = decoder.varint_u32()?.checked_mul(SECTOR_BYTES as u32).ok_or(absurd)?;
    Ok(Extent { addr, len })
}

fn decode_use(decoder: &mut Decoder<'_>) -> Result<ZoneUse, DecodeError> {
    Ok(ZoneUse {
        zone: ZoneId(decoder.varint_u32()?),
        bytes: decoder.varint()?,
        pieces: decoder.varint_u32()?,
        end: decoder.varint_u32()?,
    })
}
