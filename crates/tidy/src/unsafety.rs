//! `unsafe` lives in a few named modules, and each use says why it is sound.

use crate::Finding;
use crate::source::Source;

/// Where `unsafe` may be, as path prefixes; each is small and does one thing.
pub const ALLOWED: &[&str] = &[
    // The BLKDISCARD ioctl.
    // The list of a memtable: nodes of different length, linked by atomic pointers, and the memory that they
    // lie in.
    "crates/kvdb/src/memtable/arena.rs",
    "crates/kvdb/src/memtable/skiplist.rs",
    // The ioctl that clones a FUSE descriptor.
    "crates/fuse/src/transport/clone.rs",
    // The memory and the commands of rings, which the kernel uses, too; a system call without a wrapper.
    "crates/fuse/src/transport/ring/entry.rs",
    "crates/fuse/src/transport/ring/primer.rs",
    "crates/fuse/src/transport/ring/queue.rs",
    // The C API of LevelDB.
    "crates/engines/leveldb/src/sys.rs",
    // Where in the code a lock was taken, as another thread has noted it.
    "crates/locks/src/threads.rs",
    // Advice about memory.
    "crates/memory/src/advice.rs",
    // Memory from the kernel, past the allocator.
    "crates/memory/src/mapping.rs",
    // How a worker is scheduled.
    "crates/fuse/src/process/policy.rs",
    // Options of the allocator.
    "crates/cli/src/allocator.rs",
    // The process at the other end of a socket.
    "crates/socket/src/peer_credentials.rs",
    // The groups of the process that connects to a socket.
    "crates/socket/src/peer_groups.rs",
    // The ioctls by which transactions are begun and ended.
    "crates/rpc/src/client/calls.rs",
    // Leaving the namespaces of the parent.
    "crates/cli/src/namespace/unshare.rs",
    // Descriptors that the caller of a command had open.
    "crates/cli/src/daemon/inherited.rs",
    // Memory that two processes share.
    "crates/lane/src/lane.rs",
    // Memory that programs in C hand over or get back.
    "crates/capi/src/foreign.rs",
    // Directory streams of C, which keep their process.
    "crates/capi/src/directory.rs",
    // System calls, the code of mapped objects, the assembly entry, and symbols of libc, for programs without
    // a mount.
    "crates/preload/src/sys.rs",
    "crates/preload/src/patch.rs",
    "crates/preload/src/client/page.rs",
    "crates/preload/src/patch/tests.rs",
    "crates/preload/src/entry.rs",
    "crates/preload/src/interpose.rs",
    // A test that writes through a shared mapping.
    "crates/fuse/tests/it/pressure/mapped.rs",
    // The same in the crash tests.
    "crates/cli/tests/it/crash/mapped.rs",
];

/// Lines above a use of `unsafe` within which its `SAFETY` must stand.
const REACH: usize = 8;

/// Checks one source.
pub fn check(source: &Source) -> Vec<Finding> {
    let lines: Vec<&str> = source.text.lines().collect();
    let mut findings = Vec::new();
    let tokens = source.tokens();
    for (at, (token, line)) in tokens.iter().enumerate() {
        if token != "unsafe" {
            continue;
        }
        // `unsafe` in an attribute or in a function pointer's type does nothing by itself.
        let next = tokens.get(at + 1).map_or("", |t| t.0.as_str());
        if !matches!(next, "{" | "impl" | "fn" | "trait" | "extern") {
            continue;
        }
        if !ALLOWED.iter().any(|prefix| source.path.starts_with(prefix)) {
            findings.push(format!("{}:{line}: `unsafe` outside the modules that may have it", source.path));
        }
        let above = &lines[line.saturating_sub(REACH + 1)..*line];
        if !above.iter().any(|l| l.contains("SAFETY:") || l.contains("# Safety")) {
            findings.push(format!("{}:{line}: `unsafe` without a SAFETY comment", source.path));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::source::Source;

    #[test]
    fn a_stranger_and_a_missing_reason_are_found() {
        let bare = "fn f() {\n  unsafe { g() }\n}";
        assert_eq!(check(&Source::parse("crates/fs/src/x.rs", bare).unwrap()).len(), 2);
        let reasoned = "fn f() {\n  // SAFETY: g asks for nothing.\n  unsafe { g() }\n}";
        assert_eq!(check(&Source::parse("crates/fs/src/x.rs", reasoned).unwrap()).len(), 1);
        assert_eq!(check(&Source::parse("crates/kvdb/src/memtable/arena.rs", reasoned).unwrap()).len(), 0);
    }
}
