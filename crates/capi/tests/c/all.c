/* Every function of kvfs.h, also where it fails. usage: all DIRECTORY (an empty one), or: all DIRECTORY served
   (another process has the store in DIRECTORY/store open, and serves it) */

#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "check.h"

static char store_path[1 << 19];
static kvfs_store *store;
static kvfs_process *p;
static int is_served;

static kvfs_options *small_options(void) {
    kvfs_options *options = kvfs_options_new();
    CHECK(options);
    CHECK(kvfs_options_set_memory(options, 64 << 20) == 0);
    CHECK(kvfs_options_set_capacity(options, 512 << 20) == 0);
    CHECK(kvfs_options_set_inline(options, 4096) == 0);
    CHECK(kvfs_options_set_commit_interval(options, 1000) == 0);
    CHECK(kvfs_options_set_atime(options, KVFS_ATIME_ALWAYS) == 0);
    CHECK(kvfs_options_set_atime(options, KVFS_ATIME_NEVER) == 0);
    CHECK(kvfs_options_set_atime(options, KVFS_ATIME_RELATIVE) == 0);
    FAILS(EINVAL, kvfs_options_set_atime(options, 7));
    FAILS(EFAULT, kvfs_options_set_memory(NULL, 1));
    return options;
}

static void stores(const char *directory) {
    char other[4200];
    kvfs_options *options = small_options();
    kvfs_store *again;
    snprintf(store_path, sizeof store_path, "%s/store", directory);
    CHECK(strcmp(kvfs_version(), KVFS_TEST_VERSION) == 0);
    IS_NULL(ENOENT, kvfs_store_open(store_path, 0, options));
    IS_NULL(EINVAL, kvfs_store_open(store_path, 64, options));
    IS_NULL(EINVAL, kvfs_store_open(store_path, KVFS_CREATE | KVFS_RDONLY, options));
    IS_NULL(EFAULT, kvfs_store_open(NULL, 0, options));
    IS_NULL(ENOENT, kvfs_store_open("", 0, options));
    CHECK(kvfs_store_format(store_path, options) == 0);
    FAILS(EBUSY, kvfs_store_format(store_path, options));
    IS_NULL(EEXIST, kvfs_store_open(store_path, KVFS_CREATE | KVFS_EXCL, options));
    CHECK((store = kvfs_store_open(store_path, 0, options)));
    CHECK(kvfs_store_is_served(store) == 0);
    FAILS(EFAULT, kvfs_store_is_served(NULL));
    IS_NULL(EBUSY, kvfs_store_open(store_path, 0, options));
    CHECK(kvfs_store_sync(store) == 0);
    CHECK(kvfs_store_close(store) == 0);
    CHECK((store = kvfs_store_open(store_path, KVFS_CREATE, options)));

    snprintf(other, sizeof other, "%s/other", directory);
    CHECK(mkdir(other, 0700) == 0);
    IS_NULL(EINVAL, kvfs_store_open(other, 0, options));
    CHECK((again = kvfs_store_open(other, KVFS_CREATE, options)));
    CHECK(kvfs_store_close(again) == 0);
    CHECK(kvfs_options_set_capacity(options, 1 << 20) == 0);
    snprintf(other, sizeof other, "%s/third", directory);
    FAILS(ENOSPC, kvfs_store_format(other, options));
    CHECK(access(other, F_OK) == -1);
    CHECK(kvfs_options_set_memory(options, 1) == 0);
    IS_NULL(EINVAL, kvfs_store_open(store_path, 0, options));
    CHECK(kvfs_options_set_inline(options, 1 << 30) == 0 && kvfs_options_set_capacity(options, 0) == 0);
    FAILS(EINVAL, kvfs_store_format(other, options));
    CHECK(access(other, F_OK) == -1);
    IS_NULL(EBUSY, kvfs_store_open(store_path, KVFS_RDONLY, NULL));
    kvfs_options_free(options);
    kvfs_options_free(NULL);
    FAILS(EFAULT, kvfs_store_close(NULL));
    FAILS(EFAULT, kvfs_store_sync(NULL));
}

static void served_store(const char *directory) {
    kvfs_options *options = small_options();
    snprintf(store_path, sizeof store_path, "%s/store", directory);
    FAILS(EBUSY, kvfs_store_format(store_path, options));
    IS_NULL(EEXIST, kvfs_store_open(store_path, KVFS_CREATE | KVFS_EXCL, options));
    IS_NULL(EBUSY, kvfs_store_open(store_path, KVFS_RDONLY, options));
    CHECK((store = kvfs_store_open(store_path, KVFS_CREATE, options)));
    CHECK(kvfs_store_is_served(store) == 1);
    CHECK(kvfs_store_sync(store) == 0);
    CHECK(kvfs_store_close(store) == 0);
    CHECK((store = kvfs_store_open(store_path, 0, NULL)));
    kvfs_options_free(options);
}

static void not_served(void) {
    struct kvfs_change changes[] = {{"a", 1, store_path, 1 << 19}, {"b", 1, store_path, 1 << 19}, {"c", 1, store_path, 1 << 15}};
    FAILS(E2BIG, kvfs_kv_write(p, "app", changes, 3));
    FAILS(ENOTSUP, kvfs_snapshot_create(store, "monday"));
    IS_NULL(ENOTSUP, kvfs_snapshot_process(store, "monday"));
}

