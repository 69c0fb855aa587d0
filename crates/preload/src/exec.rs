//! Executing a program: one of the store through a copy in memory, and none that would not see the store
//! unnoticed.
//!
//! The kernel executes only files that it can open. An executable below the prefix is copied into a memfd; a
//! script is run by its interpreter with the path that the program gave. Variables of kvfs that a program
//! left out of the new environment are added if it kept `LD_PRELOAD`; a program that dropped `LD_PRELOAD` has
//! its way.
//!
//! Thread safety: runs in children of vfork: memory of the parent is only read. Invariant: nothing is
//! allocated on a heap.

use crate::buffer::PathBuffer;
use crate::elf::{Linkage, linkage, read_at};
use crate::place::{Place, resolve};
use crate::script;
use crate::slow::{Verdict, dispatch};
use crate::state;
use crate::sys::{self, word};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

/// Variables that a program needs so that the library works.
static VARIABLES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
/// Whether executables that do not load the library are refused, and whether they are told of.
static STATIC: OnceLock<Static> = OnceLock::new();

#[derive(Clone, Copy, PartialEq, Eq)]
enum Static {
    Warn,
    Refuse,
    Allow,
}

/// How deep scripts may be run by scripts.
const DEPTH: usize = 4;
/// Pointers of a new argument list or environment that lie on the stack, which may have 32 KiB in a child of
/// `posix_spawn`; a longer list lies in a mapping.
const WORDS: usize = 256;
const CHUNK: usize = 1 << 18;

/// Keeps what is needed later. To be called before any site is patched.
pub(crate) fn set_up() {
    let variables = std::env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(b"KVFS_"));
    let joined = variables.map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat());
    let mode = match std::env::var("KVFS_EXEC_STATIC").as_deref() {
        Ok("refuse") => Static::Refuse,
        Ok("allow") => Static::Allow,
        _ => Static::Warn,
    };
    // Set once: the constructor runs once.
    let _ = VARIABLES.set(joined.collect());
    let _ = STATIC.set(mode);
}

/// execveat of the program.
pub(crate) fn exec(directory: i32, path: u64, argv: u64, envp: u64, flags: i32) -> Verdict {
    let mut count = 0;
    let mut loads = false;
    while envp != 0 && word(envp, count) != 0 {
        let text = sys::string(word(envp, count)).unwrap_or(b"");
        loads |= text.starts_with(b"LD_PRELOAD=") && text.windows(12).any(|part| part == b"kvfs_preload");
        count += 1;
    }
    let variables = VARIABLES.get().map_or(&[][..], Vec::as_slice);
    if !loads || variables.iter().all(|variable| has_variable(envp, count, variable)) {
        return run(directory, path, argv, envp, flags, 0);
    }
    with_words(count + variables.len() + 1, |words| {
        let mut at = 0;
        while at < count {
            words[at] = word(envp, at);
            at += 1;
        }
        for variable in variables.iter().filter(|variable| !has_variable(envp, count, variable)) {
            words[at] = variable.as_ptr() as u64;
            at += 1;
        }
        run(directory, path, argv, words.as_ptr() as u64, flags, 0)
    })
}

/// Whether an environment of `count` strings has a variable of that name.
fn has_variable(envp: u64, count: usize, variable: &[u8]) -> bool {
    let name = &variable[..=variable.iter().position(|b| *b == b'=').unwrap_or(0)];
    (0..count).any(|at| sys::string(word(envp, at)).unwrap_or(b"").starts_with(name))
}

