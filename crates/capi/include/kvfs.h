/*
 * kvfs.h: the C library of kvfs, a transactional file system and key-value store, inside a program.
 *
 * This page says what holds for all functions; what only one does stands above it. Functions that are named as a call of
 * POSIX or Linux is (kvfs_open, kvfs_pread, ...) do what that call does, with the same arguments behind the process, the
 * same results, and the same errno. The manual page of the call is theirs; what differs is said here.
 *
 * Objects. All types are opaque. A kvfs_store is an open store. A kvfs_process is a user of it: identity, working directory,
 * umask, descriptors. Its descriptors are numbers of its own, beginning with 0, and mean nothing to the system or to
 * another process. A kvfs_txn is a transaction: what its processes do to files and keys happens at once when it is
 * committed, or not at all. A store is closed when all processes, transactions, directory streams and cursors are gone:
 *
 *     kvfs_store *store = kvfs_store_open("/var/lib/app/store", KVFS_CREATE, NULL);
 *     kvfs_process *process = kvfs_process_new(store);
 *     int fd = kvfs_open(process, "/notes", O_CREAT | O_RDWR, 0644);
 *     kvfs_write(process, fd, "hello", 5);
 *     kvfs_process_free(process);
 *     kvfs_store_close(store);
 *
 * A store belongs to one program at a time: one that is mounted, or open in another program, is refused with EBUSY.
 *
 * Who frees what. What a function named ..._new, ..._open, ..._begin, ..._fork, ..._process, ..._scan or ..._opendir returns
 * belongs to the caller, and ends with the function that its documentation names. The value of kvfs_kv_get is given back by
 * kvfs_free. Every other pointer that is returned belongs to the object that it came from, and is valid as long as its
 * function says. The library keeps no pointer of the caller behind the end of a call.
 *
 * Errors. A function that returns an int or a length returns -1, one that returns a pointer returns NULL, and errno says why.
 * What fails has changed nothing, unless POSIX says otherwise. kvfs_last_error() has a sentence about the last failure of
 * the thread. NULL where none may be is EFAULT. A failure inside of the library that should never be is EIO; it does not
 * leave the library in another way. errno is left alone by what succeeds.
 *
 * Threads. Stores, processes and transactions are used by any number of threads at once; kvfs_dir, kvfs_cursor and
 * kvfs_options by one at a time. A function that ends an object must be the last one that gets it. A store has threads of
 * its own, so a child of fork(2) must not use it, but may go on to execve(2).
 *
 * Units and types. Sizes and offsets are bytes; off_t has 64 bits (compile with -D_FILE_OFFSET_BITS=64 where it has not);
 * paths and names of files are any bytes but zero, names of keyspaces and snapshots UTF-8; keys have 1 to 4096 bytes.
 * The structures are those of the system: <sys/stat.h>, <sys/statvfs.h>, <sys/uio.h>, <dirent.h>, <fcntl.h>, <utime.h>.
 *
 * Durability. What was written survives the end of the program when kvfs_store_close has returned 0, and a power cut when
 * kvfs_fsync, kvfs_sync, kvfs_store_sync or kvfs_txn_commit has. In between a store keeps a prefix of what was done.
 */


#ifndef KVFS_H
#define KVFS_H


#include <dirent.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <utime.h>

/* <sys/stat.h> has it with _GNU_SOURCE. */
struct statx;

#if defined(__cplusplus)
static_assert(sizeof(off_t) == 8, "kvfs needs an off_t of 64 bits: -D_FILE_OFFSET_BITS=64");
#else
_Static_assert(sizeof(off_t) == 8, "kvfs needs an off_t of 64 bits: -D_FILE_OFFSET_BITS=64");
#endif


/*
 For kvfs_store_open: nothing is written.
 */
#define KVFS_RDONLY 1

/*
 For kvfs_store_open: a store is made where none is.
 */
#define KVFS_CREATE 2

/*
 For kvfs_store_open, with KVFS_CREATE: fails with EEXIST where one is.
 */
#define KVFS_EXCL 4

/*
 For kvfs_options_set_atime: access times change if they are older than the last change, or than a day.
 */
#define KVFS_ATIME_RELATIVE 0

/*
 For kvfs_options_set_atime: they never change.
 */
#define KVFS_ATIME_NEVER 1

