use bytes::Bytes;
use kvfs_store::{MergeFunction, Touch};

use super::*;
use crate::{FileType, INLINE_LEN_LIMIT, INODE_MAX, MkfsOptions, Timestamp};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % bound
    }

    fn maybe<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.below(3) == 0).then(|| value(self))
    }
}

fn time(random: &mut Random) -> Timestamp {
    Timestamp { seconds: random.below(100) as i64 - 50, nanos: random.below(3) as u32 }
}

fn time_patch(random: &mut Random) -> TimePatch {
    if random.below(2) == 0 { TimePatch::Set(time(random)) } else { TimePatch::Max(time(random)) }
}

fn number_patch(random: &mut Random) -> NumberPatch {
    match random.below(3) {
        0 => NumberPatch::Set(random.below(50)),
        1 => NumberPatch::Max(random.below(50)),
        _ => NumberPatch::Add(random.below(50) as i64 - 25),
    }
}

fn content_patch(random: &mut Random) -> ContentPatch {
    let data = Bytes::from(vec![random.below(256) as u8; random.below(20) as usize]);
    match random.below(4) {
        0 => ContentPatch::Replace(data),
        1 => ContentPatch::Resize(random.below(30) as u32),
        _ => ContentPatch::Write { offset: random.below(30) as u32, data },
    }
}

fn row_patch(random: &mut Random) -> RowPatch {
    let bits =
        |random: &mut Random| BitsPatch { and: random.below(512) as u32, or: random.below(512) as u32 };
    RowPatch {
        mode: random.maybe(bits),
        flags: random.maybe(bits),
        uid: random.maybe(|random| random.below(9) as u32),
        gid: random.maybe(|random| random.below(9) as u32),
        nlink_add: random.maybe(|random| random.below(9) as i32 - 4),
        size: random.maybe(number_patch),
        blocks: random.maybe(number_patch),
        parent: random.maybe(|random| random.below(9)),
        atime: random.maybe(time_patch),
        mtime: random.maybe(time_patch),
        ctime: random.maybe(time_patch),
        content: random.maybe(content_patch),
        is_counted: random.below(4) == 0,
        project: random.maybe(|random| random.below(9) as u32),
    }
}

fn header(random: &mut Random) -> Header {
    let mut header = Header::new(7, FileType::Regular, time(random));
    (header.size, header.blocks, header.nlink) = (random.below(50), random.below(50), 3);
    header
}

#[test]
fn rows_decode_to_what_was_encoded() {
    let mut random = Random(1);
    for _ in 0..1000 {
        let mut header = header(&mut random);
        row_patch(&mut random).apply(&mut header);
        let row = encode_row(&header, b"content");
        assert_eq!(Row::parse(&row), Some(Row::Inode(header, b"content")));
        assert_eq!(Row::decode_own(7, &row).unwrap(), (header, &b"content"[..]));
        assert!(Row::decode_own(8, &row).is_err());
        assert!(Row::parse(&row[..90]).is_none());
    }
    let placement = Placement { subtree: 5, label: Bytes::from_static(b"\x01\x09") };
    let row = encode_directory_link(9, &placement);
    assert_eq!(Row::parse(&row), Some(Row::Directory { inode: 9, placement }));
    let row = encode_inode_link(9, FileType::Fifo);
    assert_eq!(Row::parse(&row), Some(Row::Link { inode: 9, kind: FileType::Fifo }));
    for bytes in [&b""[..], b"\x00", b"\x13\x01", b"\xff\xff\xff"] {
        assert_eq!(Row::parse(bytes), None);
        assert!(Row::decode(b"key", bytes).is_err());
    }
}

#[test]
fn rows_with_names_numbers_or_places_that_no_file_has_are_refused() {
    let header = Header::new(16, FileType::Regular, Timestamp { seconds: 1, nanos: 0 });
    let row = encode_row(&header, b"");
    let directory = Placement::own_subtree(20);
    for (name, is_sound) in
        [(&b""[..], true), (b"a", true), (b"a/b", false), (b"..", false), (b".", false), (b"a\0", false)]
    {
        let decoded = Row::decode(&directory.key(name), &row);
        assert_eq!(decoded.is_ok(), is_sound, "{} {decoded:?}", name.escape_ascii());
    }
    // Keys below it would be none of a row.
    let elsewhere = Placement { subtree: 20, label: Bytes::from_static(b"\x01") };
    assert!(Row::decode(&directory.key(b"a"), &encode_directory_link(20, &elsewhere)).is_err());
    for (inode, is_sound) in
        [(0, false), (1, true), (INODE_MAX - 1, true), (INODE_MAX, false), (1 << 63, false)]
    {
        let placement = Placement::own_subtree(inode);
        for row in [
            encode_row(&Header { inode, ..header }, b""),
            encode_directory_link(inode, &placement),
            encode_inode_link(inode, FileType::Regular),
        ] {
            assert_eq!(Row::parse(&row).is_some(), is_sound, "inode {inode}");
        }
        assert_eq!(Placement::parse_key(&placement.key(b"name")).is_some(), is_sound, "inode {inode}");
    }
    let superblock = Superblock::new(&MkfsOptions::default()).unwrap();
    for (inode_next, inline_len_max, is_sound) in
        [(INODE_MAX, INLINE_LEN_LIMIT, true), (INODE_MAX + 1, 0, false), (16, INLINE_LEN_LIMIT + 1, false)]
    {
        let bytes = Superblock { inline_len_max, inode_next, ..superblock }.encode();
        assert_eq!(Superblock::decode(&bytes).is_ok(), is_sound);
    }
}

