use super::*;

fn request(major: u32, minor: u32, offered: u64) -> Vec<u8> {
    let init = InitIn { major, minor, max_readahead: 131_072, flags: offered as u32 };
    let ext = InitInExt { flags2: (offered >> 32) as u32, unused: [0; 11] };
    let extended = minor >= 36;
    let len = size_of::<InHeader>() + size_of::<InitIn>() + if extended { size_of::<InitInExt>() } else { 0 };
    let header = InHeader { len: len as u32, opcode: Opcode::Init as u32, unique: 2, ..InHeader::default() };
    let mut bytes = [header.as_bytes(), init.as_bytes()].concat();
    if extended {
        bytes.extend_from_slice(ext.as_bytes());
    }
    bytes
}

fn agree(minor: u32, offered: u64, config: &InitConfig) -> (Negotiated, InitOut) {
    match negotiate(&request(7, minor, offered), config).unwrap() {
        (2, Handshake::Agreed(negotiated, out)) => (negotiated, out),
        other => panic!("not agreed: {other:?}"),
    }
}

#[test]
fn a_new_kernel_gets_what_is_wanted_and_nothing_else() {
    let (negotiated, out) = agree(45, u64::MAX, &InitConfig::default());
    assert_eq!(negotiated.minor, 45);
    assert!(negotiated.has(bit::HAS_EXPIRE_ONLY | bit::PARALLEL_DIROPS | bit::EXPLICIT_INVAL_DATA));
    for unwanted in [
        bit::WRITEBACK_CACHE,
        bit::POSIX_LOCKS,
        bit::FLOCK_LOCKS,
        bit::POSIX_ACL,
        bit::ATOMIC_O_TRUNC,
        bit::SPLICE_READ,
        bit::PASSTHROUGH,
    ] {
        assert!(!negotiated.has(unwanted), "{unwanted:#x}");
    }
    assert_eq!(out.max_write, 1 << 20);
    assert_eq!(out.max_pages, 256);
    assert_eq!(u64::from(out.flags) | u64::from(out.flags2) << 32, negotiated.flags);
}

#[test]
fn an_old_kernel_gets_no_extended_flags() {
    let offered = u64::from(u32::MAX) & !bit::INIT_EXT & !bit::SETXATTR_EXT;
    let (negotiated, out) = agree(31, offered, &InitConfig::default());
    assert_eq!(negotiated.minor, 31);
    assert_eq!(out.flags2, 0);
    assert!(!negotiated.has(bit::SETXATTR_EXT));
}

#[test]
fn without_max_pages_writes_stay_small() {
    let (negotiated, _) = agree(31, bit::BIG_WRITES, &InitConfig::default());
    assert_eq!(negotiated.write_bytes_max, 128 << 10);
}

#[test]
fn truncation_at_open_is_never_combined_with_opens_without_a_message() {
    let config = InitConfig { no_open: true, atomic_o_trunc: true, ..InitConfig::default() };
    assert!(!agree(45, u64::MAX, &config).0.has(bit::ATOMIC_O_TRUNC));
    let config = InitConfig { atomic_o_trunc: true, ..InitConfig::default() };
    assert!(agree(45, u64::MAX, &config).0.has(bit::ATOMIC_O_TRUNC));
}

#[test]
fn foreign_versions() {
    let config = InitConfig::default();
    assert!(matches!(negotiate(&request(8, 0, 0), &config), Ok((2, Handshake::OfferMajor(_)))));
    assert!(matches!(negotiate(&request(7, 30, 0), &config), Ok((2, Handshake::TooOld { minor: 30, .. }))));
    assert!(matches!(negotiate(&request(6, 99, 0), &config), Ok((2, Handshake::TooOld { major: 6, .. }))));
    assert!(negotiate(b"short", &config).is_err());
}

#[test]
fn file_handles_without_lookup_by_node_are_not_given_out() {
    let (without, _) = agree(45, u64::MAX, &InitConfig::default());
    assert!(without.has(bit::NO_EXPORT_SUPPORT) && !without.has(bit::EXPORT_SUPPORT));
    let (with, _) = agree(45, u64::MAX, &InitConfig { export_support: true, ..InitConfig::default() });
    assert!(with.has(bit::EXPORT_SUPPORT) && !with.has(bit::NO_EXPORT_SUPPORT));
}
