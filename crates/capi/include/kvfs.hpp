/*
 * kvfs.hpp: kvfs for C++17, over kvfs.h, which says what each call does. Header only; link with libkvfs.
 *
 * The names are those of the class FS of the Edinburgh kvfs (2019): Open, PRead, MkDir, ... A call that fails throws a
 * kvfs::Error, a std::system_error of std::generic_category, so that code() is the errno. Objects are moved, not copied,
 * and end what they have; what ends with an error that matters has a function for it (Close, Commit, UnMount).
 *
 * Threads: as in kvfs.h. A FileSystem is used by any number of threads at once, a File as its descriptor is; a
 * DirectoryStream, a Cursor, Options and the ends of all by one.
 */

#ifndef KVFS_HPP
#define KVFS_HPP

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "kvfs.h"

namespace kvfs {

class Store;

/* What a call that fails throws: its errno, and the sentence of kvfs_last_error. */
class Error : public std::system_error {
  public:
    explicit Error(int number) : std::system_error(number, std::generic_category(), kvfs_last_error()) {}

    int Errno() const noexcept { return code().value(); }
};

namespace detail {

template <typename Number>
Number Checked(Number result) {
    if (result == static_cast<Number>(-1)) {
        throw Error(errno);
    }
    return result;
}

template <typename Object>
Object *Made(Object *object) {
    if (object == nullptr) {
        throw Error(errno);
    }
    return object;
}

/* What a function that fills a buffer has to say, whatever its length. */
template <typename Fill>
std::string Filled(Fill fill) {
    std::string content;
    for (;;) {
        content.resize(static_cast<std::size_t>(Checked(fill(nullptr, std::size_t{0}))));
        if (content.empty()) {
            return content;
        }
        const auto length = fill(content.data(), content.size());
        if (length >= 0) {
            content.resize(static_cast<std::size_t>(length));
            return content;
        }
        /* It has become longer meanwhile. */
        if (errno != ERANGE) {
            throw Error(errno);
        }
    }
}

/* Names with a zero byte behind each. */
inline std::vector<std::string> Split(const std::string &list) {
    std::vector<std::string> names;
    for (std::size_t at = 0; at < list.size(); at += names.back().size() + 1) {
        names.emplace_back(list.c_str() + at);
    }
    return names;
}

struct End {
    void operator()(kvfs_options *options) const noexcept { kvfs_options_free(options); }
    void operator()(kvfs_process *process) const noexcept { kvfs_process_free(process); }
    void operator()(kvfs_txn *txn) const noexcept { kvfs_txn_abort(txn); }
    void operator()(kvfs_cursor *cursor) const noexcept { kvfs_cursor_free(cursor); }
    void operator()(kvfs_dir *stream) const noexcept { kvfs_closedir(stream); }
    void operator()(void *memory) const noexcept { kvfs_free(memory); }
};

template <typename Object>
using Owned = std::unique_ptr<Object, End>;

/* What is in a store goes before the store, also where another one is assigned. */
struct EndIn : End {
    explicit EndIn(std::shared_ptr<Store> of) : store(std::move(of)) {}
    std::shared_ptr<Store> store;
};

template <typename Object>
using OwnedIn = std::unique_ptr<Object, EndIn>;

} // namespace detail

/* How a store is made and opened. */
class Options {
  public:
    Options() : options_(detail::Made(kvfs_options_new())) {}

    Options &Memory(std::uint64_t bytes) { return Set(kvfs_options_set_memory(Get(), bytes)); }
    Options &Capacity(std::uint64_t bytes) { return Set(kvfs_options_set_capacity(Get(), bytes)); }
    Options &Inline(std::uint64_t bytes) { return Set(kvfs_options_set_inline(Get(), bytes)); }
    Options &CommitInterval(std::uint64_t milliseconds) {
        return Set(kvfs_options_set_commit_interval(Get(), milliseconds));
    }
    Options &AccessTimes(int policy) { return Set(kvfs_options_set_atime(Get(), policy)); }

    kvfs_options *Get() const noexcept { return options_.get(); }

  private:
    Options &Set(int result) {
        detail::Checked(result);
        return *this;
    }

    detail::Owned<kvfs_options> options_;
};

/* An open store. */
class Store {
  public:
    explicit Store(const std::string &path, int flags = KVFS_CREATE, const Options &options = Options())
        : store_(detail::Made(kvfs_store_open(path.c_str(), flags, options.Get()))) {}
    Store(const Store &) = delete;
    Store &operator=(const Store &) = delete;
    ~Store() {
        if (store_ != nullptr) {
            (void)kvfs_store_close(store_);
        }
    }

