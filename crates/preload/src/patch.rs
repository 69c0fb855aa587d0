//! Replaces the `syscall` instructions of mapped objects by jumps to trampolines.
//!
//! A site is `syscall` followed by the comparison of the result with the error range, 7 or 8 bytes together;
//! nothing jumps into the middle of one. A site of another form is left alone (`interpose.rs` has the few
//! that matter).
//!
//! Thread safety: runs once, before the program has threads. Invariant: between the first and the last
//! `mprotect` of an object no code outside of this library runs, since libc itself may be what is being
//! written.

use crate::entry;
use crate::sys::call;
use std::ffi::c_void;

/// `syscall; cmp $-4096|-4095, %rax` and `syscall; cmp $0xfffff000|1, %eax`.
const FORMS: [&[u8]; 4] = [
    b"\x0f\x05\x48\x3d\x00\xf0\xff\xff",
    b"\x0f\x05\x48\x3d\x01\xf0\xff\xff",
    b"\x0f\x05\x3d\x00\xf0\xff\xff",
    b"\x0f\x05\x3d\x01\xf0\xff\xff",
];

const PAGE: usize = 4096;
/// Bytes of one trampoline: 26 are used.
const TRAMPOLINE: usize = 32;
/// Bytes before the first trampoline: the address of the entry.
const HEAD: usize = 32;
/// How far from an object its trampolines may lie: a jump reaches 2 GiB.
const REACH: usize = 0x7000_0000;

/// An executable segment of a mapped object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Its first byte.
    pub(crate) start: usize,
    /// The byte behind it.
    pub(crate) end: usize,
    /// `PROT_*` that it is mapped with.
    pub(crate) protection: i32,
}

/// Offsets and lengths of the sites in `code`.
pub(crate) fn sites(code: &[u8]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(next) = next_syscall(&code[at..]) {
        at += next;
        if let Some(form) = FORMS.iter().find(|form| code[at..].starts_with(form)) {
            found.push((at, form.len()));
            at += form.len();
        } else {
            at += 1;
        }
    }
    found
}

/// Where the next two bytes of `syscall` are. The second one is looked for alone: libc does that many bytes
/// at a time, and most of what a short program costs here is this.
fn next_syscall(code: &[u8]) -> Option<usize> {
    let mut from = 1;
    loop {
        let rest = code.get(from..)?;
        // SAFETY: the range is that of a slice.
        let found = unsafe { libc::memchr(rest.as_ptr().cast(), 0x05, rest.len()) };
        if found.is_null() {
            return None;
        }
        let at = found as usize - code.as_ptr() as usize;
        if code[at - 1] == 0x0f {
            return Some(at - 1);
        }
        from = at + 1;
    }
}

/// The executable segments of all mapped objects, without this library and the vDSO.
pub(crate) fn segments() -> Vec<Segment> {
    let mut found: Vec<Segment> = Vec::new();
    // SAFETY: the callback gets the vector back that is passed here, and it outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(note_object), (&raw mut found).cast()) };
    found
}

/// # Safety
/// To be called by `dl_iterate_phdr` with a `Vec<Segment>` as `data`.
unsafe extern "C" fn note_object(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> i32 {
    // SAFETY: as the function demands.
    let (info, found) = unsafe { (&*info, &mut *data.cast::<Vec<Segment>>()) };
    // SAFETY: ld.so passes the program headers of the object.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = info.dlpi_addr as usize;
    let own = entry::address() as usize;
    let within = |address: usize, h: &libc::Elf64_Phdr| {
        let start = base + h.p_vaddr as usize;
        h.p_type == libc::PT_LOAD && address >= start && address < start + h.p_memsz as usize
    };
    // SAFETY: a query without arguments that matter.
    let vdso = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    if headers.iter().any(|h| within(own, h) || (vdso != 0 && within(vdso, h))) {
        return 0;
    }
    for header in headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0) {
        let start = base + header.p_vaddr as usize;
        let writable = if header.p_flags & libc::PF_W != 0 { libc::PROT_WRITE } else { 0 };
        let protection = libc::PROT_READ | libc::PROT_EXEC | writable;
        if header.p_flags & libc::PF_R != 0 {
            found.push(Segment { start, end: start + header.p_memsz as usize, protection });
        }
    }
    0
}