/*
 For kvfs_options_set_atime: they change with every read.
 */
#define KVFS_ATIME_ALWAYS 2

/*
 For kvfs_txn_begin: what it reads must not be changed by others until it is committed, either.
 */
#define KVFS_SERIALIZABLE 1

/*
 A walk over keys, in their order, as they are at its beginning.
 */
typedef struct kvfs_cursor kvfs_cursor;

/*
 A directory that is being listed.
 */
typedef struct kvfs_dir kvfs_dir;

/*
 A piece of a file in memory.
 */
typedef struct kvfs_mapping kvfs_mapping;

/*
 How a store is made and opened.
 */
typedef struct kvfs_options kvfs_options;

/*
 A user of a store.
 */
typedef struct kvfs_process kvfs_process;

/*
 An open store.
 */
typedef struct kvfs_store kvfs_store;

/*
 An open transaction.
 */
typedef struct kvfs_txn kvfs_txn;

/*
 A change of a key, for kvfs_kv_write.
 */
typedef struct kvfs_change {
    /*
     Which key.
     */
    const void *key;
    /*
     Length of the key.
     */
    size_t key_size;
    /*
     What is put there; NULL: the key is removed.
     */
    const void *value;
    /*
     Length of the value.
     */
    size_t value_size;
} kvfs_change;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Why the last function of this library that failed in this thread did: a sentence in English, valid until
 the next one fails. Never NULL.
 */
const char *kvfs_last_error(void);

/*
 Gives back what a function of this library has allocated for the caller. NULL: nothing happens.
 */
void kvfs_free(void *memory);

/*
 The version of the library, such as "0.1.0".
 */
const char *kvfs_version(void);

/*
 Options as they are by default. Free them with kvfs_options_free.
 */
struct kvfs_options *kvfs_options_new(void);

/*
 Frees options; a store that was opened with them does not need them. NULL: nothing happens.
 */
void kvfs_options_free(struct kvfs_options *options);

/*
 How much memory the store may take: at least 64 MiB; 0, the default: a quarter of the machine's, at most 2
 GiB.
 */
int kvfs_options_set_memory(struct kvfs_options *options, uint64_t bytes);

/*
 How large a new store may become: at least 128 MiB; 0, the default: what the file system around it can
 give. Its file grows as it is needed.
 */
int kvfs_options_set_capacity(struct kvfs_options *options, uint64_t bytes);

/*
 Files of a new store up to this size lie beside their names. Default: 4096.
 */
int kvfs_options_set_inline(struct kvfs_options *options, uint64_t bytes);

/*
 How long a change may wait until it is durable where nothing syncs it. 0: as it is by default.
 */
int kvfs_options_set_commit_interval(struct kvfs_options *options, uint64_t milliseconds);

/*
 When access times change: KVFS_ATIME_RELATIVE (default), KVFS_ATIME_NEVER, KVFS_ATIME_ALWAYS.
 EINVAL: none of them.
 */
int kvfs_options_set_atime(struct kvfs_options *options, int policy);

/*
 Makes a store in the directory path, which is made, too, when it is missing; options may be NULL.

 EBUSY: the directory is not empty, or on a mounted store. ENOSPC: a store needs more. EACCES: other users
 may write to the directory. EINVAL: options that no store can have. What fails leaves nothing behind.
 */
int kvfs_store_format(const char *path, const struct kvfs_options *options);

/*
 Opens the store in the directory path: a store that kvfs mkfs or kvfs_store_format has made.
 flags: 0, or of KVFS_RDONLY, KVFS_CREATE, KVFS_EXCL. options may be NULL. Close it with
 kvfs_store_close.

 If a daemon has the store open, mounted or not, that daemon does what this program calls, as the user that
 the program runs as (kvfs_store_is_served). path may also be the directory where it is mounted, empty
 or not: with KVFS_CREATE, too, none is made there. options are then the daemon's, and there are files,
 keys and transactions: calls for snapshots fail with ENOTSUP. All fail with ENOTCONN when the daemon is
 gone.

 EBUSY: another program has it open, or a daemon, and it is to be read only (KVFS_RDONLY). ENOENT:
 nothing is there. EINVAL: something else is there. EACCES: it is another user's, or other users may write
 to its directory. EIO: it is damaged.
 */
struct kvfs_store *kvfs_store_open(const char *path, int flags, const struct kvfs_options *options);

