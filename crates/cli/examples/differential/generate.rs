//! Random operations over few names, so that they meet.

use kvfs_device::Rng;
use rustix::fs::{Access, FallocateFlags, OFlags, RenameFlags, XattrFlags};

use crate::actor::{NAMES, SHARED_GROUP, SLOTS, USER_IDS};
use crate::op::{Act, Bits, Node, Op};

const NAMES_OF_FILES: [&str; 5] = ["a", "b", "c", "d", "e"];
const MODES: [u32; 12] =
    [0o644, 0o600, 0o666, 0o777, 0o755, 0o4755, 0o2755, 0o2767, 0o6777, 0o1777, 0o2775, 0o000];
/// Whatever is at a sector's, a block's, an inline file's edge, and what is not.
const SIZES: [u64; 14] =
    [0, 1, 100, 511, 512, 4000, 4095, 4096, 4097, 8192, 20_000, 65_536, 131_072, 200_000];
const XATTRS: [&str; 9] = [
    "user.a",
    "user.b",
    "user.",
    "trusted.a",
    "security.capability",
    "system.posix_acl_access",
    "system.posix_acl_default",
    "nothing.a",
    "user.a.name.that.is.longer.than.the.others",
];

fn one_of<T: Clone>(rng: &mut Rng, items: &[T]) -> T {
    items[rng.index(items.len())].clone()
}

/// A path of one to three names; sometimes one that no file can have, or with something at its end.
fn path(rng: &mut Rng) -> String {
    let names: Vec<&str> = (0..=rng.below(3)).map(|_| one_of(rng, &NAMES_OF_FILES)).collect();
    let path = names.join("/");
    match rng.below(80) {
        0 => String::new(),
        1 => path + "/",
        2 => path + "/.",
        3 => path + "/..",
        4 => "n".repeat(255),
        5 => "n".repeat(256),
        _ => path,
    }
}

fn size(rng: &mut Rng) -> u64 {
    if rng.chance(1, 200) { one_of(rng, &[1 << 40, 1 << 63]) } else { one_of(rng, &SIZES) }
}

fn small(rng: &mut Rng) -> u64 {
    one_of(rng, &SIZES)
}

fn mode(rng: &mut Rng) -> Bits {
    Bits(if rng.chance(1, 4) { rng.below(0o10000) as u32 } else { one_of(rng, &MODES) })
}

fn id(rng: &mut Rng) -> Option<u32> {
    one_of(rng, &[None, Some(0), Some(USER_IDS[0]), Some(USER_IDS[1]), Some(SHARED_GROUP)])
}

fn open_flags(rng: &mut Rng) -> OFlags {
    let mut flags = one_of(rng, &[OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR]);
    for (flag, one_in) in [
        (OFlags::CREATE, 2),
        (OFlags::EXCL, 6),
        (OFlags::TRUNC, 4),
        (OFlags::APPEND, 5),
        (OFlags::NOFOLLOW, 10),
        (OFlags::DIRECTORY, 20),
        (OFlags::PATH, 30),
        (OFlags::DSYNC, 40),
        (OFlags::NOATIME, 20),
    ] {
        flags.set(flag, rng.chance(1, one_in));
    }
    flags
}

fn allocation(rng: &mut Rng) -> FallocateFlags {
    let keep = FallocateFlags::KEEP_SIZE;
    one_of(
        rng,
        &[
            FallocateFlags::empty(),
            keep,
            keep | FallocateFlags::PUNCH_HOLE,
            FallocateFlags::ZERO_RANGE,
            keep | FallocateFlags::ZERO_RANGE,
            FallocateFlags::PUNCH_HOLE,
        ],
    )
}

