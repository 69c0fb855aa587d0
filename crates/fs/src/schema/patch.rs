//! Merge operands of rows: blind, field-wise changes of an inode's row.
//!
//! An operand is a bitmap of the fields it touches (u32), the inode it is meant for (u64), and the fields'
//! values in the order of their bits. It changes nothing when the row is absent or belongs to another
//! inode: so a lazily written access time can't resurrect or hit a stranger.
//!
//! Commuting changes (additions, maxima) may come from several writers at once; others come from the
//! holder of the exclusive name of their field.

use bytes::Bytes;
use kvfs_store::{Compression, MergeFunction, StoreError, Touch};

use super::row::{Header, Row, RowFlags, encode_row, row_compression};
use crate::{INLINE_LEN_LIMIT, Timestamp};

/// Change of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimePatch {
    /// To this.
    Set(Timestamp),
    /// To this, unless it is later already.
    Max(Timestamp),
}

impl TimePatch {
    fn apply(self, time: &mut Timestamp) {
        *time = match self {
            Self::Set(new) => new,
            Self::Max(new) => new.max(*time),
        };
    }

    /// What it sets or raises to.
    pub(crate) fn time(self) -> Timestamp {
        let (Self::Set(time) | Self::Max(time)) = self;
        time
    }

    fn commutes(self) -> bool {
        matches!(self, Self::Max(_))
    }

    fn then(self, newer: Self) -> Self {
        match (self, newer) {
            (_, Self::Set(_)) => newer,
            (Self::Set(a), Self::Max(b)) => Self::Set(a.max(b)),
            (Self::Max(a), Self::Max(b)) => Self::Max(a.max(b)),
        }
    }
}

/// Change of a 64-bit number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NumberPatch {
    Set(u64),
    Max(u64),
    Add(i64),
}

impl NumberPatch {
    fn apply(self, number: &mut u64) {
        *number = match self {
            Self::Set(new) => new,
            Self::Max(new) => new.max(*number),
            // Wrapping, so that changes may be folded in any grouping; a sound row never wraps.
            Self::Add(delta) => number.wrapping_add_signed(delta),
        };
    }

    /// Additions do among themselves, and maxima; they never meet in one field of one kind of file.
    fn commutes(self) -> bool {
        !matches!(self, Self::Set(_))
    }

    fn then(self, newer: Self) -> Option<Self> {
        Some(match (self, newer) {
            (_, Self::Set(_)) => newer,
            (Self::Set(mut number), change) => {
                change.apply(&mut number);
                Self::Set(number)
            }
            (Self::Max(a), Self::Max(b)) => Self::Max(a.max(b)),
            (Self::Add(a), Self::Add(b)) => Self::Add(a.wrapping_add(b)),
            _ => return None,
        })
    }
}

/// `(value & and) | or`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BitsPatch {
    pub(crate) and: u32,
    pub(crate) or: u32,
}

impl BitsPatch {
    pub(crate) fn set(value: u32) -> Self {
        Self { and: 0, or: value }
    }

    pub(crate) fn apply(self, value: u32) -> u32 {
        (value & self.and) | self.or
    }

    pub(crate) fn then(self, newer: Self) -> Self {
        Self { and: self.and & newer.and, or: (self.or & newer.and) | newer.or }
    }
}

/// Change of inline content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ContentPatch {
    /// All of it.
    Replace(Bytes),
    /// From `offset` on; a gap is filled with zeros.
    Write { offset: u32, data: Bytes },
    /// Cut off, or extended by zeros.
    Resize(u32),
}

