//! Replaces the `syscall` instructions of mapped objects by jumps to trampolines.
//!
//! A site is `syscall` with an instruction beside it, the comparison of the result with the error range, or
//! the load of the number from the stack, 6 to 8 bytes together; nothing jumps into the middle of one. A site
//! of another form is left alone (`interpose.rs` has the few that matter).
//!
//! From glibc 2.41 on all calls at which a thread can be cancelled are made at such a load while the process
//! has one thread, and in `__syscall_cancel_arch` else: see [`Form::Cancel`].
//!
//! Thread safety: runs once, before the program has threads. Invariant: between the first and the last
//! `mprotect` of an object no code outside of this library runs, since libc itself may be what is being
//! written.

use crate::entry;
use crate::sys::call;
use std::ffi::c_void;

const SYSCALL: &[u8] = b"\x0f\x05";

/// Behind a `syscall`: `cmp $-4096|-4095, %rax` and `cmp $0xfffff000|1, %eax`.
const COMPARISONS: [&[u8]; 4] = [
    b"\x48\x3d\x00\xf0\xff\xff",
    b"\x48\x3d\x01\xf0\xff\xff",
    b"\x3d\x00\xf0\xff\xff",
    b"\x3d\x01\xf0\xff\xff",
];

/// In front of a `syscall`, and behind them the byte that says how far: `mov n(%rsp), %rax` and
/// `mov n(%rbp), %rax`.
const LOADS: [&[u8]; 2] = [b"\x48\x8b\x44\x24", b"\x48\x8b\x45"];

/// How `__syscall_cancel_arch` begins: `mov (%rdi), %eax; testb $8, (%rdi); jne`, and behind them how far.
const CANCEL_HEAD: &[u8] = b"\x8b\x07\xf6\x07\x08\x0f\x85";

/// Its arguments become those of the call, and where the thread's state is goes to the stack.
const CANCEL_MOVES: &[u8] =
    b"\x49\x89\xfb\x48\x89\xf0\x48\x89\xd7\x48\x89\xce\x4c\x89\xc2\x4d\x89\xca\x4c\x8b\x44\x24\x08\x4c\x8b\x4c\x24\x10\x4c\x89\x5c\x24\x08";

/// Bytes of it in front of its `syscall`.
const CANCEL_BYTES: usize = CANCEL_HEAD.len() + 4 + CANCEL_MOVES.len();

const PAGE: usize = 4096;
/// Bytes of one trampoline: 59 are used.
const TRAMPOLINE: usize = 64;
/// Bytes of a jump.
const JUMP: usize = 5;
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

/// How the call of a site is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// By so many bytes, which the trampoline has instead: what lies beside the `syscall` may lie anywhere.
    Moved(usize),
    /// In `__syscall_cancel_arch`. The handler of a cancellation looks whether its thread is between the
    /// first byte and the `syscall`, which stays where it is. A served call returns from the trampoline; any
    /// other one goes back into what was the function, where the thread's state is looked at.
    Cancel,
}

/// What is to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// The offset of its first byte.
    pub(crate) start: usize,
    pub(crate) form: Form,
}

/// The sites in `code`. Loads are sites beside `__syscall_cancel_arch` alone: where that is not found, calls
/// of several threads would pass unseen, and so shall those of one, which `start.rs` looks at.
pub(crate) fn sites(code: &[u8]) -> Vec<Site> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(next) = next_syscall(&code[at..]) {
        at += next;
        found.extend(site(code, at));
        at += 2;
    }
    if !found.iter().any(|site| site.form == Form::Cancel) {
        found.retain(|site| code[site.start..].starts_with(SYSCALL));
    }
    found
}

/// The site of the `syscall` at `at`.
fn site(code: &[u8], at: usize) -> Option<Site> {
    let (before, behind) = (&code[..at], &code[at + 2..]);
    if let Some(comparison) = COMPARISONS.iter().find(|comparison| behind.starts_with(comparison)) {
        return Some(Site { start: at, form: Form::Moved(2 + comparison.len()) });
    }
    let is_load = |load: &&&[u8]| before.len() > load.len() && before[..at - 1].ends_with(load);
    if let Some(load) = LOADS.iter().find(is_load) {
        return Some(Site { start: at - 1 - load.len(), form: Form::Moved(load.len() + 3) });
    }
    let start = at.checked_sub(CANCEL_BYTES)?;
    let is_cancel = before.ends_with(CANCEL_MOVES)
        && before[start..].starts_with(CANCEL_HEAD)
        && behind.first() == Some(&0xc3);
    is_cancel.then_some(Site { start, form: Form::Cancel })
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
    let mut jumps = Vec::with_capacity(sites.len());
    for (index, site) in sites.iter().enumerate() {
        let (at, to) = (segment.start + site.start, area + HEAD + index * TRAMPOLINE);
        put(to, trampoline(area, to, at, site.form, &code[site.start..]).bytes());
        jumps.push((at, replacement(at, to, site.form, &code[site.start..])));
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
    for (at, code) in &jumps {
        put(*at, code.bytes());
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

/// Code that is put together.
struct Code {
    start: usize,
    bytes: [u8; TRAMPOLINE],
    len: usize,
}

impl Code {
    /// To lie at `start`.
    fn at(start: usize) -> Self {
        Self { start, bytes: [0xcc; TRAMPOLINE], len: 0 }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// How far `to` is from behind the next four bytes.
    fn push_distance(&mut self, to: usize) {
        self.push(&(to.wrapping_sub(self.start + self.len + 4) as u32).to_le_bytes());
    }

    fn push_jump(&mut self, to: usize) {
        self.push(b"\xe9");
        self.push_distance(to);
    }

    /// `lea rcx, [rip + 6]; jmp [area]`: what comes next makes the call; two bytes on it is done.
    fn push_entry(&mut self, area: usize) {
        self.push(b"\x48\x8d\x0d\x06\0\0\0\xff\x25");
        self.push_distance(area);
    }
}

/// The trampoline at `to` of the site at `at`, whose bytes `code` begins with.
fn trampoline(area: usize, to: usize, at: usize, form: Form, code: &[u8]) -> Code {
    let mut made = Code::at(to);
    match form {
        // What lies in front of the `syscall`, the entry, the rest.
        Form::Moved(length) => {
            let in_front = if code.starts_with(SYSCALL) { 0 } else { length - 2 };
            made.push(&code[..in_front]);
            made.push_entry(area);
            made.push(&code[in_front..length]);
            made.push_jump(at + length);
        }
        // Behind the entry: over the `ret` of a call that is done; `mov 8(%rsp), %r11`.
        Form::Cancel => {
            made.push(CANCEL_MOVES);
            made.push_entry(area);
            made.push(b"\xeb\x01\xc3\x4c\x8b\x5c\x24\x08");
            made.push_jump(at + JUMP);
        }
    }
    made
}

/// What takes the place of the site.
fn replacement(at: usize, to: usize, form: Form, code: &[u8]) -> Code {
    let mut made = Code::at(at);
    made.push_jump(to);
    if form == Form::Cancel {
        // `testb $8, (%r11); jne` to where it led; `jmp` to the `syscall`.
        let [.., a, b, c, d] = code[..CANCEL_HEAD.len() + 4] else { return made };
        let target =
            at.wrapping_add(CANCEL_HEAD.len() + 4).wrapping_add(i32::from_le_bytes([a, b, c, d]) as usize);
        made.push(b"\x41\xf6\x03\x08\x0f\x85");
        made.push_distance(target);
        made.push(&[0xeb, (CANCEL_BYTES - made.len - 2) as u8]);
    }
    made
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