#[test]
fn operands_that_make_content_longer_than_any_row_has_are_refused() {
    let base = encode_row(&Header::new(7, FileType::Regular, Timestamp { seconds: 1, nanos: 0 }), b"content");
    let limit = INLINE_LEN_LIMIT;
    for (change, is_sound) in [
        (ContentPatch::Resize(limit), true),
        (ContentPatch::Resize(limit + 1), false),
        (ContentPatch::Resize(u32::MAX), false),
        (ContentPatch::Write { offset: limit - 1, data: Bytes::from_static(b"x") }, true),
        (ContentPatch::Write { offset: limit, data: Bytes::from_static(b"x") }, false),
        (ContentPatch::Write { offset: u32::MAX, data: Bytes::from_static(b"x") }, false),
        (ContentPatch::Replace(vec![7; limit as usize].into()), true),
        (ContentPatch::Replace(vec![7; limit as usize + 1].into()), false),
    ] {
        let operand = RowPatch { content: Some(change.clone()), ..RowPatch::default() }.encode(7);
        let resolved = RowMerge.resolve(b"key", Some(&base), &[&operand]);
        assert_eq!(resolved.is_ok(), is_sound, "{change:?}");
        let short = RowPatch { content: Some(ContentPatch::Replace(Bytes::new())), ..RowPatch::default() };
        assert_eq!(RowMerge.fold(b"key", &short.encode(7), &operand).is_some(), is_sound, "{change:?}");
    }
}

#[test]
fn superblocks_decode_and_other_formats_are_told() {
    let superblock = Superblock::new(&MkfsOptions::default()).unwrap();
    let bytes = superblock.encode();
    assert_eq!(Superblock::decode(&bytes).unwrap(), superblock);
    let mut newer = bytes.to_vec();
    newer[8] = 4;
    let message = Superblock::decode(&newer).unwrap_err().to_string();
    assert!(message.contains("format 4"), "{message}");
    newer[0] = b'x';
    assert!(Superblock::decode(&newer).unwrap_err().to_string().contains("mkfs"));
    assert!(Superblock::decode(&bytes[1..]).is_err());
}

#[test]
fn operands_decode_to_what_was_encoded_and_garbage_is_refused() {
    let mut random = Random(2);
    for _ in 0..2000 {
        let patch = row_patch(&mut random);
        let operand = patch.encode(7);
        assert_eq!(RowPatch::decode(&operand), Some((7, patch)));
        assert_eq!(RowPatch::decode(&operand[..operand.len() - 1]), None);
        assert_eq!(RowPatch::decode(&[&operand[..], &[0]].concat()), None);
    }
    let mut operand = RowPatch::default().encode(7).to_vec();
    operand[3] = 0x80;
    assert_eq!(RowPatch::decode(&operand), None, "an unknown field is no field to skip");
    let row = encode_row(&header(&mut random), b"");
    assert!(RowMerge.resolve(b"key", Some(&row), &[b"garbage"]).is_err());
}

#[test]
fn folding_and_grouping_change_nothing() {
    let mut random = Random(3);
    let mut folded = 0;
    for _ in 0..20_000 {
        let row = encode_row(&header(&mut random), &vec![1; random.below(20) as usize]);
        let operands: Vec<Bytes> = (0..3).map(|_| row_patch(&mut random).encode(7)).collect();
        let resolve = |base: &[u8], operands: &[&[u8]]| {
            RowMerge.resolve(b"key", Some(base), operands).unwrap().unwrap()
        };
        let [a, b, c] = [&operands[0][..], &operands[1][..], &operands[2][..]];
        let expected = resolve(&row, &[a, b, c]);
        assert_eq!(resolve(&resolve(&row, &[a]), &[b, c]), expected);
        if let Some(ab) = RowMerge.fold(b"key", a, b) {
            folded += 1;
            assert_eq!(resolve(&row, &[&ab, c]), expected);
        }
        if let Some(bc) = RowMerge.fold(b"key", b, c) {
            assert_eq!(resolve(&row, &[a, &bc]), expected);
        }
    }
    assert!(folded > 5000, "{folded}");
}