/*
 Returns 1 if a daemon has the store open and does the calls of this program, 0 if this process has it open
 itself.
 */
int kvfs_store_is_served(const struct kvfs_store *store);

/*
 Writes everything out and closes the store.

 EBUSY: processes, transactions, directory streams or cursors of it are left; the store stays open. With
 any other error it is closed, and what was not durable may be lost.
 */
int kvfs_store_close(struct kvfs_store *store);

/*
 Everything done so far in the store survives a power cut when this returns 0.
 */
int kvfs_store_sync(const struct kvfs_store *store);

/*
 A process that acts for the user that runs this program: working directory /, umask 022, no open files.
 Free it with kvfs_process_free.
 */
struct kvfs_process *kvfs_process_new(const struct kvfs_store *store);

/*
 As kvfs_process_new, for another user, with group_count further groups. User 0 may do everything.

 EPERM: a daemon has the store open, and this program runs neither as root nor as the user that the daemon
 runs as.
 */
struct kvfs_process *kvfs_process_new_as(const struct kvfs_store *store,
                                         uid_t uid,
                                         gid_t gid,
                                         const gid_t *groups,
                                         size_t group_count);

/*
 A child of process, as fork(2) makes it: the same open files with the same offsets, the same working
 directory and umask; no locks of ranges.
 */
struct kvfs_process *kvfs_process_fork(const struct kvfs_process *process);

/*
 Closes the descriptors of process that have FD_CLOEXEC, as execve(2) does.
 */
int kvfs_process_exec(const struct kvfs_process *process);

/*
 Ends a process: its descriptors are closed and its locks end, when its directory streams are closed, too.
 NULL: nothing happens.
 */
void kvfs_process_free(struct kvfs_process *process);

/*
 umask(2). Returns the mask of before.
 */
int kvfs_umask(const struct kvfs_process *process, mode_t mask);

/*
 chdir(2).
 */
int kvfs_chdir(const struct kvfs_process *process, const char *path);

/*
 fchdir(2).
 */
int kvfs_fchdir(const struct kvfs_process *process, int fd);

/*
 getcwd(3); buffer must not be NULL. ERANGE: it is too small.
 */
char *kvfs_getcwd(const struct kvfs_process *process, char *buffer, size_t size);

/*
 open(2). mode counts if the file is made. All of O_APPEND, O_CLOEXEC, O_CREAT, O_DIRECTORY,
 O_DSYNC, O_EXCL, O_NOATIME, O_NOFOLLOW, O_PATH, O_SYNC, O_TMPFILE, O_TRUNC; O_DIRECT,
 O_NOCTTY, O_NONBLOCK change nothing.
 */
int kvfs_open(const struct kvfs_process *process, const char *path, int flags, mode_t mode);

/*
 openat(2).
 */
int kvfs_openat(const struct kvfs_process *process, int directory, const char *path, int flags, mode_t mode);

/*
 creat(2).
 */
int kvfs_creat(const struct kvfs_process *process, const char *path, mode_t mode);

/*
 close(2).
 */
int kvfs_close(const struct kvfs_process *process, int fd);

/*
 dup(2).
 */
int kvfs_dup(const struct kvfs_process *process, int fd);

/*
 dup2(2).
 */
int kvfs_dup2(const struct kvfs_process *process, int fd, int new_fd);

/*
 dup3(2): flags is 0 or O_CLOEXEC.
 */
int kvfs_dup3(const struct kvfs_process *process, int fd, int new_fd, int flags);

/*
 fcntl(2) with F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_SETFL; locks are taken by
 kvfs_fcntl_lock.
 */
int kvfs_fcntl(const struct kvfs_process *process, int fd, int command, long argument);

/*
 read(2).
 */
ssize_t kvfs_read(const struct kvfs_process *process, int fd, void *buffer, size_t size);

/*
 pread(2).
 */
ssize_t kvfs_pread(const struct kvfs_process *process, int fd, void *buffer, size_t size, off_t offset);

/*
 write(2).
 */
ssize_t kvfs_write(const struct kvfs_process *process, int fd, const void *data, size_t size);

/*
 pwrite(2). To the end of the file, if it is open with O_APPEND, as on Linux.
 */
ssize_t kvfs_pwrite(const struct kvfs_process *process, int fd, const void *data, size_t size, off_t offset);

