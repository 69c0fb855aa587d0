use super::{segments, sites};
use crate::kinds::{Kind, kind};

/// Calls with a site of another form: symbols that `interpose.rs` has, and what needs nothing. vfork (58) is
/// made as it is; the others are of the C library's own sockets and messages.
const OTHER_FORMS: &[(u64, &str)] = &[
    (16, "interposed: ioctl"),
    (95, "interposed: umask"),
    (221, "interposed: posix_fadvise"),
    (1, "write of ld.so, of its messages before any program runs"),
    (59, "execve of ld.so, when it is run as a program"),
    (3, "close in if_indextoname and its kin"),
    (20, "writev in backtrace and herror"),
];

/// The number that `mov $nr, %eax` or `xor %eax, %eax` loads before a site.
fn number_before(code: &[u8], at: usize) -> Option<u64> {
    let before = &code[at.saturating_sub(40)..at];
    (0..before.len()).rev().find_map(|i| {
        let rest = &before[i..];
        if rest.len() >= 5 && rest[0] == 0xb8 && rest[3..5] == [0, 0] {
            return Some(u64::from(u16::from_le_bytes([rest[1], rest[2]])));
        }
        (rest.len() >= 2 && rest[..2] == [0x31, 0xc0]).then_some(0)
    })
}

#[test]
fn sites_finds_each_form_and_nothing_else() {
    let code = b"\x90\x0f\x05\x48\x3d\x00\xf0\xff\xff\x0f\x0f\x05\x3d\x00\xf0\xff\xff\x0f\x05\xc3\x0f";
    assert_eq!(sites(code), [(1, 8), (10, 7)]);
}

#[test]
fn every_file_call_of_libc_is_patched_or_interposed() {
    let mut patched = 0;
    for segment in segments() {
        // SAFETY: executable segments of this process stay mapped and readable.
        let code =
            unsafe { std::slice::from_raw_parts(segment.start as *const u8, segment.end - segment.start) };
        let name = format!("{:x}", segment.start);
        let sites = sites(code);
        patched += sites.len();
        for at in code.windows(2).enumerate().filter(|(_, w)| *w == [0x0f, 0x05]).map(|(at, _)| at) {
            if sites.iter().any(|(site, _)| *site == at) {
                continue;
            }
            let Some(nr) = number_before(code, at) else { continue };
            let is_known = OTHER_FORMS.iter().any(|(known, _)| *known == nr);
            // A number of 0 is seldom `read`: futexes and clones are preceded by `xor %eax, %eax` too.
            assert!(
                nr == 0 || kind(nr) == Kind::Pass || is_known,
                "{name}+{at:x}: call {nr} is not intercepted"
            );
        }
    }
    assert!(patched > 300, "only {patched} sites were found");
}
