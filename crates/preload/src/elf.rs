//! Which executables do not load this library: static ones, and programs in Go, which make system calls of
//! their own.
//!
//! Thread safety: pure, but for reads of the descriptor. Invariant: nothing is allocated.

use crate::slow::dispatch;

/// Bytes of an ELF header.
const HEADER: usize = 64;
/// Bytes of a program header.
const ENTRY: usize = 56;
/// Program headers that are looked at.
const ENTRIES: usize = 32;

const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;

/// How an executable makes its system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linkage {
    /// Through libc, which ld.so loads.
    Dynamic,
    /// No ld.so: the library is not loaded.
    Static,
    /// The runtime of Go makes them.
    Go,
}

/// Reads at an offset; a short read is an end.
pub(crate) fn read_at(fd: i32, buffer: &mut [u8], offset: u64) -> usize {
    let args = [fd as u64, buffer.as_mut_ptr() as u64, buffer.len() as u64, offset, 0, 0];
    dispatch(libc::SYS_pread64 as u64, &args).max(0) as usize
}

/// The linkage of the executable with the first bytes `head`, or `None` if it is no ELF file for x86-64.
pub(crate) fn linkage(fd: i32, head: &[u8]) -> Option<Linkage> {
    if head.len() < HEADER || !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let mut table = [0; ENTRY * ENTRIES];
    let length = (usize::from(u16_at(head, 56)) * ENTRY).min(table.len());
    let length = read_at(fd, &mut table[..length], u64_at(head, 32)).min(length);
    let mut has_interpreter = false;
    for entry in table[..length].chunks_exact(ENTRY) {
        match u32_at(entry, 0) {
            PT_INTERP => has_interpreter = true,
            PT_NOTE => {
                let mut note = [0; 512];
                let size = (u64_at(entry, 32) as usize).min(note.len());
                let size = read_at(fd, &mut note[..size], u64_at(entry, 8)).min(size);
                if has_go_note(&note[..size]) {
                    return Some(Linkage::Go);
                }
            }
            _ => {}
        }
    }
    Some(if has_interpreter { Linkage::Dynamic } else { Linkage::Static })
}

/// Whether a note is of Go: its name is `Go`, its type 4 the id of a build.
fn has_go_note(mut notes: &[u8]) -> bool {
    while notes.len() >= 16 {
        let (name, data) = (u32_at(notes, 0) as usize, u32_at(notes, 4) as usize);
        if name == 4 && notes[12..16] == *b"Go\0\0" {
            return true;
        }
        let size = 12 + name.next_multiple_of(4) + data.next_multiple_of(4);
        notes = notes.get(size..).unwrap_or(&[]);
    }
    false
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