impl ContentPatch {
    pub(crate) fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Replace(data) => {
                content.clear();
                content.extend_from_slice(data);
            }
            Self::Write { offset, data } => {
                let (start, end) = (*offset as usize, *offset as usize + data.len());
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[start..end].copy_from_slice(data);
            }
            Self::Resize(len) => content.resize(*len as usize, 0),
        }
    }

    fn then(&self, newer: &Self) -> Option<Self> {
        match (self, newer) {
            (_, Self::Replace(_)) => Some(newer.clone()),
            (Self::Replace(data), change) => {
                let mut content = data.to_vec();
                change.apply(&mut content);
                Some(Self::Replace(content.into()))
            }
            (Self::Write { offset, data }, Self::Write { offset: offset_2, data: data_2 }) => {
                // Appending writers: one operand grows instead of a chain of small ones.
                let touches = *offset_2 >= *offset && *offset_2 as usize <= *offset as usize + data.len();
                touches.then(|| {
                    let mut joined = data.to_vec();
                    Self::Write { offset: offset_2 - offset, data: data_2.clone() }.apply(&mut joined);
                    Self::Write { offset: *offset, data: joined.into() }
                })
            }
            _ => None,
        }
    }
}

/// A change of a row, field by field. Empty by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RowPatch {
    pub(crate) mode: Option<BitsPatch>,
    pub(crate) flags: Option<BitsPatch>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) nlink_add: Option<i32>,
    pub(crate) size: Option<NumberPatch>,
    pub(crate) blocks: Option<NumberPatch>,
    pub(crate) parent: Option<u64>,
    pub(crate) atime: Option<TimePatch>,
    pub(crate) mtime: Option<TimePatch>,
    pub(crate) ctime: Option<TimePatch>,
    pub(crate) content: Option<ContentPatch>,
    /// What it changes is counted as the owner's: it does not go together with a change of owner or project.
    pub(crate) is_counted: bool,
    pub(crate) project: Option<u32>,
}

const MODE: u32 = 1;
const FLAGS: u32 = 1 << 1;
const UID: u32 = 1 << 2;
const GID: u32 = 1 << 3;
const NLINK: u32 = 1 << 4;
const SIZE: u32 = 1 << 5;
const BLOCKS: u32 = 1 << 6;
const PARENT: u32 = 1 << 7;
const ATIME: u32 = 1 << 8;
const MTIME: u32 = 1 << 9;
const CTIME: u32 = 1 << 10;
const CONTENT: u32 = 1 << 11;
const COUNTED: u32 = 1 << 12;
const PROJECT: u32 = 1 << 13;
const KNOWN: u32 = (1 << 14) - 1;

/// The content of a small file.
pub(crate) const TOUCH_CONTENT: Touch = Touch { exclusive: CONTENT as u64, increment: 0 };
/// The place of a directory in the tree.
pub(crate) const TOUCH_PARENT: Touch = Touch { exclusive: PARENT as u64, increment: 0 };

/// What changes with the entries of a directory.
pub(crate) const TOUCH_COUNTERS: u64 = (NLINK | SIZE | MTIME | CTIME) as u64;

impl RowPatch {
    /// Content or entries changed now.
    pub(crate) fn modified(now: Timestamp) -> Self {
        Self { mtime: Some(TimePatch::Max(now)), ctime: Some(TimePatch::Max(now)), ..Self::default() }
    }

    /// Attributes changed now.
    pub(crate) fn changed(now: Timestamp) -> Self {
        Self { ctime: Some(TimePatch::Max(now)), ..Self::default() }
    }

    /// The same, setting what times it raises.
    #[must_use]
    pub(crate) fn setting_times(mut self) -> Self {
        for change in [&mut self.mtime, &mut self.ctime].into_iter().flatten() {
            *change = TimePatch::Set(change.time());
        }
        self
    }

    /// Adds flags.
    #[must_use]
    pub(crate) fn with_flags(mut self, set: RowFlags, clear: RowFlags) -> Self {
        self.flags = Some(BitsPatch { and: !u32::from(clear.0), or: u32::from(set.0) });
        self
    }