static void processes(void) {
    gid_t groups[] = {7, 8};
    kvfs_process *user, *child;
    char path[64];
    int fd;
    CHECK((p = kvfs_process_new_as(store, 0, 0, NULL, 0)));
    CHECK((user = kvfs_process_new(store)));
    kvfs_process_free(user);
    kvfs_process_free(NULL);
    IS_NULL(EFAULT, kvfs_process_new(NULL));
    CHECK((user = kvfs_process_new_as(store, 1000, 1000, groups, 2)));
    FAILS(EACCES, kvfs_mkdir(user, "/mine", 0755));
    CHECK(kvfs_chmod(p, "/", 01777) == 0);
    CHECK(kvfs_mkdir(user, "/mine", 0755) == 0);
    CHECK(kvfs_umask(user, 077) == 022);
    CHECK(kvfs_chdir(user, "/mine") == 0);
    FAILS(ENOENT, kvfs_chdir(user, "nothing"));
    FAILS(EFAULT, kvfs_chdir(user, NULL));
    FAILS(EFAULT, kvfs_chdir(NULL, "/"));
    CHECK(kvfs_getcwd(user, path, sizeof path) == path && strcmp(path, "/mine") == 0);
    IS_NULL(ERANGE, kvfs_getcwd(user, path, 3));
    IS_NULL(EFAULT, kvfs_getcwd(user, NULL, 30));
    CHECK((fd = kvfs_creat(user, "note", 0666)) == 0);
    CHECK(kvfs_write(user, fd, "ab", 2) == 2);
    CHECK((child = kvfs_process_fork(user)));
    CHECK(kvfs_write(child, fd, "cd", 2) == 2);
    CHECK(kvfs_lseek(user, fd, 0, SEEK_CUR) == 4);
    CHECK(kvfs_fcntl(child, fd, F_SETFD, FD_CLOEXEC) == 0);
    CHECK(kvfs_process_exec(child) == 0);
    FAILS(EBADF, kvfs_close(child, fd));
    CHECK(kvfs_close(user, fd) == 0);
    CHECK((fd = kvfs_open(user, "/", O_RDONLY | O_DIRECTORY, 0)) >= 0);
    CHECK(kvfs_fchdir(user, fd) == 0);
    CHECK(kvfs_getcwd(user, path, sizeof path) && strcmp(path, "/") == 0);
    kvfs_process_free(child);
    FAILS(EBUSY, kvfs_store_close(store));
    kvfs_process_free(user);
}

static void files(void) {
    struct stat stat;
    int fd, copy, dir;
    CHECK(kvfs_mkdir(p, "/files", 0755) == 0);
    CHECK((fd = kvfs_open(p, "/files/a", O_CREAT | O_EXCL | O_RDWR, 0640)) >= 0);
    FAILS(EEXIST, kvfs_open(p, "/files/a", O_CREAT | O_EXCL | O_RDWR, 0640));
    FAILS(EISDIR, kvfs_open(p, "/files", O_WRONLY, 0));
    FAILS(ENOTDIR, kvfs_open(p, "/files/a/b", O_RDONLY, 0));
    CHECK(kvfs_fstat(p, fd, &stat) == 0 && S_ISREG(stat.st_mode) && (stat.st_mode & 07777) == 0640);
    CHECK((copy = kvfs_dup(p, fd)) > fd);
    FAILS(EBADF, kvfs_dup(p, 99));
    CHECK(kvfs_dup2(p, fd, 20) == 20);
    CHECK(kvfs_dup2(p, fd, fd) == fd);
    CHECK(kvfs_dup3(p, fd, 21, O_CLOEXEC) == 21);
    FAILS(EINVAL, kvfs_dup3(p, fd, fd, 0));
    CHECK(kvfs_fcntl(p, 21, F_GETFD, 0) == FD_CLOEXEC);
    CHECK(kvfs_fcntl(p, 20, F_GETFD, 0) == 0);
    CHECK(kvfs_fcntl(p, fd, F_DUPFD, 30) == 30);
    CHECK(kvfs_fcntl(p, fd, F_DUPFD_CLOEXEC, 31) == 31);
    FAILS(EINVAL, kvfs_fcntl(p, fd, F_DUPFD, -1));
    CHECK((kvfs_fcntl(p, fd, F_GETFL, 0) & O_ACCMODE) == O_RDWR);
    CHECK(kvfs_fcntl(p, fd, F_SETFL, O_APPEND) == 0);
    CHECK(kvfs_fcntl(p, copy, F_GETFL, 0) & O_APPEND);
    CHECK(kvfs_fcntl(p, fd, F_SETFL, 0) == 0);
    FAILS(EINVAL, kvfs_fcntl(p, fd, 12345, 0));
    CHECK((dir = kvfs_open(p, "/files", O_RDONLY | O_DIRECTORY, 0)) >= 0);
    CHECK((copy = kvfs_openat(p, dir, "a", O_RDONLY, 0)) >= 0);
    CHECK(kvfs_close(p, copy) == 0);
    CHECK((copy = kvfs_open(p, "/files", O_TMPFILE | O_RDWR, 0600)) >= 0);
    CHECK(kvfs_linkat(p, copy, "", AT_FDCWD, "/files/named", AT_EMPTY_PATH) == 0);
    CHECK(kvfs_lstat(p, "/files/named", &stat) == 0 && stat.st_nlink == 1);
    CHECK(kvfs_close(p, dir) == 0);
    FAILS(EBADF, kvfs_close(p, dir));
}