/// Calls `use_words` with `count` zeroed words. A mapping is lost if a child of vfork executes with it.
fn with_words(count: usize, use_words: impl FnOnce(&mut [u64]) -> Verdict) -> Verdict {
    if count <= WORDS {
        return use_words(&mut [0; WORDS]);
    }
    let (mode, kind) =
        ((libc::PROT_READ | libc::PROT_WRITE) as u64, (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64);
    let map = sys::call(libc::SYS_mmap as u64, &[0, count as u64 * 8, mode, kind, u64::MAX, 0]);
    if map < 0 {
        return Verdict::Done(map);
    }
    let verdict = use_words(sys::words(map as u64, count));
    sys::call(libc::SYS_munmap as u64, &[map as u64, count as u64 * 8, 0, 0, 0, 0]);
    verdict
}

fn native(directory: i32, path: u64, argv: u64, envp: u64, flags: i32) -> Verdict {
    let args = [directory as u64, path, argv, envp, flags as u64, 0];
    if directory == libc::AT_FDCWD && flags == 0 {
        return Verdict::Done(sys::call(libc::SYS_execve as u64, &[path, argv, envp, 0, 0, 0]));
    }
    Verdict::Done(sys::call(libc::SYS_execveat as u64, &args))
}

fn run(directory: i32, path: u64, argv: u64, envp: u64, flags: i32, depth: usize) -> Verdict {
    let fail = |number: i32| Verdict::Done(-(number as isize));
    let place = resolve(directory, path);
    let is_empty = path < 4096 || sys::string(path).is_some_and(<[u8]>::is_empty);
    if is_empty && flags & libc::AT_EMPTY_PATH == 0 {
        return native(directory, path, argv, envp, flags);
    }
    let fd = if is_empty { open_descriptor(directory) } else { open(directory, path) };
    if fd < 0 {
        // The kernel may execute what cannot be read.
        return if place == Place::Outside { native(directory, path, argv, envp, flags) } else { fail(-fd) };
    }
    if place == Place::Outside && !is_regular(fd) {
        close(fd);
        return native(directory, path, argv, envp, flags);
    }
    let mut head = [0; 512];
    let length = read_at(fd, &mut head, 0);
    let head = &head[..length];
    let name = if path < 4096 { &b""[..] } else { sys::string(path).unwrap_or(b"") };
    if linkage(fd, head).is_some_and(|l| l != Linkage::Dynamic) && !is_loader(name) && refuses(name, FOREIGN)
    {
        close(fd);
        return fail(libc::ENOEXEC);
    }
    if place == Place::Outside {
        close(fd);
        let mut prefix = [0; state::PREFIX_MAX];
        let is_ours = script::interpreter(head)
            .is_some_and(|(interpreter, _)| interpreter.starts_with(state::prefix(&mut prefix)));
        return if is_ours {
            run_named_script(head, directory, path, argv, envp, depth)
        } else {
            native(directory, path, argv, envp, flags)
        };
    }
    let access = [directory as u64, path, libc::X_OK as u64, 0, 0, 0];
    let allowed = if is_empty { 0 } else { dispatch(libc::SYS_faccessat as u64, &access) };
    if allowed < 0 {
        close(fd);
        return Verdict::Done(allowed);
    }
    if script::interpreter(head).is_some() {
        close(fd);
        return run_named_script(head, directory, path, argv, envp, depth);
    }
    let copy = copy_to_memory(fd, name);
    close(fd);
    if copy < 0 {
        return fail(if copy == -libc::EISDIR { libc::EACCES } else { -copy });
    }
    let result = native(copy, c"".as_ptr() as u64, argv, envp, libc::AT_EMPTY_PATH);
    close(copy);
    result
}

/// Without waiting for the writer of a fifo, which the kernel refuses to execute.
fn open(directory: i32, path: u64) -> i32 {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
    dispatch(libc::SYS_openat as u64, &[directory as u64, path, flags, 0, 0, 0]) as i32
}

fn is_regular(fd: i32) -> bool {
    let mut found = sys::Stat::new();
    found.of_descriptor(fd) && found.mode() & libc::S_IFMT == libc::S_IFREG
}

/// A second descriptor of an open file, which may have been opened with `O_PATH`.
fn open_descriptor(directory: i32) -> i32 {
    let (mut name, mut digits) = ([0; 25], [0; 10]);
    let number = decimal(directory, &mut digits);
    name[..14].copy_from_slice(b"/proc/self/fd/");
    name[14..14 + number.len()].copy_from_slice(number);
    open(libc::AT_FDCWD, name.as_ptr() as u64)
}

/// The digits of a number that is not negative.
fn decimal(number: i32, digits: &mut [u8; 10]) -> &[u8] {
    let (mut rest, mut at) = (number.unsigned_abs(), digits.len());
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return &digits[at..];
        }
    }
}

fn close(fd: i32) {
    dispatch(libc::SYS_close as u64, &[fd as u64, 0, 0, 0, 0, 0]);
}

/// Runs a script by the name that its interpreter is to open: that of the descriptor, where the path is
/// relative to one.
fn run_named_script(head: &[u8], directory: i32, path: u64, argv: u64, envp: u64, depth: usize) -> Verdict {
    let is_absolute = path >= 4096 && sys::string(path).is_some_and(|path| path.starts_with(b"/"));
    if directory == libc::AT_FDCWD || is_absolute {
        return run_script(head, path, argv, envp, depth);
    }
    let flags = sys::call(libc::SYS_fcntl as u64, &[directory as u64, libc::F_GETFD as u64, 0, 0, 0, 0]);
    if flags & libc::FD_CLOEXEC as isize != 0 {
        // The interpreter would not find it.
        return Verdict::Done(-(libc::ENOENT as isize));
    }
    run_script_of(head, directory, path, argv, envp, depth)
}