    /// Applies everything but the content.
    pub(crate) fn apply(&self, header: &mut Header) {
        if let Some(bits) = self.mode {
            header.mode = bits.apply(header.mode);
        }
        if let Some(bits) = self.flags {
            header.flags = RowFlags(bits.apply(u32::from(header.flags.0)) as u16);
        }
        header.uid = self.uid.unwrap_or(header.uid);
        header.gid = self.gid.unwrap_or(header.gid);
        header.project = self.project.unwrap_or(header.project);
        header.nlink = header.nlink.wrapping_add_signed(self.nlink_add.unwrap_or(0));
        if let Some(change) = self.size {
            change.apply(&mut header.size);
        }
        if let Some(change) = self.blocks {
            change.apply(&mut header.blocks);
        }
        header.parent = self.parent.unwrap_or(header.parent);
        for (change, time) in [
            (self.atime, &mut header.atime),
            (self.mtime, &mut header.mtime),
            (self.ctime, &mut header.ctime),
        ] {
            if let Some(change) = change {
                change.apply(time);
            }
        }
    }

    /// This change and then `newer`, as one; `None` when they don't fold.
    pub(crate) fn then(&self, newer: &Self) -> Option<Self> {
        Some(Self {
            mode: join(self.mode, newer.mode, |a, b| Some(a.then(b)))?,
            flags: join(self.flags, newer.flags, |a, b| Some(a.then(b)))?,
            uid: newer.uid.or(self.uid),
            gid: newer.gid.or(self.gid),
            nlink_add: join(self.nlink_add, newer.nlink_add, |a, b| Some(a.wrapping_add(b)))?,
            size: join(self.size, newer.size, NumberPatch::then)?,
            blocks: join(self.blocks, newer.blocks, NumberPatch::then)?,
            parent: newer.parent.or(self.parent),
            atime: join(self.atime, newer.atime, |a, b| Some(a.then(b)))?,
            mtime: join(self.mtime, newer.mtime, |a, b| Some(a.then(b)))?,
            ctime: join(self.ctime, newer.ctime, |a, b| Some(a.then(b)))?,
            content: join(self.content.clone(), newer.content.clone(), |a, b| a.then(&b))?,
            is_counted: self.is_counted | newer.is_counted,
            project: newer.project.or(self.project),
        })
    }

    /// Which fields it changes, one bit each, and how: what is set is exclusive, what is added to or raised
    /// is an increment. Raising the time of the last access touches nothing, so that a reader is never in
    /// another party's way. The number of links goes with the entries of a directory when those are counted
    /// too; without them it says whether the file exists.
    pub(crate) fn touch(&self) -> Touch {
        let mut touch = Touch::default();
        let mut exclusive = |bit: u32, is_set: bool| {
            if is_set {
                touch.exclusive |= u64::from(bit);
            }
        };
        exclusive(MODE, self.mode.is_some());
        exclusive(FLAGS, self.flags.is_some());
        exclusive(UID, self.uid.is_some());
        exclusive(GID, self.gid.is_some());
        exclusive(PARENT, self.parent.is_some());
        exclusive(CONTENT, self.content.is_some());
        // Entries that come into a directory get its project: they don't go together with a change of it.
        exclusive(PROJECT | SIZE, self.project.is_some());
        exclusive(ATIME, matches!(self.atime, Some(TimePatch::Set(_))));
        let entries_are_counted = matches!(self.size, Some(NumberPatch::Add(_)));
        let commuting = [
            (NLINK, self.nlink_add.map(|_| entries_are_counted)),
            (SIZE, self.size.map(NumberPatch::commutes)),
            (BLOCKS, self.blocks.map(NumberPatch::commutes)),
            (MTIME, self.mtime.map(TimePatch::commutes)),
            (CTIME, self.ctime.map(TimePatch::commutes)),
        ];
        for (bit, commutes) in commuting {
            match commutes {
                Some(true) => touch.increment |= u64::from(bit),
                Some(false) => touch.exclusive |= u64::from(bit),
                None => {}
            }
        }
        if self.is_counted {
            touch.increment |= u64::from(UID | GID | PROJECT);
        }
        touch
    }