    /* Makes a store. */
    static void Format(const std::string &path, const Options &options = Options()) {
        detail::Checked(kvfs_store_format(path.c_str(), options.Get()));
    }

    /* Whether a daemon has it open, and does the calls. */
    bool IsServed() const { return detail::Checked(kvfs_store_is_served(store_)) != 0; }

    /* EBUSY: something of it is used; then it stays open. */
    void Close() {
        if (kvfs_store_close(store_) != 0) {
            const Error error(errno);
            if (error.Errno() != EBUSY) {
                store_ = nullptr;
            }
            throw error;
        }
        store_ = nullptr;
    }

    void Sync() const { detail::Checked(kvfs_store_sync(store_)); }

    void CreateSnapshot(const std::string &name) const { detail::Checked(kvfs_snapshot_create(store_, name.c_str())); }
    void DeleteSnapshot(const std::string &name) const { detail::Checked(kvfs_snapshot_delete(store_, name.c_str())); }
    std::vector<std::string> Snapshots() const {
        return detail::Split(detail::Filled(
            [this](char *buffer, std::size_t size) { return kvfs_snapshot_list(store_, buffer, size); }));
    }

    kvfs_store *Get() const noexcept { return store_; }

  private:
    kvfs_store *store_;
};

/* Whom a FileSystem acts for. */
struct Identity {
    uid_t uid = 0;
    gid_t gid = 0;
    std::vector<gid_t> groups = {};
};

/* A walk over keys, in their order. It stands before the first one. */
class Cursor {
  public:
    /* The next key; false: no more. */
    bool Next() { return detail::Checked(kvfs_cursor_next(cursor_.get())) == 1; }
    /* The key before; from the beginning of the walk, the last one. */
    bool Prev() { return detail::Checked(kvfs_cursor_prev(cursor_.get())) == 1; }

    /* Valid until the walk goes on. */
    std::string_view Key() const { return View(kvfs_cursor_key); }
    std::string_view Value() const { return View(kvfs_cursor_value); }

  private:
    friend class FileSystem;
    Cursor(std::shared_ptr<Store> store, kvfs_cursor *cursor)
        : cursor_(detail::Made(cursor), detail::EndIn(std::move(store))) {}

    std::string_view View(const void *(*part)(kvfs_cursor *, std::size_t *)) const {
        std::size_t size = 0;
        const void *bytes = detail::Made(part(cursor_.get(), &size));
        return {static_cast<const char *>(bytes), size};
    }

    detail::OwnedIn<kvfs_cursor> cursor_;
};

/* A directory that is being listed. */
class DirectoryStream {
  public:
    /* The next entry, valid until the next call; null: no more. */
    const dirent *Read() {
        errno = 0;
        const dirent *entry = kvfs_readdir(stream_.get());
        if (entry == nullptr && errno != 0) {
            throw Error(errno);
        }
        return entry;
    }
    long Tell() const { return kvfs_telldir(stream_.get()); }
    void Seek(long offset) { kvfs_seekdir(stream_.get(), offset); }
    void Rewind() { kvfs_rewinddir(stream_.get()); }
    int Descriptor() const { return detail::Checked(kvfs_dirfd(stream_.get())); }
    void Close() { detail::Checked(kvfs_closedir(stream_.release())); }

  private:
    friend class FileSystem;
    DirectoryStream(std::shared_ptr<Store> store, kvfs_dir *stream)
        : stream_(detail::Made(stream), detail::EndIn(std::move(store))) {}

    detail::OwnedIn<kvfs_dir> stream_;
};

class Transaction;

/* Changes of keys. */
class WriteBatch {
  public:
    WriteBatch &Put(std::string key, std::string value) { return Add(std::move(key), std::move(value)); }
    WriteBatch &Delete(std::string key) { return Add(std::move(key), std::nullopt); }
    std::size_t Size() const noexcept { return changes_.size(); }

  private:
    friend class FileSystem;
    WriteBatch &Add(std::string key, std::optional<std::string> value) {
        changes_.emplace_back(std::move(key), std::move(value));
        return *this;
    }