static void io(void) {
    char a[8] = "", b[8] = "";
    struct iovec out[] = {{"hello ", 6}, {"world", 5}};
    struct iovec in[] = {{a, 6}, {b, 5}};
    off_t from = 0, to = 100;
    struct stat stat;
    int fd, other;
    CHECK((fd = kvfs_open(p, "/files/io", O_CREAT | O_RDWR, 0644)) >= 0);
    CHECK(kvfs_write(p, fd, "0123456789", 10) == 10);
    CHECK(kvfs_write(p, fd, NULL, 0) == 0);
    FAILS(EFAULT, kvfs_write(p, fd, NULL, 1));
    CHECK(kvfs_lseek(p, fd, -4, SEEK_END) == 6);
    CHECK(kvfs_read(p, fd, a, 8) == 4 && memcmp(a, "6789", 4) == 0);
    CHECK(kvfs_read(p, fd, a, 8) == 0);
    FAILS(EFAULT, kvfs_read(p, fd, NULL, 8));
    CHECK(kvfs_pread(p, fd, a, 3, 2) == 3 && memcmp(a, "234", 3) == 0);
    FAILS(EINVAL, kvfs_pread(p, fd, a, 3, -2));
    CHECK(kvfs_pwrite(p, fd, "xy", 2, 4) == 2);
    FAILS(EINVAL, kvfs_pwrite(p, fd, "xy", 2, -4));
    FAILS(EINVAL, kvfs_lseek(p, fd, 0, 77));
    kvfs_mapping *mapping;
    char *data;
    CHECK((mapping = kvfs_map(p, fd, 2, 5000)) != NULL && (data = kvfs_mapping_data(mapping)) != NULL);
    CHECK(memcmp(data, "23xy6789", 8) == 0 && data[4999] == 0);
    memcpy(data, "ab", 2);
    memcpy(data + 4096, "behind the end", 14);
    CHECK(kvfs_pwrite(p, fd, "01", 2, 0) == 2 && kvfs_mapping_sync(p, mapping) == 0);
    CHECK(kvfs_pread(p, fd, a, 8, 0) == 8 && memcmp(a, "01abxy67", 8) == 0);
    kvfs_unmap(mapping);
    kvfs_unmap(NULL);
    FAILS(EINVAL, kvfs_map(p, fd, 0, 0) == NULL ? -1 : 0);
    FAILS(EINVAL, kvfs_map(p, fd, -1, 1) == NULL ? -1 : 0);
    FAILS(EBADF, kvfs_map(p, 999, 0, 1) == NULL ? -1 : 0);
    FAILS(EFAULT, kvfs_mapping_sync(p, NULL));
    CHECK(kvfs_mapping_data(NULL) == NULL);
    CHECK(kvfs_ftruncate(p, fd, 0) == 0 && kvfs_lseek(p, fd, 0, SEEK_SET) == 0);
    FAILS(EINVAL, kvfs_ftruncate(p, fd, -1));
    CHECK(kvfs_writev(p, fd, out, 2) == 11);
    CHECK(kvfs_lseek(p, fd, 0, SEEK_SET) == 0);
    CHECK(kvfs_readv(p, fd, in, 2) == 11 && memcmp(b, "world", 5) == 0);
    FAILS(EINVAL, kvfs_readv(p, fd, in, -1));
    FAILS(EFAULT, kvfs_readv(p, fd, NULL, 2));
    CHECK(kvfs_pwritev(p, fd, out, 2, 20) == 11);
    CHECK(kvfs_preadv(p, fd, in, 2, 20) == 11 && memcmp(a, "hello ", 6) == 0);
    CHECK(kvfs_pwritev2(p, fd, out, 2, 40, RWF_DSYNC) == 11);
    CHECK(kvfs_pwritev2(p, fd, out, 2, -1, 0) == 11);
    FAILS(EOPNOTSUPP, kvfs_pwritev2(p, fd, out, 2, 40, RWF_NOWAIT));
    CHECK(kvfs_preadv2(p, fd, in, 2, 40, RWF_HIPRI) == 11);
    CHECK(kvfs_preadv2(p, fd, in, 1, -1, 0) == 6);
    FAILS(EOPNOTSUPP, kvfs_preadv2(p, fd, in, 2, 40, RWF_NOWAIT));
    CHECK(kvfs_fsync(p, fd) == 0 && kvfs_fdatasync(p, fd) == 0 && kvfs_sync(p) == 0);
    FAILS(EBADF, kvfs_fsync(p, 99));
    CHECK(kvfs_fallocate(p, fd, 0, 0, 1 << 20) == 0);
    CHECK(kvfs_fstat(p, fd, &stat) == 0 && stat.st_size == 1 << 20);
    CHECK(kvfs_fallocate(p, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 19) == 0);
    CHECK(kvfs_fallocate(p, fd, FALLOC_FL_ZERO_RANGE, 0, 4096) == 0);
    FAILS(EOPNOTSUPP, kvfs_fallocate(p, fd, FALLOC_FL_COLLAPSE_RANGE, 0, 4096));
    FAILS(EINVAL, kvfs_fallocate(p, fd, 0, 0, 0));
    CHECK(kvfs_truncate(p, "/files/io", 0) == 0 && kvfs_pwrite(p, fd, "data", 4, 1 << 20) == 4);
    CHECK(kvfs_lseek(p, fd, 0, SEEK_DATA) > 0 && kvfs_lseek(p, fd, 0, SEEK_HOLE) == 0);
    FAILS(ENXIO, kvfs_lseek(p, fd, 1 << 22, SEEK_DATA));
    FAILS(ENOENT, kvfs_truncate(p, "/files/none", 0));
    CHECK((other = kvfs_open(p, "/files/copy", O_CREAT | O_RDWR, 0644)) >= 0);
    CHECK(kvfs_ftruncate(p, fd, 0) == 0 && kvfs_pwrite(p, fd, "copied", 6, 0) == 6);
    CHECK(kvfs_copy_file_range(p, fd, &from, other, &to, 6, 0) == 6 && from == 6 && to == 106);
    CHECK(kvfs_pread(p, other, a, 6, 100) == 6 && memcmp(a, "copied", 6) == 0);
    CHECK(kvfs_lseek(p, fd, 0, SEEK_SET) == 0);
    CHECK(kvfs_copy_file_range(p, fd, NULL, other, NULL, 6, 0) == 6);
    FAILS(EINVAL, kvfs_copy_file_range(p, fd, NULL, other, NULL, 6, 1));
    CHECK(kvfs_close(p, fd) == 0 && kvfs_close(p, other) == 0);
    CHECK((fd = kvfs_open(p, "/files/io", O_RDONLY, 0)) >= 0);
    FAILS(EBADF, kvfs_write(p, fd, "x", 1));
    CHECK(kvfs_close(p, fd) == 0);
}