    /// Encodes the operand for the row of `inode`.
    pub(crate) fn encode(&self, inode: u64) -> Bytes {
        let content_len = match &self.content {
            Some(ContentPatch::Replace(data) | ContentPatch::Write { data, .. }) => data.len(),
            _ => 0,
        };
        let mut out = Encoder { fields: 0, bytes: Vec::with_capacity(64 + content_len) };
        out.bytes.extend_from_slice(&[0; 4]);
        out.bytes.extend_from_slice(&inode.to_le_bytes());
        out.field(MODE, self.mode, Encoder::bits);
        out.field(FLAGS, self.flags, Encoder::bits);
        out.field(UID, self.uid, Encoder::u32);
        out.field(GID, self.gid, Encoder::u32);
        out.field(NLINK, self.nlink_add, |out, delta| out.u32(delta as u32));
        out.field(SIZE, self.size, Encoder::number);
        out.field(BLOCKS, self.blocks, Encoder::number);
        out.field(PARENT, self.parent, Encoder::u64);
        out.field(ATIME, self.atime, Encoder::time);
        out.field(MTIME, self.mtime, Encoder::time);
        out.field(CTIME, self.ctime, Encoder::time);
        out.field(CONTENT, self.content.as_ref(), Encoder::content);
        if self.is_counted {
            out.fields |= COUNTED;
        }
        out.field(PROJECT, self.project, Encoder::u32);
        out.bytes[..4].copy_from_slice(&out.fields.to_le_bytes());
        out.bytes.into()
    }

    /// Decodes an operand and the inode it is for; `None` when it is none.
    pub(crate) fn decode(operand: &[u8]) -> Option<(u64, Self)> {
        let mut input = Decoder(operand);
        let fields = input.u32()?;
        let inode = input.u64()?;
        if fields & !KNOWN != 0 {
            return None;
        }
        let patch = Self {
            mode: input.field(fields & MODE, Decoder::bits)?,
            flags: input.field(fields & FLAGS, Decoder::bits)?,
            uid: input.field(fields & UID, Decoder::u32)?,
            gid: input.field(fields & GID, Decoder::u32)?,
            nlink_add: input.field(fields & NLINK, |input| input.u32().map(|delta| delta as i32))?,
            size: input.field(fields & SIZE, Decoder::number)?,
            blocks: input.field(fields & BLOCKS, Decoder::number)?,
            parent: input.field(fields & PARENT, Decoder::u64)?,
            atime: input.field(fields & ATIME, Decoder::time)?,
            mtime: input.field(fields & MTIME, Decoder::time)?,
            ctime: input.field(fields & CTIME, Decoder::time)?,
            content: input.field(fields & CONTENT, Decoder::content)?,
            is_counted: fields & COUNTED != 0,
            project: input.field(fields & PROJECT, Decoder::u32)?,
        };
        input.0.is_empty().then_some((inode, patch))
    }
}

/// `None`: they don't fold.
#[expect(clippy::option_option, reason = "the outer level is failure, the inner one an untouched field")]
fn join<T>(older: Option<T>, newer: Option<T>, both: impl FnOnce(T, T) -> Option<T>) -> Option<Option<T>> {
    match (older, newer) {
        (Some(older), Some(newer)) => both(older, newer).map(Some),
        (older, newer) => Some(newer.or(older)),
    }
}

struct Encoder {
    fields: u32,
    bytes: Vec<u8>,
}

impl Encoder {
    fn field<T>(&mut self, bit: u32, value: Option<T>, encode: impl FnOnce(&mut Self, T)) {
        if let Some(value) = value {
            self.fields |= bit;
            encode(self, value);
        }
    }

    fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn bits(&mut self, bits: BitsPatch) {
        self.u32(bits.and);
        self.u32(bits.or);
    }

    fn number(&mut self, change: NumberPatch) {
        let (tag, value) = match change {
            NumberPatch::Set(value) => (0, value),
            NumberPatch::Max(value) => (1, value),
            NumberPatch::Add(delta) => (2, delta as u64),
        };
        self.bytes.push(tag);
        self.u64(value);
    }

    fn time(&mut self, change: TimePatch) {
        let (tag, time) = match change {
            TimePatch::Set(time) => (0, time),
            TimePatch::Max(time) => (1, time),
        };
        self.bytes.push(tag);
        self.u64(time.seconds as u64);
        self.u32(time.nanos);
    }