    std::vector<std::pair<std::string, std::optional<std::string>>> changes_;
};

/* A user of a store: identity, working directory, descriptors. */
class FileSystem {
  public:
    /* Opens a store, which is made if it is missing, for the user that runs the program. UnMount closes it. */
    explicit FileSystem(const std::string &path, int flags = KVFS_CREATE, const Options &options = Options())
        : FileSystem(std::make_shared<Store>(path, flags, options)) {}
    /* Shares an open store. */
    explicit FileSystem(const std::shared_ptr<Store> &store) : FileSystem(store, kvfs_process_new(store->Get())) {}
    FileSystem(const std::shared_ptr<Store> &store, const Identity &identity)
        : FileSystem(store, kvfs_process_new_as(store->Get(), identity.uid, identity.gid, identity.groups.data(),
                                                identity.groups.size())) {}

    /* Ends this user and closes the store. EBUSY: something else uses the store, which stays open; this user has ended. */
    void UnMount() {
        process_.reset();
        std::shared_ptr<Store> &store = process_.get_deleter().store;
        if (store != nullptr) {
            store->Close();
            store.reset();
        }
    }

    const std::shared_ptr<Store> &GetStore() const noexcept { return process_.get_deleter().store; }
    kvfs_process *Get() const noexcept { return process_.get(); }

    /* A user, the one that runs the program, who sees what a snapshot shows. */
    FileSystem InSnapshot(const std::string &name) const {
        return {GetStore(), kvfs_snapshot_process(GetStore()->Get(), name.c_str())};
    }
    FileSystem InSnapshot(const std::string &name, const Identity &identity) const {
        return {GetStore(), kvfs_snapshot_process_as(GetStore()->Get(), name.c_str(), identity.uid, identity.gid,
                                                     identity.groups.data(), identity.groups.size())};
    }
    FileSystem Fork() const { return {GetStore(), kvfs_process_fork(Get())}; }
    void Exec() const { detail::Checked(kvfs_process_exec(Get())); }
    Transaction Begin(int flags = 0, const std::string &name = {}) const;

    /* Access management. */
    void Access(const std::string &path, int how) const { detail::Checked(kvfs_access(Get(), path.c_str(), how)); }
    /* Whether access is allowed; other failures than ENOENT, ENOTDIR and EACCES are thrown. */
    bool Allows(const std::string &path, int how) const {
        if (kvfs_access(Get(), path.c_str(), how) == 0) {
            return true;
        }
        if (errno == ENOENT || errno == ENOTDIR || errno == EACCES) {
            return false;
        }
        throw Error(errno);
    }
    void ChMod(const std::string &path, mode_t mode) const { detail::Checked(kvfs_chmod(Get(), path.c_str(), mode)); }
    void FChMod(int fd, mode_t mode) const { detail::Checked(kvfs_fchmod(Get(), fd, mode)); }
    void ChOwn(const std::string &path, uid_t uid, gid_t gid) const {
        detail::Checked(kvfs_chown(Get(), path.c_str(), uid, gid));
    }
    void LChOwn(const std::string &path, uid_t uid, gid_t gid) const {
        detail::Checked(kvfs_lchown(Get(), path.c_str(), uid, gid));
    }
    void FChOwn(int fd, uid_t uid, gid_t gid) const { detail::Checked(kvfs_fchown(Get(), fd, uid, gid)); }
    mode_t UMask(mode_t mask) const { return static_cast<mode_t>(detail::Checked(kvfs_umask(Get(), mask))); }
    void ChDir(const std::string &path) const { detail::Checked(kvfs_chdir(Get(), path.c_str())); }
    void FChDir(int fd) const { detail::Checked(kvfs_fchdir(Get(), fd)); }