/// Runs a script as `/dev/fd/N` or `/dev/fd/N/PATH`, as the kernel does.
#[inline(never)]
fn run_script_of(head: &[u8], directory: i32, path: u64, argv: u64, envp: u64, depth: usize) -> Verdict {
    let path = if path < 4096 { &b""[..] } else { sys::string(path).unwrap_or(b"") };
    let (mut name, mut digits) = (PathBuffer::new(), [0; 10]);
    let is_whole = name.push(b"/dev/fd/")
        && name.push(decimal(directory, &mut digits))
        && (path.is_empty() || name.push(b"/"))
        && name.push(path);
    if !is_whole {
        return Verdict::Done(-(libc::ENAMETOOLONG as isize));
    }
    run_script(head, name.address(), argv, envp, depth)
}

/// Runs the interpreter of a script with its argument, the path of the script, and the rest of the arguments.
#[inline(never)]
fn run_script(head: &[u8], path: u64, argv: u64, envp: u64, depth: usize) -> Verdict {
    let Some((interpreter, argument)) = script::interpreter(head).filter(|_| depth < DEPTH) else {
        return Verdict::Done(-(libc::ELOOP as isize));
    };
    let (mut program, mut option) = ([0; 513], [0; 513]);
    let option_length = argument.unwrap_or(b"").len();
    program[..interpreter.len()].copy_from_slice(interpreter);
    option[..option_length].copy_from_slice(argument.unwrap_or(b""));
    let mut given = 0;
    while argv != 0 && word(argv, given) != 0 {
        given += 1;
    }
    with_words(given + 4, |words| {
        words[0] = program.as_ptr() as u64;
        let mut count = 1;
        if argument.is_some() {
            words[1] = option.as_ptr() as u64;
            count = 2;
        }
        words[count] = path;
        for at in 1..given {
            words[count + at] = word(argv, at);
        }
        run(libc::AT_FDCWD, program.as_ptr() as u64, words.as_ptr() as u64, envp, 0, depth + 1)
    })
}

/// Copies an executable into memory; returns its descriptor or a negative error number.
fn copy_to_memory(fd: i32, name: &[u8]) -> i32 {
    let base = &name[name.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1)..];
    let mut label = [0; 208];
    let kept = &base[..base.len().min(200)];
    label[..kept.len()].copy_from_slice(kept);
    let flags = u64::from(libc::MFD_CLOEXEC);
    let copy = sys::call(libc::SYS_memfd_create as u64, &[label.as_ptr() as u64, flags, 0, 0, 0, 0]) as i32;
    if copy < 0 {
        return copy;
    }
    let mode = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let kind = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let chunk = sys::call(libc::SYS_mmap as u64, &[0, CHUNK as u64, mode, kind, u64::MAX, 0]);
    if chunk < 0 {
        close(copy);
        return chunk as i32;
    }
    let result = copy_by(fd, copy, chunk as u64);
    sys::call(libc::SYS_munmap as u64, &[chunk as u64, CHUNK as u64, 0, 0, 0, 0]);
    if result < 0 {
        close(copy);
        return result as i32;
    }
    copy
}

/// Copies all of a file through the memory at `chunk`; returns 0 or a negative error number.
fn copy_by(fd: i32, copy: i32, chunk: u64) -> isize {
    loop {
        let length = dispatch(libc::SYS_read as u64, &[fd as u64, chunk, CHUNK as u64, 0, 0, 0]);
        if length <= 0 {
            return length;
        }
        let mut done = 0;
        while done < length {
            let args = [copy as u64, chunk + done as u64, (length - done) as u64, 0, 0, 0];
            let written = sys::call(libc::SYS_write as u64, &args);
            if written < 0 {
                return written;
            }
            done += written;
        }
    }
}

/// ld.so has no interpreter, but loads the library.
fn is_loader(name: &[u8]) -> bool {
    let base = &name[name.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1)..];
    base.starts_with(b"ld-linux") || base.starts_with(b"ld-2.") || base == b"ld.so"
}

/// Why an executable does not load the library.
const FOREIGN: &[u8] = b"it is static or written in Go";

/// Tells of a program that will not see the store, and why; returns whether it is not to run.
#[inline(never)]
pub(crate) fn refuses(name: &[u8], reason: &[u8]) -> bool {
    let mode = STATIC.get().copied().unwrap_or(Static::Warn);
    if mode == Static::Allow {
        return false;
    }
    let mut message = PathBuffer::new();
    let mut prefix = [0; state::PREFIX_MAX];
    let verb: &[u8] = if mode == Static::Refuse { b"kvfs: cannot run " } else { b"kvfs: warning: " };
    let is_whole = message.push(verb)
        && message.push(&name[..name.len().min(1024)])
        && message.push(b": ")
        && message.push(reason)
        && message.push(b", and it does not see ")
        && message.push(state::prefix(&mut prefix))
        && message.push(b"; mount the store for it\n");
    if is_whole {
        let args = [2, message.address(), message.as_bytes().len() as u64, 0, 0, 0];
        dispatch(libc::SYS_write as u64, &args);
    }
    mode == Static::Refuse
}