/*
 readv(2).
 */
ssize_t kvfs_readv(const struct kvfs_process *process, int fd, const struct iovec *vectors, int count);

/*
 preadv(2).
 */
ssize_t kvfs_preadv(const struct kvfs_process *process, int fd, const struct iovec *vectors, int count, off_t offset);

/*
 writev(2).
 */
ssize_t kvfs_writev(const struct kvfs_process *process, int fd, const struct iovec *vectors, int count);

/*
 pwritev(2).
 */
ssize_t kvfs_pwritev(const struct kvfs_process *process, int fd, const struct iovec *vectors, int count, off_t offset);

/*
 preadv2(2). Offset -1: that of the open file. flags: 0 or RWF_HIPRI, which changes nothing;
 EOPNOTSUPP: others.
 */
ssize_t kvfs_preadv2(const struct kvfs_process *process,
                     int fd,
                     const struct iovec *vectors,
                     int count,
                     off_t offset,
                     int flags);

/*
 pwritev2(2). Offset -1: that of the open file. flags: of RWF_DSYNC, RWF_SYNC, and RWF_HIPRI, which
 changes nothing; EOPNOTSUPP: others.
 */
ssize_t kvfs_pwritev2(const struct kvfs_process *process,
                      int fd,
                      const struct iovec *vectors,
                      int count,
                      off_t offset,
                      int flags);

/*
 lseek(2), with SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA, SEEK_HOLE.
 */
off_t kvfs_lseek(const struct kvfs_process *process, int fd, off_t offset, int whence);

/*
 fsync(2): the file survives a power cut when this returns 0.
 */
int kvfs_fsync(const struct kvfs_process *process, int fd);

/*
 fdatasync(2); does what kvfs_fsync does.
 */
int kvfs_fdatasync(const struct kvfs_process *process, int fd);

/*
 sync(2), of the store alone, with a result: 0, or -1.
 */
int kvfs_sync(const struct kvfs_process *process);

/*
 truncate(2).
 */
int kvfs_truncate(const struct kvfs_process *process, const char *path, off_t length);

/*
 ftruncate(2).
 */
int kvfs_ftruncate(const struct kvfs_process *process, int fd, off_t length);

/*
 fallocate(2): mode is 0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
 FALLOC_FL_ZERO_RANGE with or without FALLOC_FL_KEEP_SIZE; EOPNOTSUPP: others.
 */
int kvfs_fallocate(const struct kvfs_process *process, int fd, int mode, off_t offset, off_t length);

/*
 copy_file_range(2): offsets may be NULL; flags is 0.
 */
ssize_t kvfs_copy_file_range(const struct kvfs_process *process,
                             int from,
                             off_t *from_offset,
                             int to,
                             off_t *to_offset,
                             size_t length,
                             unsigned int flags);

/*
 mkdir(2).
 */
int kvfs_mkdir(const struct kvfs_process *process, const char *path, mode_t mode);

/*
 mkdirat(2).
 */
int kvfs_mkdirat(const struct kvfs_process *process, int directory, const char *path, mode_t mode);

/*
 rmdir(2).
 */
int kvfs_rmdir(const struct kvfs_process *process, const char *path);

/*
 mknod(2): a file, fifo, socket or device node.
 */
int kvfs_mknod(const struct kvfs_process *process, const char *path, mode_t mode, dev_t device);

/*
 mknodat(2).
 */
int kvfs_mknodat(const struct kvfs_process *process, int directory, const char *path, mode_t mode, dev_t device);

/*
 mkfifo(3).
 */
int kvfs_mkfifo(const struct kvfs_process *process, const char *path, mode_t mode);

/*
 symlink(2).
 */
int kvfs_symlink(const struct kvfs_process *process, const char *target, const char *path);

/*
 symlinkat(2).
 */
int kvfs_symlinkat(const struct kvfs_process *process, const char *target, int directory, const char *path);

/*
 readlink(2): no zero byte is put behind the content.
 */
ssize_t kvfs_readlink(const struct kvfs_process *process, const char *path, char *buffer, size_t size);

/*
 readlinkat(2).
 */
ssize_t kvfs_readlinkat(const struct kvfs_process *process,
                        int directory,
                        const char *path,
                        char *buffer,
                        size_t size);

/*
 link(2): of a symbolic link itself.
 */