static void names(void) {
    char text[16];
    struct stat stat;
    int dir;
    CHECK(kvfs_mkdir(p, "/names", 0755) == 0);
    FAILS(EEXIST, kvfs_mkdir(p, "/names", 0755));
    CHECK((dir = kvfs_open(p, "/names", O_PATH | O_DIRECTORY, 0)) >= 0);
    CHECK(kvfs_mkdirat(p, dir, "sub", 0700) == 0);
    FAILS(EBADF, kvfs_mkdirat(p, 99, "sub", 0700));
    CHECK(kvfs_mknod(p, "/names/file", S_IFREG | 0644, 0) == 0);
    CHECK(kvfs_mknodat(p, dir, "disk", S_IFBLK | 0600, makedev(8, 300)) == 0);
    CHECK(kvfs_lstat(p, "/names/disk", &stat) == 0 && S_ISBLK(stat.st_mode) && stat.st_rdev == makedev(8, 300));
    CHECK(kvfs_mkfifo(p, "/names/fifo", 0600) == 0);
    FAILS(ENXIO, kvfs_open(p, "/names/fifo", O_RDONLY, 0));
    CHECK(kvfs_symlink(p, "file", "/names/link") == 0);
    CHECK(kvfs_symlinkat(p, "loop", dir, "loop") == 0);
    FAILS(ELOOP, kvfs_open(p, "/names/loop", O_RDONLY, 0));
    CHECK(kvfs_readlink(p, "/names/link", text, sizeof text) == 4 && memcmp(text, "file", 4) == 0);
    CHECK(kvfs_readlinkat(p, dir, "link", text, 2) == 2);
    FAILS(EINVAL, kvfs_readlink(p, "/names/file", text, sizeof text));
    FAILS(EINVAL, kvfs_readlink(p, "/names/link", text, 0));
    CHECK(kvfs_link(p, "/names/file", "/names/hard") == 0);
    CHECK(kvfs_linkat(p, dir, "link", dir, "followed", AT_SYMLINK_FOLLOW) == 0);
    CHECK(kvfs_lstat(p, "/names/followed", &stat) == 0 && stat.st_nlink == 3);
    FAILS(EPERM, kvfs_link(p, "/names", "/names/self"));
    FAILS(EINVAL, kvfs_linkat(p, dir, "link", dir, "x", 1 << 20));
    CHECK(kvfs_rename(p, "/names/hard", "/names/renamed") == 0);
    CHECK(kvfs_renameat(p, dir, "renamed", dir, "again") == 0);
    FAILS(EEXIST, kvfs_renameat2(p, dir, "again", dir, "file", RENAME_NOREPLACE));
    CHECK(kvfs_renameat2(p, dir, "again", dir, "sub", RENAME_EXCHANGE) == 0);
    FAILS(EINVAL, kvfs_renameat2(p, dir, "again", dir, "sub", 1u << 30));
    CHECK(kvfs_renameat2(p, dir, "followed", dir, "white", RENAME_WHITEOUT) == 0);
    CHECK(kvfs_lstat(p, "/names/followed", &stat) == 0 && S_ISCHR(stat.st_mode) && stat.st_rdev == 0);
    CHECK(kvfs_unlink(p, "/names/followed") == 0 && kvfs_unlink(p, "/names/white") == 0);
    CHECK(kvfs_unlink(p, "/names/sub") == 0);
    FAILS(ENOENT, kvfs_unlink(p, "/names/sub"));
    FAILS(EISDIR, kvfs_unlink(p, "/names/again"));
    CHECK(kvfs_unlinkat(p, dir, "again", AT_REMOVEDIR) == 0);
    FAILS(EINVAL, kvfs_unlinkat(p, dir, "link", 5));
    CHECK(kvfs_remove(p, "/names/fifo") == 0);
    FAILS(ENOTEMPTY, kvfs_rmdir(p, "/names"));
    CHECK(kvfs_mkdir(p, "/names/empty", 0755) == 0 && kvfs_rmdir(p, "/names/empty") == 0);
    CHECK(kvfs_close(p, dir) == 0);
}

static void trees(void) {
    kvfs_process *user, *inside;
    kvfs_txn *txn;
    int fd;
    CHECK(kvfs_mkdir(p, "/trees", 0755) == 0 && kvfs_chmod(p, "/trees", 01777) == 0);
    CHECK(kvfs_mkdir(p, "/trees/tree", 0755) == 0 && kvfs_mkdir(p, "/trees/tree/below", 0755) == 0);
    CHECK((fd = kvfs_creat(p, "/trees/tree/below/file", 0644)) >= 0);
    CHECK((user = kvfs_process_new_as(store, 1000, 1000, NULL, 0)));
    FAILS(EPERM, kvfs_remove_tree(user, "/trees/tree"));
    CHECK(kvfs_mkdir(user, "/trees/own", 0755) == 0 && kvfs_remove_tree(user, "/trees/own") == 0);
    kvfs_process_free(user);

    CHECK((txn = kvfs_txn_begin(store, 0, "tree")) && (inside = kvfs_txn_process_as(txn, 0, 0, NULL, 0)));
    CHECK(kvfs_remove_tree(inside, "/trees/tree") == 0);
    FAILS(ENOENT, kvfs_access(inside, "/trees/tree/below", F_OK));
    CHECK(kvfs_access(p, "/trees/tree/below", F_OK) == 0);
    kvfs_process_free(inside);
    kvfs_txn_abort(txn);

    CHECK((txn = kvfs_txn_begin(store, 0, "clone")) && (inside = kvfs_txn_process_as(txn, 0, 0, NULL, 0)));
    CHECK(kvfs_clone_tree(inside, "/trees/tree", "/trees/clone") == 0);
    CHECK(kvfs_access(inside, "/trees/clone/below/file", F_OK) == 0);
    kvfs_process_free(inside);
    kvfs_txn_abort(txn);
    FAILS(ENOENT, kvfs_access(p, "/trees/clone", F_OK));
    CHECK(kvfs_clone_tree(p, "/trees/tree", "/trees/clone") == 0 && kvfs_access(p, "/trees/clone/below/file", F_OK) == 0);
    FAILS(EEXIST, kvfs_clone_tree(p, "/trees/tree", "/trees/clone"));
    FAILS(EINVAL, kvfs_clone_tree(p, "/trees/tree", "/trees/tree/below/clone"));
    FAILS(ENOENT, kvfs_clone_tree(p, "/trees/none", "/trees/other"));
    FAILS(EFAULT, kvfs_clone_tree(p, "/trees/tree", NULL));
    CHECK(kvfs_remove_tree(p, "/trees/clone") == 0);

    CHECK(kvfs_remove_tree(p, "/trees/tree/") == 0);
    FAILS(ENOENT, kvfs_remove_tree(p, "/trees/tree"));
    FAILS(EBUSY, kvfs_remove_tree(p, "/"));
    FAILS(EINVAL, kvfs_remove_tree(p, "/trees/."));
    FAILS(EFAULT, kvfs_remove_tree(p, NULL));
    CHECK(kvfs_write(p, fd, "x", 1) == 1 && kvfs_close(p, fd) == 0);
    CHECK(kvfs_remove_tree(p, "/trees") == 0);
}