    /* Files. */
    int Open(const std::string &path, int flags, mode_t mode = 0) const {
        return detail::Checked(kvfs_open(Get(), path.c_str(), flags, mode));
    }
    int OpenAt(int directory, const std::string &path, int flags, mode_t mode = 0) const {
        return detail::Checked(kvfs_openat(Get(), directory, path.c_str(), flags, mode));
    }
    int Creat(const std::string &path, mode_t mode) const {
        return detail::Checked(kvfs_creat(Get(), path.c_str(), mode));
    }
    void Close(int fd) const { detail::Checked(kvfs_close(Get(), fd)); }
    int Dup(int fd) const { return detail::Checked(kvfs_dup(Get(), fd)); }
    int Dup2(int fd, int new_fd) const { return detail::Checked(kvfs_dup2(Get(), fd, new_fd)); }
    int FCntl(int fd, int command, long argument = 0) const {
        return detail::Checked(kvfs_fcntl(Get(), fd, command, argument));
    }
    void FCntl(int fd, int command, struct flock &lock) const {
        detail::Checked(kvfs_fcntl_lock(Get(), fd, command, &lock));
    }
    void FLock(int fd, int operation) const { detail::Checked(kvfs_flock(Get(), fd, operation)); }
    void Link(const std::string &old_path, const std::string &new_path) const {
        detail::Checked(kvfs_link(Get(), old_path.c_str(), new_path.c_str()));
    }
    void UnLink(const std::string &path) const { detail::Checked(kvfs_unlink(Get(), path.c_str())); }
    void Remove(const std::string &path) const { detail::Checked(kvfs_remove(Get(), path.c_str())); }
    void Rename(const std::string &old_path, const std::string &new_path) const {
        detail::Checked(kvfs_rename(Get(), old_path.c_str(), new_path.c_str()));
    }
    void MkNod(const std::string &path, mode_t mode, dev_t device = 0) const {
        detail::Checked(kvfs_mknod(Get(), path.c_str(), mode, device));
    }

    /* Content. */
    std::size_t Read(int fd, void *buffer, std::size_t size) const {
        return Length(kvfs_read(Get(), fd, buffer, size));
    }
    std::size_t PRead(int fd, void *buffer, std::size_t size, off_t offset) const {
        return Length(kvfs_pread(Get(), fd, buffer, size, offset));
    }
    std::size_t Write(int fd, const void *data, std::size_t size) const {
        return Length(kvfs_write(Get(), fd, data, size));
    }
    std::size_t Write(int fd, std::string_view data) const { return Write(fd, data.data(), data.size()); }
    std::size_t PWrite(int fd, const void *data, std::size_t size, off_t offset) const {
        return Length(kvfs_pwrite(Get(), fd, data, size, offset));
    }
    std::size_t ReadV(int fd, const iovec *vectors, int count) const {
        return Length(kvfs_readv(Get(), fd, vectors, count));
    }
    std::size_t WriteV(int fd, const iovec *vectors, int count) const {
        return Length(kvfs_writev(Get(), fd, vectors, count));
    }
    off_t LSeek(int fd, off_t offset, int whence) const { return detail::Checked(kvfs_lseek(Get(), fd, offset, whence)); }
    void Truncate(const std::string &path, off_t length) const {
        detail::Checked(kvfs_truncate(Get(), path.c_str(), length));
    }
    void FTruncate(int fd, off_t length) const { detail::Checked(kvfs_ftruncate(Get(), fd, length)); }
    void FAllocate(int fd, int mode, off_t offset, off_t length) const {
        detail::Checked(kvfs_fallocate(Get(), fd, mode, offset, length));
    }
    void FSync(int fd) const { detail::Checked(kvfs_fsync(Get(), fd)); }
    void Sync() const { detail::Checked(kvfs_sync(Get())); }

    /* Status. */
    struct stat Stat(const std::string &path) const {
        struct stat found;
        detail::Checked(kvfs_stat(Get(), path.c_str(), &found));
        return found;
    }
    struct stat LStat(const std::string &path) const {
        struct stat found;
        detail::Checked(kvfs_lstat(Get(), path.c_str(), &found));
        return found;
    }
    struct stat FStat(int fd) const {
        struct stat found;
        detail::Checked(kvfs_fstat(Get(), fd, &found));
        return found;
    }
    struct statvfs StatVFS(const std::string &path = "/") const {
        struct statvfs found;
        detail::Checked(kvfs_statvfs(Get(), path.c_str(), &found));
        return found;
    }
    void UTime(const std::string &path, const utimbuf *times = nullptr) const {
        detail::Checked(kvfs_utime(Get(), path.c_str(), times));
    }
    void UTimeNS(const std::string &path, const timespec times[2], int flags = 0) const {
        detail::Checked(kvfs_utimensat(Get(), AT_FDCWD, path.c_str(), times, flags));
    }