int kvfs_link(const struct kvfs_process *process, const char *old_path, const char *new_path);

/*
 linkat(2): flags is 0, or of AT_SYMLINK_FOLLOW, AT_EMPTY_PATH.
 */
int kvfs_linkat(const struct kvfs_process *process,
                int old_directory,
                const char *old_path,
                int new_directory,
                const char *new_path,
                int flags);

/*
 unlink(2).
 */
int kvfs_unlink(const struct kvfs_process *process, const char *path);

/*
 unlinkat(2): flags is 0 or AT_REMOVEDIR.
 */
int kvfs_unlinkat(const struct kvfs_process *process, int directory, const char *path, int flags);

/*
 remove(3): a name, or an empty directory.
 */
int kvfs_remove(const struct kvfs_process *process, const char *path);

/*
 Removes a name, and a directory with all that is below: all of it or nothing, and for user 0 in constant
 time; its space comes back in the background. Outside of transactions it is one of its own, durable when
 this returns.

 EACCES, EPERM: something in it may not be removed, and kvfs_last_error says what. ECANCELED: a
 transaction is in the way. Others as for rmdir(2).
 */
int kvfs_remove_tree(const struct kvfs_process *process, const char *path);

/*
 Makes a name, and a directory with all that is below, a second time where nothing is yet: all of it or
 nothing. Content is not copied, but shared until it is overwritten. Outside of transactions it is one of
 its own, durable when this returns.

 EEXIST. EINVAL: the root, or the new one lies in the old one. EACCES, EPERM: something in it may not be
 read, or is a device, and kvfs_last_error says what. ECANCELED: a transaction is in the way. Others as
 for mkdir(2).
 */
int kvfs_clone_tree(const struct kvfs_process *process, const char *old_path, const char *new_path);

/*
 rename(2).
 */
int kvfs_rename(const struct kvfs_process *process, const char *old_path, const char *new_path);

/*
 renameat(2).
 */
int kvfs_renameat(const struct kvfs_process *process,
                  int old_directory,
                  const char *old_path,
                  int new_directory,
                  const char *new_path);

/*
 renameat2(2): flags is 0, RENAME_NOREPLACE, RENAME_EXCHANGE, or RENAME_WHITEOUT with
 RENAME_NOREPLACE or without.
 */
int kvfs_renameat2(const struct kvfs_process *process,
                   int old_directory,
                   const char *old_path,
                   int new_directory,
                   const char *new_path,
                   unsigned int flags);

/*
 stat(2). Of a directory, st_size is the number of its entries; st_dev is 0.
 */
int kvfs_stat(const struct kvfs_process *process, const char *path, struct stat *buffer);

/*
 lstat(2).
 */
int kvfs_lstat(const struct kvfs_process *process, const char *path, struct stat *buffer);

/*
 fstat(2).
 */
int kvfs_fstat(const struct kvfs_process *process, int fd, struct stat *buffer);

/*
 fstatat(2): flags of AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH.
 */
int kvfs_fstatat(const struct kvfs_process *process, int directory, const char *path, struct stat *buffer, int flags);

/*
 statx(2): all that is known, whatever mask asks for, the time of birth as well. flags of
 AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH, and those about synchronization, which change nothing.
 */
int kvfs_statx(const struct kvfs_process *process,
               int directory,
               const char *path,
               int flags,
               unsigned int mask,
               struct statx *buffer);

/*
 statvfs(3): of the store.
 */
int kvfs_statvfs(const struct kvfs_process *process, const char *path, struct statvfs *buffer);

/*
 fstatvfs(3).
 */
int kvfs_fstatvfs(const struct kvfs_process *process, int fd, struct statvfs *buffer);

/*
 access(2): how is F_OK, or of R_OK, W_OK, X_OK.
 */
int kvfs_access(const struct kvfs_process *process, const char *path, int how);

/*
 faccessat(2): flags of AT_EACCESS, which changes nothing, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH.
 */
int kvfs_faccessat(const struct kvfs_process *process, int directory, const char *path, int how, int flags);

/*
 chmod(2).
 */
int kvfs_chmod(const struct kvfs_process *process, const char *path, mode_t mode);

/*
 fchmod(2).
 */
int kvfs_fchmod(const struct kvfs_process *process, int fd, mode_t mode);

