//! Which arguments of which system call can name a file: the table that the assembly entry looks into.
//!
//! Thread safety: constants. Invariant: the numbers of [`Kind`] are the ones in `entry.rs`.

use libc as l;

/// How many system calls the table covers; higher numbers pass.
pub(crate) const CALLS: usize = 512;

/// Which arguments name a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// None.
    Pass = 0,
    /// 0 is a descriptor.
    Fd = 1,
    /// 0 is a path.
    Path = 2,
    /// 0 is a directory, 1 a path.
    At = 3,
    /// 0 and 1 are paths.
    Paths = 4,
    /// 1 is a path.
    Path1 = 5,
    /// 0 and 2 are directories, 1 and 3 paths.
    Ats = 6,
    /// 1 is a directory, 2 a path.
    At1 = 7,
    /// Always for [`crate::slow`].
    Always = 8,
    /// 4 is a descriptor, and memory may be replaced that is shared by way of the store.
    Fd4 = 9,
    /// 0 and 2 are descriptors.
    Fd02 = 10,
    /// 0 and 1 are descriptors.
    Fd01 = 11,
    /// 0 is a descriptor, and the message at 1 may bring descriptors.
    Receive = 12,
    /// 2 is a descriptor.
    Fd2 = 13,
    /// The current directory is asked for.
    Cwd = 14,
    /// Memory may be shared with other processes by way of the store.
    Memory = 15,
}

const LISTS: &[(Kind, &[i64])] = &[
    (
        Kind::Fd,
        &[
            l::SYS_read,
            l::SYS_write,
            l::SYS_close,
            l::SYS_fstat,
            l::SYS_lseek,
            l::SYS_ioctl,
            l::SYS_pread64,
            l::SYS_pwrite64,
            l::SYS_readv,
            l::SYS_writev,
            l::SYS_dup,
            l::SYS_fcntl,
            l::SYS_flock,
            l::SYS_fsync,
            l::SYS_fdatasync,
            l::SYS_ftruncate,
            l::SYS_getdents,
            l::SYS_getdents64,
            l::SYS_fchmod,
            l::SYS_fchown,
            l::SYS_fstatfs,
            l::SYS_readahead,
            l::SYS_fsetxattr,
            l::SYS_fgetxattr,
            l::SYS_flistxattr,
            l::SYS_fremovexattr,
            l::SYS_fadvise64,
            l::SYS_sync_file_range,
            l::SYS_fallocate,
            l::SYS_preadv,
            l::SYS_pwritev,
            l::SYS_preadv2,
            l::SYS_pwritev2,
            l::SYS_syncfs,
            l::SYS_vmsplice,
            l::SYS_connect,
            l::SYS_accept,
            l::SYS_accept4,
            l::SYS_sendto,
            l::SYS_recvfrom,
            l::SYS_sendmsg,
            l::SYS_sendmmsg,
            l::SYS_shutdown,
            l::SYS_bind,
            l::SYS_listen,
            l::SYS_getsockname,
            l::SYS_getpeername,
            l::SYS_setsockopt,
            l::SYS_getsockopt,
            451, // cachestat
        ],
    ),
    (
        Kind::Path,
        &[
            l::SYS_open,
            l::SYS_stat,
            l::SYS_lstat,
            l::SYS_access,
            l::SYS_truncate,
            l::SYS_mkdir,
            l::SYS_rmdir,
            l::SYS_creat,
            l::SYS_unlink,
            l::SYS_readlink,
            l::SYS_chmod,
            l::SYS_chown,
            l::SYS_lchown,
            l::SYS_utime,
            l::SYS_utimes,
            l::SYS_mknod,
            l::SYS_statfs,
            l::SYS_setxattr,
            l::SYS_lsetxattr,
            l::SYS_getxattr,
            l::SYS_lgetxattr,
            l::SYS_listxattr,
            l::SYS_llistxattr,
            l::SYS_removexattr,
            l::SYS_lremovexattr,
        ],
    ),
    (
        Kind::At,
        &[
            l::SYS_openat,
            l::SYS_mkdirat,
            l::SYS_mknodat,
            l::SYS_fchownat,
            l::SYS_futimesat,
            l::SYS_newfstatat,
            l::SYS_unlinkat,
            l::SYS_readlinkat,
            l::SYS_fchmodat,
            l::SYS_faccessat,
            l::SYS_utimensat,
            l::SYS_name_to_handle_at,
            l::SYS_statx,
            l::SYS_openat2,
            l::SYS_faccessat2,
            452, // fchmodat2
            463,
            464,
            465,
            466, // setxattrat, getxattrat, listxattrat, removexattrat
        ],
    ),
    (Kind::Paths, &[l::SYS_rename, l::SYS_link]),
    (Kind::Path1, &[l::SYS_symlink, l::SYS_inotify_add_watch]),
    (Kind::Ats, &[l::SYS_renameat, l::SYS_renameat2, l::SYS_linkat]),
    (Kind::At1, &[l::SYS_symlinkat]),
    (
        Kind::Always,
        &[
            l::SYS_execve,
            l::SYS_execveat,
            l::SYS_chdir,
            l::SYS_fchdir,
            l::SYS_io_uring_setup,
            l::SYS_pidfd_getfd,
            l::SYS_recvmmsg,
            l::SYS_close_range,
            l::SYS_umask,
        ],
    ),
    (Kind::Fd4, &[l::SYS_mmap]),
    (Kind::Fd02, &[l::SYS_copy_file_range, l::SYS_splice]),
    (Kind::Fd01, &[l::SYS_sendfile, l::SYS_dup2, l::SYS_dup3]),
    (Kind::Receive, &[l::SYS_recvmsg]),
    (Kind::Fd2, &[l::SYS_epoll_ctl]),
    (Kind::Cwd, &[l::SYS_getcwd]),
    (Kind::Memory, &[l::SYS_munmap, l::SYS_mremap, l::SYS_msync]),
];

/// The kind of each system call.
pub(crate) static KINDS: [Kind; CALLS] = table();

const fn table() -> [Kind; CALLS] {
    let mut kinds = [Kind::Pass; CALLS];
    let mut list = 0;
    while list < LISTS.len() {
        let (kind, calls) = LISTS[list];
        let mut at = 0;
        while at < calls.len() {
            kinds[calls[at] as usize] = kind;
            at += 1;
        }
        list += 1;
    }
    kinds
}

/// The kind of a system call.
pub(crate) fn kind(nr: u64) -> Kind {
    KINDS.get(nr as usize).copied().unwrap_or(Kind::Pass)
}