    /* Directories. */
    void MkDir(const std::string &path, mode_t mode = 0777) const {
        detail::Checked(kvfs_mkdir(Get(), path.c_str(), mode));
    }
    void RmDir(const std::string &path) const { detail::Checked(kvfs_rmdir(Get(), path.c_str())); }
    /* With all that is below it, in one step. */
    void RemoveTree(const std::string &path) const { detail::Checked(kvfs_remove_tree(Get(), path.c_str())); }
    /* A second time, content shared, in one step. */
    void CloneTree(const std::string &path, const std::string &new_path) const {
        detail::Checked(kvfs_clone_tree(Get(), path.c_str(), new_path.c_str()));
    }
    DirectoryStream OpenDir(const std::string &path) const { return {GetStore(), kvfs_opendir(Get(), path.c_str())}; }
    DirectoryStream FDOpenDir(int fd) const { return {GetStore(), kvfs_fdopendir(Get(), fd)}; }
    std::string GetCurrentDirName() const {
        std::string path(4096, '\0');
        detail::Made(kvfs_getcwd(Get(), path.data(), path.size()));
        path.resize(std::char_traits<char>::length(path.c_str()));
        return path;
    }

    /* Symbolic links. */
    void SymLink(const std::string &target, const std::string &path) const {
        detail::Checked(kvfs_symlink(Get(), target.c_str(), path.c_str()));
    }
    std::string ReadLink(const std::string &path) const {
        std::string target(4096, '\0');
        target.resize(Length(kvfs_readlink(Get(), path.c_str(), target.data(), target.size())));
        return target;
    }

    /* Extended attributes. */
    std::string GetXAttr(const std::string &path, const std::string &name) const {
        return detail::Filled([&](char *buffer, std::size_t size) {
            return kvfs_getxattr(Get(), path.c_str(), name.c_str(), buffer, size);
        });
    }
    void SetXAttr(const std::string &path, const std::string &name, std::string_view value, int flags = 0) const {
        detail::Checked(kvfs_setxattr(Get(), path.c_str(), name.c_str(), value.data(), value.size(), flags));
    }
    std::vector<std::string> ListXAttr(const std::string &path) const {
        return detail::Split(detail::Filled(
            [&](char *buffer, std::size_t size) { return kvfs_listxattr(Get(), path.c_str(), buffer, size); }));
    }
    void RemoveXAttr(const std::string &path, const std::string &name) const {
        detail::Checked(kvfs_removexattr(Get(), path.c_str(), name.c_str()));
    }

    /* Keys beside files. Get is empty if there is no such key. */
    std::optional<std::string> Get(const std::string &keyspace, std::string_view key) const {
        std::size_t size = 0;
        const detail::Owned<void> value(kvfs_kv_get(Get(), keyspace.c_str(), key.data(), key.size(), &size));
        if (value == nullptr) {
            if (errno == ENOENT) {
                return std::nullopt;
            }
            throw Error(errno);
        }
        return std::string(static_cast<const char *>(value.get()), size);
    }
    void Put(const std::string &keyspace, std::string_view key, std::string_view value) const {
        detail::Checked(
            kvfs_kv_put(Get(), keyspace.c_str(), key.data(), key.size(), value.data(), value.size()));
    }
    /* All of them at once, or none. */
    void Write(const std::string &keyspace, const WriteBatch &batch) const;
    /* Whether it was there. */
    bool Delete(const std::string &keyspace, std::string_view key) const {
        return detail::Checked(kvfs_kv_delete(Get(), keyspace.c_str(), key.data(), key.size())) == 1;
    }
    void DeleteRange(const std::string &keyspace, std::optional<std::string_view> start = {},
                     std::optional<std::string_view> end = {}) const {
        const auto [first, first_size] = Bound(start);
        const auto [last, last_size] = Bound(end);
        detail::Checked(kvfs_kv_delete_range(Get(), keyspace.c_str(), first, first_size, last, last_size));
    }
    Cursor Scan(const std::string &keyspace, std::optional<std::string_view> start = {},
                std::optional<std::string_view> end = {}) const {
        const auto [first, first_size] = Bound(start);
        const auto [last, last_size] = Bound(end);
        return {GetStore(), kvfs_kv_scan(Get(), keyspace.c_str(), first, first_size, last, last_size)};
    }
    void CreateKeyspace(const std::string &name, mode_t mode = 0600) const {
        detail::Checked(kvfs_keyspace_create(Get(), name.c_str(), mode));
    }
    void DropKeyspace(const std::string &name) const { detail::Checked(kvfs_keyspace_drop(Get(), name.c_str())); }
    std::vector<std::string> Keyspaces() const {
        return detail::Split(detail::Filled(
            [this](char *buffer, std::size_t size) { return kvfs_keyspace_list(Get(), buffer, size); }));
    }