/*
 fchmodat(2): flags of AT_SYMLINK_NOFOLLOW (EOPNOTSUPP: it is a symbolic link), AT_EMPTY_PATH.
 */
int kvfs_fchmodat(const struct kvfs_process *process, int directory, const char *path, mode_t mode, int flags);

/*
 chown(2): -1 leaves user or group as it is.
 */
int kvfs_chown(const struct kvfs_process *process, const char *path, uid_t uid, gid_t gid);

/*
 lchown(2).
 */
int kvfs_lchown(const struct kvfs_process *process, const char *path, uid_t uid, gid_t gid);

/*
 fchown(2).
 */
int kvfs_fchown(const struct kvfs_process *process, int fd, uid_t uid, gid_t gid);

/*
 fchownat(2): flags of AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH.
 */
int kvfs_fchownat(const struct kvfs_process *process,
                  int directory,
                  const char *path,
                  uid_t uid,
                  gid_t gid,
                  int flags);

/*
 utime(2): NULL means now.
 */
int kvfs_utime(const struct kvfs_process *process, const char *path, const struct utimbuf *times);

/*
 utimensat(2): times are two, or NULL: now; UTIME_NOW and UTIME_OMIT mean what they do on Linux.
 flags of AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH.
 */
int kvfs_utimensat(const struct kvfs_process *process,
                   int directory,
                   const char *path,
                   const struct timespec *times,
                   int flags);

/*
 futimens(3).
 */
int kvfs_futimens(const struct kvfs_process *process, int fd, const struct timespec *times);

/*
 getxattr(2): size 0 asks for the length. ERANGE: the buffer is too small.
 */
ssize_t kvfs_getxattr(const struct kvfs_process *process,
                      const char *path,
                      const char *name,
                      void *buffer,
                      size_t size);

/*
 lgetxattr(2).
 */
ssize_t kvfs_lgetxattr(const struct kvfs_process *process,
                       const char *path,
                       const char *name,
                       void *buffer,
                       size_t size);

/*
 fgetxattr(2).
 */
ssize_t kvfs_fgetxattr(const struct kvfs_process *process, int fd, const char *name, void *buffer, size_t size);

/*
 setxattr(2): flags is 0, XATTR_CREATE or XATTR_REPLACE.
 */
int kvfs_setxattr(const struct kvfs_process *process,
                  const char *path,
                  const char *name,
                  const void *value,
                  size_t size,
                  int flags);

/*
 lsetxattr(2).
 */
int kvfs_lsetxattr(const struct kvfs_process *process,
                   const char *path,
                   const char *name,
                   const void *value,
                   size_t size,
                   int flags);

/*
 fsetxattr(2).
 */
int kvfs_fsetxattr(const struct kvfs_process *process,
                   int fd,
                   const char *name,
                   const void *value,
                   size_t size,
                   int flags);

/*
 listxattr(2): names, each with a zero byte behind it; size 0 asks for the length.
 */
ssize_t kvfs_listxattr(const struct kvfs_process *process, const char *path, char *buffer, size_t size);

/*
 llistxattr(2).
 */
ssize_t kvfs_llistxattr(const struct kvfs_process *process, const char *path, char *buffer, size_t size);

/*
 flistxattr(2).
 */
ssize_t kvfs_flistxattr(const struct kvfs_process *process, int fd, char *buffer, size_t size);

/*
 removexattr(2).
 */
int kvfs_removexattr(const struct kvfs_process *process, const char *path, const char *name);

/*
 lremovexattr(2).
 */
int kvfs_lremovexattr(const struct kvfs_process *process, const char *path, const char *name);

/*
 fremovexattr(2).
 */
int kvfs_fremovexattr(const struct kvfs_process *process, int fd, const char *name);

/*
 flock(2): LOCK_SH, LOCK_EX or LOCK_UN, with LOCK_NB or without.
 */
int kvfs_flock(const struct kvfs_process *process, int fd, int operation);

/*
 fcntl(2) with F_GETLK, F_SETLK, F_SETLKW (of the process) and F_OFD_GETLK, F_OFD_SETLK,
 F_OFD_SETLKW (of the open file). Where a lock is in the way, its l_pid is -1.
 */
int kvfs_fcntl_lock(const struct kvfs_process *process, int fd, int command, struct flock *lock);