/// A list of permissions (version 2): owner, a named user, group, mask, others.
fn access_list(rng: &mut Rng) -> Vec<u8> {
    let mut list = 2_u32.to_le_bytes().to_vec();
    let no_id = u32::MAX;
    for (tag, id) in [(1_u16, no_id), (2, one_of(rng, &USER_IDS)), (4, no_id), (16, no_id), (32, no_id)] {
        list.extend(tag.to_le_bytes());
        list.extend((rng.below(8) as u16).to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

fn set_xattr(rng: &mut Rng) -> Op {
    let name = one_of(rng, &XATTRS);
    let value = match name {
        // Version 2, effective, CAP_NET_RAW.
        "security.capability" if rng.chance(7, 8) => {
            [0x0200_0001_u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
        }
        // An empty one lends nothing and means nothing; ext4 keeps it where kvfs takes it away.
        "security.capability" => vec![b'v'; 10],
        _ if name.starts_with("system.posix_acl") && rng.chance(7, 8) => access_list(rng),
        _ => vec![b'v'; one_of(rng, &[0, 1, 10, 300])],
    };
    let flags =
        one_of(rng, &[XattrFlags::empty(), XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE]);
    Op::SetXattr { path: path(rng), name, value, flags }
}

fn on_content(rng: &mut Rng) -> Op {
    let slot = rng.index(SLOTS);
    match rng.below(12) {
        0..2 => Op::Read { slot, offset: small(rng), len: small(rng) as usize },
        2..6 => {
            let (offset, len) = (small(rng), small(rng) as usize);
            Op::Write { slot, offset, len, fill: rng.range(1, 256) as u8 }
        }
        6 => Op::TruncateSlot { slot, size: size(rng) },
        7 => Op::Truncate { path: path(rng), size: small(rng) },
        8..10 => Op::Allocate { slot, flags: allocation(rng), offset: small(rng), len: small(rng) },
        10 => {
            let (from, to) = (rng.index(SLOTS), rng.index(SLOTS));
            let (from_offset, to_offset) = (small(rng), small(rng));
            Op::CopyRange { from, from_offset, to, to_offset, len: small(rng) as usize }
        }
        _ => Op::StatSlot { slot },
    }
}

fn on_names(rng: &mut Rng) -> Op {
    let path = path(rng);
    match rng.below(16) {
        0..4 => Op::Mkdir { path, mode: mode(rng) },
        4 => {
            let node = one_of(rng, &[Node::File, Node::Fifo, Node::Socket, Node::CharDevice]);
            Op::Mknod { path, node, mode: mode(rng) }
        }
        5 => Op::Rmdir { path },
        6..8 => Op::Unlink { path },
        8..11 => {
            let flags =
                [RenameFlags::empty(), RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
            Op::Rename { from: path, to: self::path(rng), flags: one_of(rng, &flags) }
        }
        11..13 => Op::Link { from: path, to: self::path(rng), follow: rng.chance(1, 3) },
        13 => Op::Symlink { target: self::path(rng), path },
        14 => Op::Readlink { path },
        _ => Op::List { path },
    }
}

fn on_attributes(rng: &mut Rng) -> Op {
    let path = path(rng);
    match rng.below(13) {
        0..3 => Op::Chmod { path, mode: mode(rng) },
        3 => Op::ChmodSlot { slot: rng.index(SLOTS), mode: mode(rng) },
        4..6 => {
            // A change of neither does not reach a FUSE server: the kernel answers it, after fewer checks.
            let (uid, gid) = loop {
                let ids = (id(rng), id(rng));
                if ids != (None, None) {
                    break ids;
                }
            };
            Op::Chown { path, uid, gid, follow: rng.chance(1, 2) }
        }
        6 => {
            let mtime = if rng.chance(3, 4) { Some(rng.below(1000) as i64) } else { None };
            Op::Utimens { path, mtime, follow: rng.chance(1, 2) }
        }
        7 => {
            let access = [Access::EXISTS, Access::READ_OK, Access::WRITE_OK, Access::EXEC_OK];
            Op::Access { path, access: one_of(rng, &access) | one_of(rng, &access) }
        }
        8 => Op::Stat { path, follow: rng.chance(1, 2) },
        9..11 => set_xattr(rng),
        11 => {
            let name = one_of(rng, &XATTRS);
            Op::GetXattr { path, name, room: one_of(rng, &[0, 5, 1000]) }
        }
        _ if rng.chance(1, 2) => Op::ListXattr { path },
        _ => Op::RemoveXattr { path, name: one_of(rng, &XATTRS) },
    }
}

/// The next operation.
pub(crate) fn act(rng: &mut Rng) -> Act {
    let actor = rng.index(NAMES.len());
    let op = match rng.below(20) {
        0..3 => Op::Open { slot: rng.index(SLOTS), path: path(rng), flags: open_flags(rng), mode: mode(rng) },
        3 => match rng.below(4) {
            0 => Op::TmpFile { slot: rng.index(SLOTS), path: path(rng), mode: mode(rng) },
            1 => Op::LinkSlot { slot: rng.index(SLOTS), path: path(rng) },
            2 => Op::Close { slot: rng.index(SLOTS) },
            _ => Op::StatSlot { slot: rng.index(SLOTS) },
        },
        4..10 => on_content(rng),
        10..15 => on_names(rng),
        _ => on_attributes(rng),
    };
    Act { actor, op }
}
