//! Where patched sites arrive: passes calls on that cannot concern the store, saves all registers for those
//! that may.
//!
//! A trampoline (see `patch.rs`) jumps here with the address of its own `syscall` instruction in rcx, which a
//! system call may destroy, as r11. A call that passes is made by the trampoline; behind that instruction,
//! two bytes on, the trampoline goes on with the result of a call that was made here. The red zone of the
//! caller stays untouched.
//!
//! Thread safety: all state is on the stack of the caller. Invariant: every register but rax, rcx, r11 is
//! kept, and the vector registers too (SSE, AVX and AVX-512; tiles are left alone because no code here uses
//! them).

use crate::kinds::KINDS;
use crate::slow::{Verdict, slow};
use crate::state::{CWD, HAS_SHARED, MARKS, PREFIX};
use crate::sys::Args;
use std::arch::global_asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The components that XSAVE stores; 0: the processor has only FXSAVE.
static SAVE_MASK: AtomicU64 = AtomicU64::new(0);
/// The bytes that they need.
static SAVE_SIZE: AtomicU64 = AtomicU64::new(512);

/// x87, SSE, AVX, and the three of AVX-512.
const VECTORS: u64 = 0xe7;

/// The verdict in two registers.
#[repr(C)]
struct RawVerdict {
    is_done: u64,
    value: i64,
}

extern "C" fn kvfs_preload_slow(nr: u64, args: &Args) -> RawVerdict {
    match slow(nr, args) {
        Verdict::Done(value) => RawVerdict { is_done: 1, value: value as i64 },
        Verdict::Native => RawVerdict { is_done: 0, value: 0 },
    }
}

/// Asks the processor which vector registers there are. To be called before any site is patched.
pub(crate) fn set_up() {
    let has_xsave = __cpuid(1).ecx & (1 << 27) != 0;
    if !has_xsave {
        return;
    }
    let leaf = __cpuid_count(0xd, 0);
    let mask = (u64::from(leaf.eax) | u64::from(leaf.edx) << 32) & VECTORS;
    let size = (2..8).filter(|c| mask & (1 << c) != 0).fold(576, |size: u64, component| {
        let part = __cpuid_count(0xd, component);
        size.max(u64::from(part.eax) + u64::from(part.ebx))
    });
    SAVE_SIZE.store(size, Relaxed);
    SAVE_MASK.store(mask, Relaxed);
}

/// The address of the entry.
pub(crate) fn address() -> u64 {
    // SAFETY: declares a symbol that the assembly below defines; it is never called from Rust.
    unsafe extern "C" {
        fn kvfs_preload_entry();
    }
    kvfs_preload_entry as *const () as u64
}