static void attributes(void) {
    struct stat stat;
    struct statvfs room;
    struct statx all;
    struct utimbuf seconds = {1000, 2000};
    struct timespec times[] = {{3000, 5}, {0, UTIME_OMIT}}, wrong[] = {{0, 2000000000}, {0, 0}};
    kvfs_process *user;
    int fd, dir;
    CHECK((fd = kvfs_creat(p, "/names/attr", 0600)) >= 0);
    CHECK((dir = kvfs_open(p, "/names", O_RDONLY, 0)) >= 0);
    CHECK(kvfs_stat(p, "/names/link", &stat) == 0 && S_ISREG(stat.st_mode));
    FAILS(EFAULT, kvfs_stat(p, "/names/link", NULL));
    FAILS(ENOENT, kvfs_stat(p, "/names/none", &stat));
    CHECK(kvfs_lstat(p, "/names/link", &stat) == 0 && S_ISLNK(stat.st_mode) && stat.st_size == 4);
    CHECK(kvfs_fstatat(p, dir, "link", &stat, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(stat.st_mode));
    CHECK(kvfs_fstatat(p, dir, "", &stat, AT_EMPTY_PATH) == 0 && S_ISDIR(stat.st_mode));
    CHECK(kvfs_fstatat(p, AT_FDCWD, "", &stat, AT_EMPTY_PATH) == 0 && stat.st_ino == 1);
    FAILS(EINVAL, kvfs_fstatat(p, dir, "link", &stat, 1 << 20));
    CHECK(kvfs_statx(p, dir, "link", AT_SYMLINK_NOFOLLOW, STATX_ALL, &all) == 0 && S_ISLNK(all.stx_mode));
    CHECK((all.stx_mask & STATX_BTIME) && all.stx_btime.tv_sec > 1000000 && all.stx_size == 4);
    FAILS(EINVAL, kvfs_statx(p, dir, "link", 0, 1u << 31, &all));
    FAILS(EINVAL, kvfs_statx(p, dir, "link", 1 << 20, 0, &all));
    FAILS(EFAULT, kvfs_statx(p, dir, "link", 0, 0, NULL));
    CHECK(kvfs_statvfs(p, "/", &room) == 0 && room.f_namemax == 255 && room.f_bfree > 0);
    CHECK(kvfs_fstatvfs(p, fd, &room) == 0 && room.f_bsize > 0);
    CHECK(kvfs_access(p, "/names/attr", F_OK) == 0 && kvfs_access(p, "/names/attr", R_OK | W_OK) == 0);
    FAILS(EACCES, kvfs_access(p, "/names/attr", X_OK));
    FAILS(EINVAL, kvfs_access(p, "/names/attr", 64));
    CHECK(kvfs_faccessat(p, dir, "attr", R_OK, AT_EACCESS) == 0);
    CHECK(kvfs_chmod(p, "/names/attr", 0711) == 0);
    CHECK(kvfs_fchmod(p, fd, 04755) == 0);
    CHECK(kvfs_fchmodat(p, dir, "attr", 0644, 0) == 0);
    FAILS(EOPNOTSUPP, kvfs_fchmodat(p, dir, "link", 0644, AT_SYMLINK_NOFOLLOW));
    CHECK(kvfs_chown(p, "/names/attr", 5, 6) == 0);
    CHECK(kvfs_fchown(p, fd, (uid_t)-1, 7) == 0);
    CHECK(kvfs_fstat(p, fd, &stat) == 0 && stat.st_uid == 5 && stat.st_gid == 7 && stat.st_dev == 0);
    CHECK(kvfs_lchown(p, "/names/link", 9, 9) == 0);
    CHECK(kvfs_fchownat(p, dir, "link", 10, 10, AT_SYMLINK_NOFOLLOW) == 0);
    CHECK((user = kvfs_process_new_as(store, 5, 5, NULL, 0)));
    FAILS(EPERM, kvfs_chown(user, "/names/attr", 6, (gid_t)-1));
    kvfs_process_free(user);
    CHECK(kvfs_utime(p, "/names/attr", &seconds) == 0);
    CHECK(kvfs_fstat(p, fd, &stat) == 0 && stat.st_atim.tv_sec == 1000 && stat.st_mtim.tv_sec == 2000);
    CHECK(kvfs_utimensat(p, dir, "attr", times, 0) == 0);
    CHECK(kvfs_fstat(p, fd, &stat) == 0 && stat.st_atim.tv_nsec == 5 && stat.st_mtim.tv_sec == 2000);
    FAILS(EINVAL, kvfs_utimensat(p, dir, "attr", wrong, 0));
    CHECK(kvfs_futimens(p, fd, NULL) == 0 && kvfs_utime(p, "/names/attr", NULL) == 0);
    CHECK(kvfs_fstat(p, fd, &stat) == 0 && stat.st_mtim.tv_sec > 1000000);
    CHECK(kvfs_close(p, fd) == 0);
    CHECK((fd = kvfs_open(p, "/names/attr", O_PATH, 0)) >= 0);
    CHECK(kvfs_fchmodat(p, fd, "", 0640, AT_EMPTY_PATH) == 0 && kvfs_fchownat(p, fd, "", 8, 9, AT_EMPTY_PATH) == 0);
    CHECK(kvfs_utimensat(p, fd, "", times, AT_EMPTY_PATH) == 0 && kvfs_faccessat(p, fd, "", R_OK, AT_EMPTY_PATH) == 0);
    CHECK(kvfs_fstat(p, fd, &stat) == 0 && stat.st_mode == (S_IFREG | 0640) && stat.st_uid == 8 && stat.st_gid == 9);
    CHECK(stat.st_atim.tv_sec == 3000);
    FAILS(EBADF, kvfs_fchmod(p, fd, 0600));
    FAILS(EBADF, kvfs_fchown(p, fd, 5, 5));
    FAILS(EBADF, kvfs_futimens(p, fd, times));
    CHECK(kvfs_close(p, fd) == 0 && kvfs_close(p, dir) == 0);
}

static void xattrs(void) {
    char buffer[64];
    int fd;
    CHECK((fd = kvfs_open(p, "/names/attr", O_RDWR, 0)) >= 0);
    CHECK(kvfs_setxattr(p, "/names/attr", "user.a", "one", 3, XATTR_CREATE) == 0);
    FAILS(EEXIST, kvfs_setxattr(p, "/names/attr", "user.a", "one", 3, XATTR_CREATE));
    FAILS(ENODATA, kvfs_setxattr(p, "/names/attr", "user.b", "one", 3, XATTR_REPLACE));
    FAILS(EINVAL, kvfs_setxattr(p, "/names/attr", "user.b", "one", 3, 77));
    CHECK(kvfs_lsetxattr(p, "/names/link", "trusted.l", "two", 3, 0) == 0);
    CHECK(kvfs_fsetxattr(p, fd, "user.f", "", 0, 0) == 0);
    CHECK(kvfs_getxattr(p, "/names/attr", "user.a", NULL, 0) == 3);
    CHECK(kvfs_getxattr(p, "/names/attr", "user.a", buffer, sizeof buffer) == 3 && memcmp(buffer, "one", 3) == 0);
    FAILS(ERANGE, kvfs_getxattr(p, "/names/attr", "user.a", buffer, 2));
    FAILS(ENODATA, kvfs_getxattr(p, "/names/attr", "user.none", buffer, sizeof buffer));
    CHECK(kvfs_lgetxattr(p, "/names/link", "trusted.l", buffer, sizeof buffer) == 3);
    CHECK(kvfs_fgetxattr(p, fd, "user.f", buffer, sizeof buffer) == 0);
    CHECK(kvfs_listxattr(p, "/names/attr", buffer, sizeof buffer) == 14);
    CHECK(kvfs_llistxattr(p, "/names/link", NULL, 0) == 10);
    CHECK(kvfs_flistxattr(p, fd, buffer, sizeof buffer) == 14);
    FAILS(ERANGE, kvfs_flistxattr(p, fd, buffer, 3));
    CHECK(kvfs_removexattr(p, "/names/attr", "user.a") == 0);
    FAILS(ENODATA, kvfs_removexattr(p, "/names/attr", "user.a"));
    CHECK(kvfs_lremovexattr(p, "/names/link", "trusted.l") == 0);
    CHECK(kvfs_close(p, fd) == 0);
    CHECK((fd = kvfs_open(p, "/names/attr", O_PATH, 0)) >= 0);
    FAILS(EBADF, kvfs_fsetxattr(p, fd, "user.f", "", 0, 0));
    FAILS(EBADF, kvfs_fgetxattr(p, fd, "user.f", buffer, sizeof buffer));
    FAILS(EBADF, kvfs_flistxattr(p, fd, buffer, sizeof buffer));
    FAILS(EBADF, kvfs_fremovexattr(p, fd, "user.f"));
    CHECK(kvfs_close(p, fd) == 0);
    CHECK((fd = kvfs_open(p, "/names/attr", O_RDWR, 0)) >= 0);
    CHECK(kvfs_fremovexattr(p, fd, "user.f") == 0);
    CHECK(kvfs_close(p, fd) == 0);
}

static void locks(void) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5};
    struct flock asked = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    kvfs_process *other;
    int fd, theirs;
    CHECK((other = kvfs_process_new_as(store, 0, 0, NULL, 0)));
    CHECK((fd = kvfs_open(p, "/names/attr", O_RDWR, 0)) >= 0);
    CHECK((theirs = kvfs_open(other, "/names/attr", O_RDWR, 0)) >= 0);
    CHECK(kvfs_flock(p, fd, LOCK_EX) == 0);
    FAILS(EAGAIN, kvfs_flock(other, theirs, LOCK_SH | LOCK_NB));
    FAILS(EINVAL, kvfs_flock(p, fd, 77));
    CHECK(kvfs_flock(p, fd, LOCK_UN) == 0);
    CHECK(kvfs_fcntl_lock(p, fd, F_SETLK, &lock) == 0);
    CHECK(kvfs_fcntl_lock(other, theirs, F_GETLK, &asked) == 0);
    CHECK(asked.l_type == F_WRLCK && asked.l_start == 10 && asked.l_len == 5 && asked.l_pid == -1);
    asked.l_type = F_RDLCK;
    FAILS(EAGAIN, kvfs_fcntl_lock(other, theirs, F_SETLK, &asked));
    lock.l_type = F_UNLCK;
    CHECK(kvfs_fcntl_lock(p, fd, F_SETLK, &lock) == 0);
    CHECK(kvfs_fcntl_lock(other, theirs, F_SETLKW, &asked) == 0);
    asked.l_type = F_WRLCK;
    CHECK(kvfs_fcntl_lock(other, theirs, F_OFD_GETLK, &asked) == 0 && asked.l_type == F_RDLCK);
    CHECK(kvfs_fcntl_lock(p, fd, F_GETLK, &asked) == 0 && asked.l_type == F_UNLCK);
    FAILS(EFAULT, kvfs_fcntl_lock(p, fd, F_GETLK, NULL));
    FAILS(EINVAL, kvfs_fcntl_lock(p, fd, F_GETFL, &lock));
    kvfs_process_free(other);
    CHECK(kvfs_close(p, fd) == 0);
}