#[test]
fn a_folded_operand_touches_what_both_touched() {
    let mut random = Random(5);
    let mut folded = 0;
    for _ in 0..20_000 {
        let [a, b] = [0, 1].map(|_| row_patch(&mut random).encode(7));
        let touch = |operand: &[u8]| RowMerge.touch(b"key", operand);
        if let Some(ab) = RowMerge.fold(b"key", &a, &b) {
            folded += 1;
            assert!(touch(&ab).covers(touch(&a).union(touch(&b))), "{a:?} {b:?}");
        }
    }
    assert!(folded > 5000, "{folded}");
}

#[test]
fn operands_touch_the_fields_that_they_change() {
    let touch = |patch: RowPatch| RowMerge.touch(b"key", &patch.encode(7));
    let now = Timestamp { seconds: 1, nanos: 2 };
    let read = touch(RowPatch { atime: Some(TimePatch::Max(now)), ..RowPatch::default() });
    assert_eq!(read, Touch::default(), "reading dooms no transaction");
    assert!(!read.conflicts_with(Touch::ALL));
    let utimes = touch(RowPatch { atime: Some(TimePatch::Set(now)), ..RowPatch::default() });
    let entry =
        |nlink_add| RowPatch { size: Some(NumberPatch::Add(1)), nlink_add, ..RowPatch::modified(now) };
    let (file, directory) = (touch(entry(None)), touch(entry(Some(1))));
    assert!(!file.conflicts_with(directory) && !directory.conflicts_with(directory), "entries come at once");
    let link = touch(RowPatch { nlink_add: Some(1), ..RowPatch::changed(now) });
    assert!(link.conflicts_with(link) && link.conflicts_with(directory), "links of a file are exclusive");
    let write = touch(RowPatch { size: Some(NumberPatch::Max(9)), ..RowPatch::modified(now) });
    let truncate = touch(RowPatch { size: Some(NumberPatch::Set(0)), ..RowPatch::modified(now) });
    assert!(!write.conflicts_with(write) && write.conflicts_with(truncate));
    let inline = touch(RowPatch { content: Some(ContentPatch::Resize(0)), ..RowPatch::default() });
    let chmod = touch(RowPatch { mode: Some(BitsPatch::set(0o600)), ..RowPatch::changed(now) });
    assert!(inline.conflicts_with(inline) && chmod.conflicts_with(chmod));
    assert!(!inline.conflicts_with(chmod) && !write.conflicts_with(chmod) && !utimes.conflicts_with(chmod));
    for changed in [utimes, file, directory, link, write, truncate, inline, chmod] {
        assert!(changed.conflicts_with(Touch::ALL), "{changed:?}");
    }
    assert_eq!(RowMerge.touch(b"key", b"garbage"), Touch::ALL);
}

#[test]
fn operands_touch_only_the_row_of_their_inode() {
    let mut random = Random(4);
    let row = encode_row(&header(&mut random), b"content");
    let patch = RowPatch { uid: Some(77), ..RowPatch::default() };
    let resolve = |base: Option<&[u8]>, operand: &Bytes| RowMerge.resolve(b"key", base, &[operand]).unwrap();
    assert_eq!(resolve(Some(&row), &patch.encode(8)).unwrap(), row);
    assert_ne!(resolve(Some(&row), &patch.encode(7)).unwrap(), row);
    assert_eq!(resolve(None, &patch.encode(7)), None);
    let link = encode_inode_link(7, FileType::Regular);
    assert_eq!(resolve(Some(&link), &patch.encode(7)).unwrap(), link);
    assert_eq!(RowMerge.fold(b"key", &patch.encode(7), &patch.encode(8)), None);
}

#[test]
fn entries_of_a_directory_are_contiguous_and_come_before_subdirectories() {
    let placement = Placement { subtree: 5, label: Bytes::from_static(b"\x01\x09") };
    let below = Placement { subtree: 5, label: Bytes::from_static(b"\x01\x09\x01\x02") };
    let range = placement.entries_after(b"");
    assert!(!range.contains(&placement.own_key()));
    assert!(!range.contains(&below.own_key()) && !range.contains(&below.key(b"a")));
    assert!(range.contains(&placement.key(b"\x01")) && range.contains(&placement.key(&[0xff; 255])));
    assert!(placement.key(&[0xff; 255]) < below.own_key());
    let after = placement.entries_after(b"m");
    assert!(!after.contains(&placement.key(b"m")) && after.contains(&placement.key(b"m\x01")));
    assert_eq!(&placement.key(b"name")[placement.prefix_len()..], b"name");
}