/*
 Copies length bytes of an open file from offset on into memory, with zeros behind its end: mmap(2) for
 files whose blocks no memory shows. fd has to stay open until the last kvfs_mapping_sync. Free it with
 kvfs_unmap.

 EBADF: not open for reading. EINVAL: no length, or an offset below 0. ENOMEM.
 */
struct kvfs_mapping *kvfs_map(const struct kvfs_process *process, int fd, off_t offset, size_t length);

/*
 The memory, length bytes that may be read and written until kvfs_unmap.
 */
void *kvfs_mapping_data(struct kvfs_mapping *mapping);

/*
 Writes the bytes that were changed to the file, no further than it goes; what others have written between
 and behind them stays. Others that map or read it see them then; kvfs_fsync makes them durable.

 EBADF: not open for writing. ENODEV: open for appending.
 */
int kvfs_mapping_sync(const struct kvfs_process *process, struct kvfs_mapping *mapping);

/*
 Frees a mapping. What was changed since the last kvfs_mapping_sync is lost. NULL: nothing happens.
 */
void kvfs_unmap(struct kvfs_mapping *mapping);

/*
 opendir(3). Close the stream with kvfs_closedir.
 */
struct kvfs_dir *kvfs_opendir(const struct kvfs_process *process, const char *path);

/*
 fdopendir(3): the descriptor is the stream's from then on.
 */
struct kvfs_dir *kvfs_fdopendir(const struct kvfs_process *process, int fd);

/*
 readdir(3): the next entry, valid until the next call on the stream. At the end NULL, and errno is not
 changed.
 */
const struct dirent *kvfs_readdir(struct kvfs_dir *directory);

/*
 telldir(3).
 */
long kvfs_telldir(struct kvfs_dir *directory);

/*
 seekdir(3): to where kvfs_telldir was, or the d_off of an entry says.
 */
void kvfs_seekdir(struct kvfs_dir *directory, long offset);

/*
 rewinddir(3).
 */
void kvfs_rewinddir(struct kvfs_dir *directory);

/*
 dirfd(3): a descriptor of the process that has opened the stream.
 */
int kvfs_dirfd(struct kvfs_dir *directory);

/*
 closedir(3).
 */
int kvfs_closedir(struct kvfs_dir *directory);

/*
 Begins a transaction over files and keys: its processes see what others had committed by now, and their
 own changes; others see these when it is committed. flags: 0 or KVFS_SERIALIZABLE; name, for the
 list of transactions, may be NULL. End it with kvfs_txn_commit or kvfs_txn_abort.

 EROFS: the store was opened for reading.
 */
struct kvfs_txn *kvfs_txn_begin(const struct kvfs_store *store, int flags, const char *name);

/*
 As kvfs_process_new, in the transaction. Its calls fail with ESTALE when the transaction has ended, with
 ECANCELED when it can't be committed any more.
 */
struct kvfs_process *kvfs_txn_process(const struct kvfs_txn *txn);

/*
 As kvfs_process_new_as, in the transaction.
 */
struct kvfs_process *kvfs_txn_process_as(const struct kvfs_txn *txn,
                                         uid_t uid,
                                         gid_t gid,
                                         const gid_t *groups,
                                         size_t group_count);

/*
 Commits everything at once, durably, and frees the transaction, whatever this returns. Its processes are
 to be freed as well.

 ECANCELED: others have changed what this transaction has changed, or, if it is serializable, read; nothing
 has happened, and it can be tried again from its beginning. EIO: committed, but it may not survive a power
 cut.
 */
int kvfs_txn_commit(struct kvfs_txn *txn);

/*
 Ends a transaction of which nothing has happened, and frees it. NULL: nothing happens.
 */
void kvfs_txn_abort(struct kvfs_txn *txn);

/*
 The value under a key, in memory that the caller frees with kvfs_free, a zero byte behind it; its length
 is put to value_size, which may be NULL. ENOENT: there is no such key, or no such keyspace. EACCES: the
 keyspace is another user's.
 */
void *kvfs_kv_get(const struct kvfs_process *process,
                  const char *keyspace,
                  const void *key,
                  size_t key_size,
                  size_t *value_size);

/*
 Puts a value under a key; the keyspace is made if there is none. It is durable after a sync, or, in a
 transaction, with that.
 */
int kvfs_kv_put(const struct kvfs_process *process,
                const char *keyspace,
                const void *key,
                size_t key_size,
                const void *value,
                size_t value_size);