/// Patches all sites of a segment. Returns how many, or why none.
pub(crate) fn patch(segment: Segment) -> Result<usize, &'static str> {
    // SAFETY: the segment is mapped and readable, and ld.so keeps it so.
    let code = unsafe { std::slice::from_raw_parts(segment.start as *const u8, segment.end - segment.start) };
    let sites = sites(code);
    if sites.is_empty() {
        return Ok(0);
    }
    let size = (HEAD + sites.len() * TRAMPOLINE).next_multiple_of(PAGE);
    let area = map_near(segment, size).ok_or("no memory within reach of a jump")?;
    put(area, &entry::address().to_le_bytes());
    for (index, (offset, length)) in sites.iter().enumerate() {
        let site = segment.start + offset;
        put(
            area + HEAD + index * TRAMPOLINE,
            &trampoline(area, index, site, &code[*offset..offset + length]),
        );
    }
    let start = segment.start / PAGE * PAGE;
    let length = segment.end.next_multiple_of(PAGE) - start;
    let protect = |at: usize, length: usize, mode: i32| {
        call(libc::SYS_mprotect as u64, &[at as u64, length as u64, mode as u64, 0, 0, 0])
    };
    if protect(area, size, libc::PROT_READ | libc::PROT_EXEC) < 0 {
        return Err("the trampolines cannot be made executable");
    }
    if protect(start, length, libc::PROT_READ | libc::PROT_WRITE) < 0 {
        return Err("the code cannot be made writable");
    }
    for (index, (offset, _)) in sites.iter().enumerate() {
        let site = segment.start + offset;
        put(site, &jump(site, area + HEAD + index * TRAMPOLINE));
    }
    if protect(start, length, segment.protection) < 0
        && protect(start, length, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) < 0
    {
        return Err("the code cannot be made executable again");
    }
    Ok(sites.len())
}

/// Writes bytes one by one: `memcpy` may lie in the code that is being written.
fn put(address: usize, bytes: &[u8]) {
    let mut at = 0;
    while at < bytes.len() {
        // SAFETY: `patch` has mapped the place, or made it writable.
        unsafe { ((address + at) as *mut u8).write_volatile(bytes[at]) };
        at += 1;
    }
}

/// `jmp to` at `from`.
fn jump(from: usize, to: usize) -> [u8; 5] {
    let [a, b, c, d] = (to.wrapping_sub(from + 5) as u32).to_le_bytes();
    [0xe9, a, b, c, d]
}

/// lea rcx, [rip + 6]; jmp [area]; syscall; cmp as at the site; jmp behind the site.
fn trampoline(area: usize, index: usize, site: usize, form: &[u8]) -> [u8; TRAMPOLINE] {
    let at = area + HEAD + index * TRAMPOLINE;
    let mut code = [0xcc; TRAMPOLINE];
    code[..7].copy_from_slice(b"\x48\x8d\x0d\x06\0\0\0");
    code[7..9].copy_from_slice(b"\xff\x25");
    code[9..13].copy_from_slice(&(area.wrapping_sub(at + 13) as u32).to_le_bytes());
    code[13..13 + form.len()].copy_from_slice(form);
    let end = 13 + form.len();
    code[end..end + 5].copy_from_slice(&jump(at + end, site + form.len()));
    code
}

/// Maps memory from which, and to which, every byte of the segment can be reached.
fn map_near(segment: Segment, size: usize) -> Option<usize> {
    const STEP: usize = 1 << 20;
    let below = segment.start / STEP * STEP;
    let above = segment.end.next_multiple_of(STEP);
    (0..REACH / STEP).find_map(|step| {
        [below.checked_sub(size.next_multiple_of(STEP) + step * STEP), Some(above + step * STEP)]
            .into_iter()
            .flatten()
            .filter(|at| *at > STEP && at.abs_diff(segment.start) < REACH && at.abs_diff(segment.end) < REACH)
            .find(|at| {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
                let protection = libc::PROT_READ | libc::PROT_WRITE;
                let args = [*at as u64, size as u64, protection as u64, flags as u64, u64::MAX, 0];
                let result = call(libc::SYS_mmap as u64, &args);
                // A kernel without MAP_FIXED_NOREPLACE takes the address as a hint.
                if result > 0 && result as usize != *at {
                    call(libc::SYS_munmap as u64, &[result as u64, size as u64, 0, 0, 0, 0]);
                }
                result > 0 && result as usize == *at
            })
    })
}

#[cfg(test)]
mod tests;