static void directories(void) {
    const struct dirent *entry;
    kvfs_dir *stream;
    char name[16];
    int i, fd, seen = 0;
    long middle = 0;
    CHECK(kvfs_mkdir(p, "/list", 0755) == 0);
    for (i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "/list/%03d", i);
        CHECK((fd = kvfs_creat(p, name, 0644)) >= 0 && kvfs_close(p, fd) == 0);
    }
    IS_NULL(ENOENT, kvfs_opendir(p, "/none"));
    IS_NULL(ENOTDIR, kvfs_opendir(p, "/list/000"));
    CHECK((stream = kvfs_opendir(p, "/list")));
    while (errno = 0, (entry = kvfs_readdir(stream))) {
        CHECK(entry->d_type == (entry->d_name[0] == '.' ? DT_DIR : DT_REG) && entry->d_ino > 0);
        if (++seen == 50) {
            CHECK((middle = kvfs_telldir(stream)) > 0 && middle == entry->d_off);
        }
    }
    CHECK(errno == 0 && seen == 102);
    kvfs_seekdir(stream, middle);
    for (seen = 50; kvfs_readdir(stream); seen++)
        ;
    CHECK(seen == 102);
    kvfs_rewinddir(stream);
    CHECK(kvfs_readdir(stream));
    CHECK((fd = kvfs_dirfd(stream)) >= 0 && kvfs_openat(p, fd, "000", O_RDONLY, 0) >= 0);
    CHECK(kvfs_closedir(stream) == 0);
    FAILS(EBADF, kvfs_close(p, fd));
    FAILS(EFAULT, kvfs_closedir(NULL));
    IS_NULL(EFAULT, kvfs_readdir(NULL));
    CHECK((fd = kvfs_open(p, "/list", O_RDONLY, 0)) >= 0);
    CHECK((stream = kvfs_fdopendir(p, fd)) && kvfs_closedir(stream) == 0);
    IS_NULL(EBADF, kvfs_fdopendir(p, fd));
}