/*
 Makes count changes at once, all or none, as one write; the keyspace is made if there is none. EINVAL:
 of one of them the key is empty or too long, or the value too long. E2BIG: there are more than 10,000, or
 a daemon has the store, and all keys and values are more than 1 MiB.
 */
int kvfs_kv_write(const struct kvfs_process *process,
                  const char *keyspace,
                  const struct kvfs_change *changes,
                  size_t count);

/*
 Removes a key. Returns 1, or 0 if there was none.
 */
int kvfs_kv_delete(const struct kvfs_process *process, const char *keyspace, const void *key, size_t key_size);

/*
 Removes the keys from start (NULL: the first) up to, but without, end (NULL: all behind).
 */
int kvfs_kv_delete_range(const struct kvfs_process *process,
                         const char *keyspace,
                         const void *start,
                         size_t start_size,
                         const void *end,
                         size_t end_size);

/*
 A walk over the keys from start (NULL: the first) up to, but without, end (NULL: the last one comes,
 too). It stands before the first one. Free it with kvfs_cursor_free.

 Of a store that a daemon has, outside of transactions, the walk reads some 64 KiB at a time: what others
 change behind that is seen.
 */
struct kvfs_cursor *kvfs_kv_scan(const struct kvfs_process *process,
                                 const char *keyspace,
                                 const void *start,
                                 size_t start_size,
                                 const void *end,
                                 size_t end_size);

/*
 Goes to the next key. Returns 1, or 0 behind the last one.
 */
int kvfs_cursor_next(struct kvfs_cursor *cursor);

/*
 Goes to the key before; from the beginning of the walk, to the last one. Returns 1, or 0 before the first
 one.
 */
int kvfs_cursor_prev(struct kvfs_cursor *cursor);

/*
 The key at which the walk is, until it goes on; its length is put to size. EINVAL: it is at none.
 */
const void *kvfs_cursor_key(struct kvfs_cursor *cursor, size_t *size);

/*
 The value at which the walk is, until it goes on; its length is put to size. EINVAL: it is at none.
 */
const void *kvfs_cursor_value(struct kvfs_cursor *cursor, size_t *size);

/*
 Ends a walk. NULL: nothing happens.
 */
void kvfs_cursor_free(struct kvfs_cursor *cursor);

/*
 Makes a keyspace, durably; mode says who may read (4) and write (2) keys, as of a file. EEXIST: there is
 one.
 */
int kvfs_keyspace_create(const struct kvfs_process *process, const char *name, mode_t mode);

/*
 Removes a keyspace with all its keys; outside of transactions. ENOENT: there is none. EPERM: it is another
 user's.
 */
int kvfs_keyspace_drop(const struct kvfs_process *process, const char *name);

/*
 The names of the keyspaces that the user may use, each with a zero byte behind it. Returns the length;
 size 0 asks for it. ERANGE: the buffer is too small.
 */
ssize_t kvfs_keyspace_list(const struct kvfs_process *process, char *buffer, size_t size);

/*
 Gives the state of now a name; what open transactions have written is not in it.

 EEXIST: the name is taken. EINVAL: it can't be one.
 */
int kvfs_snapshot_create(const struct kvfs_store *store, const char *name);

/*
 Takes the name of a snapshot away; what only it held is freed. ENOENT: there is none.
 */
int kvfs_snapshot_delete(const struct kvfs_store *store, const char *name);

/*
 The names of all snapshots, oldest first, each with a zero byte behind it. Returns the length; size 0 asks
 for it. ERANGE: the buffer is too small.
 */
ssize_t kvfs_snapshot_list(const struct kvfs_store *store, char *buffer, size_t size);

/*
 As kvfs_process_new, in a snapshot: its calls show what there was, files and keys, and change nothing
 (EROFS). Set-id bits and devices are shown as none. ENOENT: there is none of that name.
 */
struct kvfs_process *kvfs_snapshot_process(const struct kvfs_store *store, const char *name);

/*
 As kvfs_process_new_as, in a snapshot.
 */
struct kvfs_process *kvfs_snapshot_process_as(const struct kvfs_store *store,
                                              const char *name,
                                              uid_t uid,
                                              gid_t gid,
                                              const gid_t *groups,
                                              size_t group_count);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KVFS_H */