    fn content(&mut self, change: &ContentPatch) {
        let (tag, number, data) = match change {
            ContentPatch::Replace(data) => (0, 0, &data[..]),
            ContentPatch::Write { offset, data } => (1, *offset, &data[..]),
            ContentPatch::Resize(len) => (2, *len, &[][..]),
        };
        self.bytes.push(tag);
        self.u32(number);
        self.u32(data.len() as u32);
        self.bytes.extend_from_slice(data);
    }
}

struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    #[expect(clippy::option_option, reason = "the outer level is failure, the inner one an untouched field")]
    fn field<T>(&mut self, bit: u32, decode: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if bit == 0 { Some(None) } else { decode(self).map(Some) }
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn bits(&mut self) -> Option<BitsPatch> {
        Some(BitsPatch { and: self.u32()?, or: self.u32()? })
    }

    fn number(&mut self) -> Option<NumberPatch> {
        let (tag, value) = (self.u8()?, self.u64()?);
        Some(match tag {
            0 => NumberPatch::Set(value),
            1 => NumberPatch::Max(value),
            2 => NumberPatch::Add(value as i64),
            _ => return None,
        })
    }

    fn time(&mut self) -> Option<TimePatch> {
        let tag = self.u8()?;
        let time = Timestamp { seconds: self.u64()? as i64, nanos: self.u32()? };
        Some(match tag {
            0 => TimePatch::Set(time),
            1 => TimePatch::Max(time),
            _ => return None,
        })
    }

    fn content(&mut self) -> Option<ContentPatch> {
        let (tag, number, len) = (self.u8()?, self.u32()?, self.u32()?);
        // No row has more, and this takes as much memory, however small the operand is.
        if number.checked_add(len)? > INLINE_LEN_LIMIT {
            return None;
        }
        let data = Bytes::copy_from_slice(self.take(len as usize)?);
        Some(match tag {
            0 => ContentPatch::Replace(data),
            1 => ContentPatch::Write { offset: number, data },
            2 => ContentPatch::Resize(number),
            _ => return None,
        })
    }
}

/// Resolves operands on rows.
#[derive(Debug)]
pub(crate) struct RowMerge;

impl MergeFunction for RowMerge {
    fn resolve(
        &self,
        key: &[u8],
        base: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> kvfs_store::Result<Option<Bytes>> {
        let Some(base) = base else { return Ok(None) };
        let Some(Row::Inode(mut header, content)) = Row::parse(base) else {
            // A reference: operands meant for the row that was here before it.
            return Ok(Some(Bytes::copy_from_slice(base)));
        };
        let mut content = std::borrow::Cow::Borrowed(content);
        for operand in operands {
            let (inode, patch) = RowPatch::decode(operand).ok_or_else(|| {
                StoreError::corrupt(
                    format!("merge record of row {}", key.escape_ascii()),
                    format!("{} bytes can't be decoded", operand.len()),
                )
            })?;
            if inode != header.inode {
                continue;
            }
            patch.apply(&mut header);
            if let Some(change) = &patch.content {
                change.apply(content.to_mut());
            }
        }
        Ok(Some(encode_row(&header, &content)))
    }

    fn compression(&self, value: &[u8]) -> Compression {
        row_compression(value)
    }

    fn fold(&self, _key: &[u8], older: &[u8], newer: &[u8]) -> Option<Bytes> {
        let (inode, older) = RowPatch::decode(older)?;
        let (inode_2, newer) = RowPatch::decode(newer)?;
        if inode != inode_2 {
            return None;
        }
        let folded = older.then(&newer)?;
        // Links changed with a directory's entries, and links changed alone, don't become one.
        let touched = older.touch().union(newer.touch());
        folded.touch().covers(touched).then(|| folded.encode(inode))
    }

    fn touch(&self, _key: &[u8], operand: &[u8]) -> Touch {
        RowPatch::decode(operand).map_or(Touch::ALL, |(_, patch)| patch.touch())
    }
}