static void keys(void) {
    size_t size = 0;
    char *value, list[32];
    const void *found;
    kvfs_cursor *cursor;
    kvfs_process *user;
    CHECK(kvfs_keyspace_create(p, "app", 0644) == 0);
    FAILS(EEXIST, kvfs_keyspace_create(p, "app", 0644));
    FAILS(EINVAL, kvfs_keyspace_create(p, "wrong", 0777));
    FAILS(EINVAL, kvfs_keyspace_create(p, "\xff", 0644));
    CHECK(kvfs_kv_put(p, "app", "a", 1, "1", 1) == 0 && kvfs_kv_put(p, "app", "b", 1, "22", 2) == 0);
    CHECK(kvfs_kv_put(p, "made", "k", 1, "", 0) == 0);
    FAILS(EINVAL, kvfs_kv_put(p, "app", "", 0, "1", 1));
    CHECK((value = kvfs_kv_get(p, "app", "b", 1, &size)) && size == 2 && strcmp(value, "22") == 0);
    kvfs_free(value);
    CHECK((value = kvfs_kv_get(p, "made", "k", 1, NULL)) && !*value);
    kvfs_free(value);
    kvfs_free(NULL);
    IS_NULL(ENOENT, kvfs_kv_get(p, "app", "c", 1, &size));
    IS_NULL(ENOENT, kvfs_kv_get(p, "none", "c", 1, &size));
    IS_NULL(EFAULT, kvfs_kv_get(p, "app", NULL, 1, &size));
    CHECK((cursor = kvfs_kv_scan(p, "app", NULL, 0, NULL, 0)));
    IS_NULL(EINVAL, kvfs_cursor_key(cursor, &size));
    CHECK(kvfs_cursor_next(cursor) == 1);
    CHECK((found = kvfs_cursor_key(cursor, &size)) && size == 1 && memcmp(found, "a", 1) == 0);
    CHECK(kvfs_cursor_next(cursor) == 1);
    CHECK((found = kvfs_cursor_value(cursor, &size)) && size == 2 && memcmp(found, "22", 2) == 0);
    CHECK(kvfs_cursor_next(cursor) == 0);
    kvfs_cursor_free(cursor);
    CHECK((cursor = kvfs_kv_scan(p, "app", "a", 1, "b", 1)));
    CHECK(kvfs_cursor_prev(cursor) == 1 && (found = kvfs_cursor_key(cursor, &size)) && memcmp(found, "a", 1) == 0);
    CHECK(kvfs_cursor_prev(cursor) == 0);
    kvfs_cursor_free(cursor);
    kvfs_cursor_free(NULL);
    CHECK((cursor = kvfs_kv_scan(p, "none", NULL, 0, NULL, 0)) && kvfs_cursor_next(cursor) == 0);
    kvfs_cursor_free(cursor);
    CHECK((user = kvfs_process_new_as(store, 4242, 4242, NULL, 0)));
    CHECK((value = kvfs_kv_get(user, "app", "a", 1, &size)));
    kvfs_free(value);
    FAILS(EACCES, kvfs_kv_put(user, "app", "a", 1, "x", 1));
    FAILS(EPERM, kvfs_keyspace_drop(user, "app"));
    CHECK(kvfs_keyspace_list(user, list, sizeof list) == 4 && strcmp(list, "app") == 0);
    kvfs_process_free(user);
    {
        struct kvfs_change changes[] = {{"c", 1, "3", 1}, {"d", 1, "", 0}, {"a", 1, NULL, 0}}, wrong[] = {{"e", 1, "5", 1}, {"", 0, "6", 1}};
        CHECK(kvfs_kv_write(p, "app", changes, 3) == 0);
        CHECK((value = kvfs_kv_get(p, "app", "d", 1, &size)) && size == 0);
        kvfs_free(value);
        IS_NULL(ENOENT, kvfs_kv_get(p, "app", "a", 1, &size));
        FAILS(EINVAL, kvfs_kv_write(p, "app", wrong, 2));
        IS_NULL(ENOENT, kvfs_kv_get(p, "app", "e", 1, &size));
        CHECK(kvfs_kv_write(p, "app", NULL, 0) == 0);
        FAILS(EFAULT, kvfs_kv_write(p, "app", NULL, 1));
        CHECK(kvfs_kv_put(p, "app", "a", 1, "1", 1) == 0);
    }
    CHECK(kvfs_kv_delete(p, "app", "a", 1) == 1 && kvfs_kv_delete(p, "app", "a", 1) == 0);
    CHECK(kvfs_kv_delete_range(p, "app", NULL, 0, NULL, 0) == 0);
    IS_NULL(ENOENT, kvfs_kv_get(p, "app", "b", 1, &size));
    CHECK(kvfs_keyspace_list(p, NULL, 0) == 9);
    FAILS(ERANGE, kvfs_keyspace_list(p, list, 3));
    CHECK(kvfs_keyspace_drop(p, "made") == 0);
    FAILS(ENOENT, kvfs_keyspace_drop(p, "made"));
}

static void transactions(void) {
    kvfs_txn *txn, *other;
    kvfs_process *inside, *beside;
    char *value;
    int fd;
    IS_NULL(EINVAL, kvfs_txn_begin(store, 64, NULL));
    CHECK((txn = kvfs_txn_begin(store, 0, "test")));
    FAILS(EBUSY, kvfs_store_close(store));
    CHECK((inside = kvfs_txn_process_as(txn, 0, 0, NULL, 0)));
    CHECK((fd = kvfs_open(inside, "/both", O_CREAT | O_WRONLY, 0644)) >= 0 && kvfs_write(inside, fd, "x", 1) == 1);
    CHECK(kvfs_kv_put(inside, "app", "both", 4, "y", 1) == 0);
    FAILS(ENOENT, kvfs_access(p, "/both", F_OK));
    IS_NULL(ENOENT, kvfs_kv_get(p, "app", "both", 4, NULL));
    CHECK(kvfs_txn_commit(txn) == 0);
    FAILS(ESTALE, kvfs_mkdir(inside, "/late", 0755));
    kvfs_process_free(inside);
    CHECK(kvfs_access(p, "/both", F_OK) == 0);
    CHECK((value = kvfs_kv_get(p, "app", "both", 4, NULL)) && strcmp(value, "y") == 0);
    kvfs_free(value);

    CHECK((txn = kvfs_txn_begin(store, KVFS_SERIALIZABLE, NULL)));
    CHECK((inside = kvfs_txn_process(txn)));
    CHECK(kvfs_mkdir(inside, "/aborted", 0755) == 0);
    kvfs_process_free(inside);
    kvfs_txn_abort(txn);
    kvfs_txn_abort(NULL);
    FAILS(ENOENT, kvfs_access(p, "/aborted", F_OK));

    /* Of two that change the same, one is canceled. */
    CHECK((txn = kvfs_txn_begin(store, 0, NULL)) && (other = kvfs_txn_begin(store, 0, NULL)));
    CHECK((inside = kvfs_txn_process(txn)) && (beside = kvfs_txn_process(other)));
    CHECK(kvfs_kv_put(inside, "app", "k", 1, "1", 1) == 0);
    CHECK(kvfs_txn_commit(txn) == 0);
    FAILS(ECANCELED, kvfs_kv_put(beside, "app", "k", 1, "2", 1));
    FAILS(ECANCELED, kvfs_txn_commit(other));
    kvfs_process_free(inside);
    kvfs_process_free(beside);
    FAILS(EFAULT, kvfs_txn_commit(NULL));
}