global_asm!(
    ".text",
    ".p2align 6",
    ".hidden kvfs_preload_entry",
    ".globl kvfs_preload_entry",
    "kvfs_preload_entry:",
    "cmp rax, 511",
    "ja .Lkp_pass",
    "lea r11, [rip + {kinds}]",
    "movzx r11d, byte ptr [r11 + rax]",
    "test r11d, r11d",
    "jnz .Lkp_sort",
    ".Lkp_pass:",
    "jmp rcx",
    // Below the red zone: the link at [rsp].
    ".Lkp_sort:",
    "lea rsp, [rsp - 152]",
    "mov [rsp], rcx",
    "cmp r11d, 1",
    "je .Lkp_fd",
    "cmp r11d, 3",
    "je .Lkp_at",
    "cmp r11d, 2",
    "je .Lkp_path",
    "cmp r11d, 9",
    "je .Lkp_fd4",
    "cmp r11d, 4",
    "je .Lkp_paths",
    "cmp r11d, 5",
    "je .Lkp_path1",
    "cmp r11d, 6",
    "je .Lkp_ats",
    "cmp r11d, 7",
    "je .Lkp_at1",
    "cmp r11d, 10",
    "je .Lkp_fd02",
    "cmp r11d, 11",
    "je .Lkp_fd01",
    "cmp r11d, 12",
    "je .Lkp_receive",
    "cmp r11d, 13",
    "je .Lkp_fd2",
    "cmp r11d, 14",
    "je .Lkp_cwd",
    "cmp r11d, 15",
    "je .Lkp_memory",
    "jmp .Lkp_slow",
    ".Lkp_fd01:",
    "mov ecx, edi",
    "call .Lkp_check_fd",
    "jc .Lkp_slow",
    "mov ecx, esi",
    "jmp .Lkp_last_fd",
    ".Lkp_fd02:",
    "mov ecx, edi",
    "call .Lkp_check_fd",
    "jc .Lkp_slow",
    ".Lkp_fd2:",
    "mov ecx, edx",
    "jmp .Lkp_last_fd",
    ".Lkp_fd4:",
    "mov ecx, r8d",
    "jmp .Lkp_last_fd",
    // A message with room for descriptors.
    ".Lkp_receive:",
    "cmp rsi, 4096",
    "jb .Lkp_native",
    "cmp qword ptr [rsi + 32], 0",
    "jne .Lkp_slow",
    ".Lkp_fd:",
    "mov ecx, edi",
    ".Lkp_last_fd:",
    "call .Lkp_check_fd",
    "jc .Lkp_slow",
    ".Lkp_native:",
    "mov rcx, [rsp]",
    "lea rsp, [rsp + 152]",
    "jmp rcx",
    ".Lkp_memory:",
    "cmp byte ptr [rip + {has_shared}], 0",
    "jne .Lkp_slow",
    "jmp .Lkp_native",
    ".Lkp_cwd:",
    "cmp byte ptr [rip + {cwd}], 0",
    "jne .Lkp_slow",
    "jmp .Lkp_native",
    ".Lkp_path:",
    "mov rcx, rdi",
    "mov r11d, -100",
    "jmp .Lkp_last_path",
    ".Lkp_paths:",
    "mov rcx, rdi",
    "mov r11d, -100",
    "call .Lkp_check_path",
    "jc .Lkp_slow",
    ".Lkp_path1:",
    "mov rcx, rsi",
    "mov r11d, -100",
    "jmp .Lkp_last_path",
    ".Lkp_ats:",
    "mov rcx, rsi",
    "mov r11d, edi",
    "call .Lkp_check_path",
    "jc .Lkp_slow",
    "mov rcx, r10",
    "mov r11d, edx",
    "jmp .Lkp_last_path",
    ".Lkp_at1:",
    "mov rcx, rdx",
    "mov r11d, esi",
    "jmp .Lkp_last_path",
    ".Lkp_at:",
    "mov rcx, rsi",
    "mov r11d, edi",
    ".Lkp_last_path:",
    "call .Lkp_check_path",
    "jnc .Lkp_native",
    // Everything is saved; [rbp - 48] are the six arguments, [rbp - 56] the number, [rbp + 8] the link.
    ".Lkp_slow:",
    "push rbp",
    "mov rbp, rsp",
    "push r9",
    "push r8",
    "push r10",
    "push rdx",
    "push rsi",
    "push rdi",
    "push rax",
    "sub rsp, [rip + {save_size}]",
    "and rsp, -64",
    "cld",
    "mov eax, [rip + {save_mask}]",
    "test eax, eax",
    "jz .Lkp_fxsave",
    "xor edx, edx",
    "mov [rsp + 512], rdx",
    "mov [rsp + 520], rdx",
    "mov [rsp + 528], rdx",
    "mov [rsp + 536], rdx",
    "mov [rsp + 544], rdx",
    "mov [rsp + 552], rdx",
    "mov [rsp + 560], rdx",
    "mov [rsp + 568], rdx",
    "xsave64 [rsp]",
    "jmp .Lkp_saved",
    ".Lkp_fxsave:",
    "fxsave64 [rsp]",
    ".Lkp_saved:",
    "mov rdi, [rbp - 56]",
    "lea rsi, [rbp - 48]",
    "call {slow}",
    "mov r10, rax",
    "mov r9, rdx",
    "mov eax, [rip + {save_mask}]",
    "test eax, eax",
    "jz .Lkp_fxrstor",
    "xor edx, edx",
    "xrstor64 [rsp]",
    "jmp .Lkp_restored",
    ".Lkp_fxrstor:",
    "fxrstor64 [rsp]",
    ".Lkp_restored:",
    "mov rax, [rbp - 56]",
    "mov rcx, [rbp + 8]",
    "test r10, r10",
    "jz .Lkp_undone",
    "mov rax, r9",
    "add rcx, 2",
    ".Lkp_undone:",
    "mov rdi, [rbp - 48]",
    "mov rsi, [rbp - 40]",
    "mov rdx, [rbp - 32]",
    "mov r10, [rbp - 24]",
    "mov r8, [rbp - 16]",
    "mov r9, [rbp - 8]",
    "mov rsp, rbp",
    "pop rbp",
    "lea rsp, [rsp + 152]",
    "jmp rcx",
    // Carry: the descriptor in ecx may belong to the store.
    ".Lkp_check_fd:",
    "cmp ecx, 65536",
    "jae .Lkp_high_fd",
    "bt dword ptr [rip + {marks}], ecx",
    "ret",
    ".Lkp_high_fd:",
    "not ecx",
    "bt ecx, 31",
    "ret",
    // Carry: the path at rcx, from the directory r11d, may belong to the store. Destroys both.
    ".Lkp_check_path:",
    "cmp rcx, 4096",
    "jb .Lkp_null",
    "cmp byte ptr [rcx], 47",
    "jne .Lkp_relative",
    "push rdx",
    "push rsi",
    "mov dl, [rcx + 1]",
    "cmp dl, 47",
    "je .Lkp_yes",
    "cmp dl, 46",
    "je .Lkp_yes",
    "test dl, dl",
    "je .Lkp_yes",
    "mov r11, rcx",
    "lea rsi, [rip + {prefix}]",
    ".Lkp_next:",
    "mov dl, [rsi]",
    "test dl, dl",
    "jz .Lkp_end",
    "cmp dl, [rcx]",
    "jne .Lkp_special",
    "inc rsi",
    "inc rcx",
    "jmp .Lkp_next",
    ".Lkp_end:",
    "mov dl, [rcx]",
    "test dl, dl",
    "jz .Lkp_yes",
    "cmp dl, 47",
    "je .Lkp_yes",
    // /proc/..., /dev/f..., /dev/s...: names of descriptors.
    ".Lkp_special:",
    "mov dl, [r11 + 1]",
    "cmp dl, 100",
    "je .Lkp_dev",
    "cmp dl, 112",
    "jne .Lkp_no",
    "cmp byte ptr [r11 + 2], 114",
    "jne .Lkp_no",
    "cmp byte ptr [r11 + 3], 111",
    "jne .Lkp_no",
    "cmp byte ptr [r11 + 4], 99",
    "jne .Lkp_no",
    "jmp .Lkp_yes",
    ".Lkp_dev:",
    "cmp byte ptr [r11 + 2], 101",
    "jne .Lkp_no",
    "cmp byte ptr [r11 + 3], 118",
    "jne .Lkp_no",
    "cmp byte ptr [r11 + 4], 47",
    "jne .Lkp_no",
    "mov dl, [r11 + 5]",
    "cmp dl, 102",
    "je .Lkp_yes",
    "cmp dl, 115",
    "je .Lkp_yes",
    ".Lkp_no:",
    "pop rsi",
    "pop rdx",
    "clc",
    "ret",
    ".Lkp_yes:",
    "pop rsi",
    "pop rdx",
    "stc",
    "ret",
    ".Lkp_null:",
    ".Lkp_relative:",
    "mov ecx, r11d",
    "cmp ecx, -100",
    "jne .Lkp_check_fd",
    "cmp byte ptr [rip + {cwd}], 0",
    "je .Lkp_outside",
    "stc",
    "ret",
    ".Lkp_outside:",
    "clc",
    "ret",
    kinds = sym KINDS,
    cwd = sym CWD,
    has_shared = sym HAS_SHARED,
    marks = sym MARKS,
    prefix = sym PREFIX,
    save_size = sym SAVE_SIZE,
    save_mask = sym SAVE_MASK,
    slow = sym kvfs_preload_slow,
);