  private:
    friend class Transaction;
    FileSystem(std::shared_ptr<Store> store, kvfs_process *process)
        : process_(detail::Made(process), detail::EndIn(std::move(store))) {}

    static std::size_t Length(ssize_t result) { return static_cast<std::size_t>(detail::Checked(result)); }
    static std::pair<const char *, std::size_t> Bound(std::optional<std::string_view> bound) {
        /* An empty one is not the same as none. */
        return bound ? std::pair(bound->data() != nullptr ? bound->data() : "", bound->size())
                     : std::pair(static_cast<const char *>(nullptr), std::size_t{0});
    }

    detail::OwnedIn<kvfs_process> process_;
};

/* A descriptor that is closed with its object. */
class File {
  public:
    File(const FileSystem &files, const std::string &path, int flags, mode_t mode = 0)
        : files_(&files), fd_(files.Open(path, flags, mode)) {}
    File(File &&other) noexcept : files_(other.files_), fd_(std::exchange(other.fd_, -1)) {}
    File &operator=(File &&other) noexcept {
        std::swap(files_, other.files_);
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~File() {
        if (fd_ >= 0) {
            (void)kvfs_close(files_->Get(), fd_);
        }
    }

    void Close() { files_->Close(std::exchange(fd_, -1)); }
    int Descriptor() const noexcept { return fd_; }

    std::size_t Read(void *buffer, std::size_t size) const { return files_->Read(fd_, buffer, size); }
    std::size_t PRead(void *buffer, std::size_t size, off_t offset) const {
        return files_->PRead(fd_, buffer, size, offset);
    }
    /* All that is left, from the offset on. */
    std::string ReadAll() const {
        std::string content;
        char piece[65536];
        while (const std::size_t length = Read(piece, sizeof piece)) {
            content.append(piece, length);
        }
        return content;
    }
    std::size_t Write(std::string_view data) const { return files_->Write(fd_, data); }
    std::size_t PWrite(std::string_view data, off_t offset) const {
        return files_->PWrite(fd_, data.data(), data.size(), offset);
    }
    off_t LSeek(off_t offset, int whence) const { return files_->LSeek(fd_, offset, whence); }
    void Truncate(off_t length) const { files_->FTruncate(fd_, length); }
    struct stat Stat() const { return files_->FStat(fd_); }
    void Sync() const { files_->FSync(fd_); }

  private:
    const FileSystem *files_;
    int fd_;
};

/* A transaction over files and keys; one that is not committed has not happened. */
class Transaction {
  public:
    /* A user inside of it, who is the one that runs the program. */
    FileSystem Files() const { return {GetStore(), kvfs_txn_process(txn_.get())}; }
    FileSystem Files(const Identity &identity) const {
        return {GetStore(), kvfs_txn_process_as(txn_.get(), identity.uid, identity.gid, identity.groups.data(),
                                                identity.groups.size())};
    }

    /* ECANCELED: others have changed the same; nothing has happened, and it can be tried again from its beginning. */
    void Commit() { detail::Checked(kvfs_txn_commit(txn_.release())); }
    void Abort() { txn_.reset(); }

  private:
    friend class FileSystem;
    Transaction(std::shared_ptr<Store> store, kvfs_txn *txn)
        : txn_(detail::Made(txn), detail::EndIn(std::move(store))) {}
    const std::shared_ptr<Store> &GetStore() const noexcept { return txn_.get_deleter().store; }

    detail::OwnedIn<kvfs_txn> txn_;
};

inline void FileSystem::Write(const std::string &keyspace, const WriteBatch &batch) const {
    std::vector<kvfs_change> changes;
    changes.reserve(batch.Size());
    for (const auto &[key, value] : batch.changes_) {
        changes.push_back({key.data(), key.size(), value ? value->data() : nullptr, value ? value->size() : 0});
    }
    detail::Checked(kvfs_kv_write(Get(), keyspace.c_str(), changes.data(), changes.size()));
}

inline Transaction FileSystem::Begin(int flags, const std::string &name) const {
    return {GetStore(), kvfs_txn_begin(GetStore()->Get(), flags, name.c_str())};
}

/* The version of the library. */
inline std::string Version() { return kvfs_version(); }

} // namespace kvfs

#endif