static void snapshots(void) {
    char list[16], *value;
    kvfs_process *then;
    CHECK(kvfs_snapshot_create(store, "monday") == 0 && kvfs_snapshot_create(store, "tuesday") == 0);
    FAILS(EEXIST, kvfs_snapshot_create(store, "monday"));
    CHECK(kvfs_snapshot_list(store, NULL, 0) == 15);
    CHECK(kvfs_snapshot_list(store, list, sizeof list) == 15 && strcmp(list, "monday") == 0);
    FAILS(ERANGE, kvfs_snapshot_list(store, list, 4));
    CHECK(kvfs_kv_put(p, "app", "both", 4, "new", 3) == 0 && kvfs_mkdir(p, "/newer", 0755) == 0);
    CHECK((then = kvfs_snapshot_process_as(store, "monday", 0, 0, NULL, 0)));
    FAILS(ENOENT, kvfs_access(then, "/newer", F_OK));
    FAILS(EROFS, kvfs_rmdir(then, "/both"));
    FAILS(EROFS, kvfs_open(then, "/both", O_WRONLY, 0));
    CHECK((value = kvfs_kv_get(then, "app", "both", 4, NULL)) && strcmp(value, "y") == 0);
    kvfs_free(value);
    CHECK(kvfs_keyspace_list(then, list, sizeof list) == 4);
    FAILS(EROFS, kvfs_kv_put(then, "app", "both", 4, "z", 1));
    kvfs_process_free(then);
    CHECK((then = kvfs_snapshot_process(store, "tuesday")));
    kvfs_process_free(then);
    IS_NULL(ENOENT, kvfs_snapshot_process(store, "friday"));
    CHECK(kvfs_snapshot_delete(store, "monday") == 0);
    FAILS(ENOENT, kvfs_snapshot_delete(store, "monday"));
    FAILS(EFAULT, kvfs_snapshot_create(store, NULL));
}

/* A program that ends without closing its store: what it has synced is there. */
static void crash(const char *directory) {
    char path[4200], text[8] = "";
    kvfs_options *options = small_options();
    kvfs_store *again;
    kvfs_process *process;
    int status, fd;
    pid_t child;
    snprintf(path, sizeof path, "%s/crashed", directory);
    CHECK((child = fork()) >= 0);
    if (child == 0) {
        CHECK((again = kvfs_store_open(path, KVFS_CREATE, options)));
        CHECK((process = kvfs_process_new(again)));
        CHECK((fd = kvfs_creat(process, "/synced", 0644)) >= 0 && kvfs_write(process, fd, "synced", 6) == 6);
        CHECK(kvfs_kv_put(process, "app", "k", 1, "v", 1) == 0);
        CHECK(kvfs_sync(process) == 0);
        raise(SIGKILL);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    CHECK((again = kvfs_store_open(path, 0, options)));
    CHECK((process = kvfs_process_new(again)));
    CHECK((fd = kvfs_open(process, "/synced", O_RDONLY, 0)) >= 0 && kvfs_read(process, fd, text, 8) == 6);
    CHECK(memcmp(text, "synced", 6) == 0);
    kvfs_free(kvfs_kv_get(process, "app", "k", 1, NULL));
    kvfs_process_free(process);
    CHECK(kvfs_store_close(again) == 0);
    kvfs_options_free(options);
}

/* Each makes files of its own in one directory. */
static void *make_files(void *number) {
    char name[32];
    int i, fd;
    kvfs_process *process;
    CHECK((process = kvfs_process_fork(p)));
    for (i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "/threads/%d.%d", *(int *)number, i);
        CHECK((fd = kvfs_creat(process, name, 0644)) >= 0 && kvfs_write(process, fd, name, sizeof name) > 0);
        CHECK(kvfs_close(process, fd) == 0 && kvfs_kv_put(p, "threads", name, strlen(name), "", 0) == 0);
    }
    kvfs_process_free(process);
    return NULL;
}

static void together(void) {
    pthread_t threads[4];
    int i, numbers[4], found = 0;
    kvfs_cursor *cursor;
    struct stat stat;
    CHECK(kvfs_mkdir(p, "/threads", 0755) == 0);
    for (i = 0; i < 4; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&threads[i], NULL, make_files, &numbers[i]) == 0);
    }
    for (i = 0; i < 4; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(kvfs_stat(p, "/threads", &stat) == 0 && stat.st_size == 400);
    CHECK((cursor = kvfs_kv_scan(p, "threads", NULL, 0, NULL, 0)));
    for (; kvfs_cursor_next(cursor) == 1; found++)
        ;
    CHECK(found == 400);
    kvfs_cursor_free(cursor);
}

static void *fail_in_thread(void *message) {
    FAILS(ENOENT, kvfs_access(p, "/nothing", F_OK));
    strcpy(message, kvfs_last_error());
    return NULL;
}

static void threads(void) {
    pthread_t thread;
    char theirs[256], mine[256];
    FAILS(EBADF, kvfs_close(p, 12345));
    snprintf(mine, sizeof mine, "%s", kvfs_last_error());
    CHECK(pthread_create(&thread, NULL, fail_in_thread, theirs) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(strcmp(mine, kvfs_last_error()) == 0 && strcmp(mine, theirs) != 0);
}

static void read_only(void) {
    kvfs_options *options = small_options();
    kvfs_process_free(p);
    CHECK(kvfs_store_close(store) == 0);
    CHECK((store = kvfs_store_open(store_path, KVFS_RDONLY, options)));
    CHECK((p = kvfs_process_new_as(store, 0, 0, NULL, 0)));
    CHECK(kvfs_access(p, "/both", R_OK) == 0);
    FAILS(EROFS, kvfs_mkdir(p, "/new", 0755));
    IS_NULL(EROFS, kvfs_txn_begin(store, 0, NULL));
    kvfs_process_free(p);
    CHECK(kvfs_store_close(store) == 0);
    kvfs_options_free(options);
}

int main(int argc, char **argv) {
    is_served = argc == 3 && strcmp(argv[2], "served") == 0;
    if (argc != 2 && !is_served) {
        return 2;
    }
    if (is_served) {
        served_store(argv[1]);
    } else {
        /* First: a child of fork must not meet threads of a store. */
        crash(argv[1]);
        stores(argv[1]);
    }
    processes();
    files();
    io();
    names();
    trees();
    attributes();
    xattrs();
    locks();
    directories();
    keys();
    transactions();
    if (is_served) {
        not_served();
    } else {
        snapshots();
    }
    threads();
    together();
    if (is_served) {
        kvfs_process_free(p);
        CHECK(kvfs_store_close(store) == 0);
    } else {
        read_only();
    }
    puts("all functions do what they should");
    return 0;
}
