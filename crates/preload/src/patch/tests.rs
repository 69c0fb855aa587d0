use super::{CANCEL_HEAD, CANCEL_MOVES, Form, Segment, Site, patch, segments, sites};
use crate::kinds::{Kind, kind};
use crate::start;
use crate::sys::{self, call};

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
    let moved = |start, length| Site { start, form: Form::Moved(length) };
    assert_eq!(sites(code), [moved(1, 8), moved(10, 7)]);
    let loads =
        b"\x90\x48\x8b\x44\x24\x10\x0f\x05\x5b\xc3\x48\x8b\x45\x10\x0f\x05\xc9\x8b\x44\x24\x10\x0f\x05";
    let cancel = cancel_arch(0);
    let found = [Site { start: 0, form: Form::Cancel }, moved(48, 7), moved(57, 6)];
    assert_eq!(sites(&[&cancel[..], loads].concat()), found);
    assert_eq!(sites(&[&cancel[1..], loads].concat()), []);
}

/// `__syscall_cancel_arch` of glibc, which jumps to what lies `distance` behind its test.
fn cancel_arch(distance: u32) -> Vec<u8> {
    [CANCEL_HEAD, &distance.to_le_bytes(), CANCEL_MOVES, b"\x0f\x05\xc3"].concat()
}

/// A long function of 8 arguments.
type Cancel = unsafe extern "C" fn(*const u32, u64, u64, u64, u64, u64, u64, u64) -> isize;

#[test]
fn call_of_a_cancellation_point_is_served_or_made_unless_the_thread_is_cancelled() {
    let args = [0, 4096, (libc::PROT_READ | libc::PROT_WRITE) as u64, 0x22, u64::MAX, 0];
    let page = call(libc::SYS_mmap as u64, &args) as usize;
    // Behind the function, at 64: mov eax, 7; ret.
    let mut code = cancel_arch(64 - 11);
    code.resize(64, 0xcc);
    code.extend(b"\xb8\x07\0\0\0\xc3");
    sys::bytes(page as u64, code.len()).copy_from_slice(&code);
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    assert_eq!(patch(Segment { start: page, end: page + 4096, protection }), Ok(1));
    // SAFETY: the page has such a function.
    let cancel = unsafe { std::mem::transmute::<usize, Cancel>(page) };
    let call = |state: u32, nr: i64, fd: i32| {
        // SAFETY: calls that reach no memory.
        unsafe { cancel(&raw const state, nr as u64, fd as u64, 0, 0, 0, 0, 0) }
    };
    assert_eq!(call(0, libc::SYS_getpid, 0), std::process::id() as isize);
    assert_eq!(call(0, libc::SYS_read, start::PROBE), -libc::EBADFD as isize, "it is served");
    assert_eq!(call(0, libc::SYS_read, -1), -libc::EBADF as isize, "the kernel says so");
    assert_eq!(call(8, libc::SYS_read, -1), 7, "the thread is cancelled");
}

/// Whether the `syscall` at `at` is that of a site.
fn is_of(site: &Site, at: usize) -> bool {
    let length = if let Form::Moved(length) = site.form { length } else { 46 };
    (site.start..site.start + length).contains(&at)
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
            if sites.iter().any(|site| is_of(site, at)) {
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
