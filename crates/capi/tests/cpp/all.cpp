/* Every class and method of kvfs.hpp, also where it fails. usage: all DIRECTORY */

#include <cstdlib>
#include <iostream>
#include <set>

#include <sys/file.h>
#include <unistd.h>

#include "kvfs.hpp"

#define CHECK(what)                                                              \
    do {                                                                         \
        if (!(what)) {                                                           \
            std::cerr << __FILE__ << ':' << __LINE__ << ": " << #what << '\n';   \
            std::exit(1);                                                        \
        }                                                                        \
    } while (0)

#define THROWS(number, work)                                                                       \
    do {                                                                                           \
        int found = 0;                                                                             \
        try {                                                                                      \
            (void)(work);                                                                          \
        } catch (const kvfs::Error &error) {                                                       \
            found = error.Errno();                                                                 \
            CHECK(error.code() == std::error_code(found, std::generic_category()));                \
            CHECK(std::string(error.what()).size() > 0);                                           \
        }                                                                                          \
        if (found != (number)) {                                                                   \
            std::cerr << __FILE__ << ':' << __LINE__ << ": " << #work << ": " << found << '\n';    \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (0)

namespace {

const kvfs::Identity kRoot{};

kvfs::Options Small() {
    kvfs::Options options;
    options.Memory(64 << 20).Capacity(512 << 20).Inline(4096).CommitInterval(1000).AccessTimes(KVFS_ATIME_NEVER);
    return options;
}

void Files(const kvfs::FileSystem &fs) {
    fs.MkDir("/files", 0755);
    THROWS(EEXIST, (fs.MkDir("/files"), 0));
    fs.ChDir("/files");
    CHECK(fs.GetCurrentDirName() == "/files");
    {
        kvfs::File file(fs, "a", O_CREAT | O_RDWR, 0644);
        CHECK(file.Write("hello, world") == 12);
        CHECK(file.PWrite("H", 0) == 1);
        CHECK(file.LSeek(0, SEEK_SET) == 0);
        CHECK(file.ReadAll() == "Hello, world");
        char part[5];
        CHECK(file.PRead(part, sizeof part, 7) == 5 && std::string(part, 5) == "world");
        file.Truncate(5);
        CHECK(file.Stat().st_size == 5);
        file.Sync();
        kvfs::File moved(std::move(file));
        CHECK(moved.Descriptor() >= 0);
        moved.Close();
        THROWS(EBADF, (moved.Close(), 0));
    }
    const int fd = fs.Creat("b", 0600);
    CHECK(fs.Write(fd, "data", 4) == 4);
    CHECK(fs.PWrite(fd, "!", 1, 4) == 1);
    iovec out[] = {{const_cast<char *>("x"), 1}, {const_cast<char *>("yz"), 2}};
    CHECK(fs.WriteV(fd, out, 2) == 3);
    fs.FSync(fd);
    fs.Sync();
    THROWS(EBADF, fs.Read(fd, out, 0) + fs.PRead(fd, out, 1, 0));
    const int copy = fs.Dup(fd);
    CHECK(fs.Dup2(fd, 40) == 40 && fs.FCntl(40, F_GETFD) == 0);
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    fs.FCntl(fd, F_SETLK, lock);
    fs.FLock(fd, LOCK_EX);
    fs.FAllocate(fd, 0, 0, 4096);
    fs.FTruncate(fd, 3);
    fs.FChMod(fd, 0644);
    fs.FChOwn(fd, 1, 1);
    CHECK(fs.FStat(fd).st_uid == 1);
    fs.Close(copy);
    fs.Close(40);
    fs.Close(fd);
    const int again = fs.Open("b", O_RDONLY);
    char content[8];
    iovec in[] = {{content, 1}, {content + 1, 7}};
    CHECK(fs.ReadV(again, in, 2) == 3 && std::string(content, 3) == "dat");
    CHECK(fs.LSeek(again, 0, SEEK_SET) == 0 && fs.Read(again, content, 8) == 3);
    fs.Close(again);
    fs.Truncate("b", 0);
    CHECK(fs.Stat("b").st_size == 0);
    fs.Link("b", "c");
    fs.Rename("c", "d");
    fs.SymLink("d", "s");
    CHECK(fs.ReadLink("s") == "d" && S_ISLNK(fs.LStat("s").st_mode));
    fs.LChOwn("s", 2, 2);
    fs.ChOwn("d", 3, 3);
    fs.ChMod("d", 0600);
    fs.MkNod("fifo", S_IFIFO | 0600);
    fs.Access("d", R_OK);
    CHECK(fs.Allows("d", W_OK) && !fs.Allows("none", F_OK));
    THROWS(ENOENT, (fs.Access("none", F_OK), 0));
    const utimbuf times = {10, 20};
    fs.UTime("d", &times);
    CHECK(fs.Stat("d").st_mtime == 20);
    const timespec exact[] = {{30, 1}, {40, 2}};
    fs.UTimeNS("d", exact);
    CHECK(fs.Stat("d").st_mtim.tv_nsec == 2);
    CHECK(fs.StatVFS().f_namemax == 255);
    fs.SetXAttr("d", "user.one", "1");
    fs.SetXAttr("d", "user.two", "");
    CHECK(fs.GetXAttr("d", "user.one") == "1" && fs.GetXAttr("d", "user.two").empty());
    CHECK(fs.ListXAttr("d").size() == 2);
    fs.RemoveXAttr("d", "user.one");
    THROWS(ENODATA, fs.GetXAttr("d", "user.one"));

    std::set<std::string> names;
    kvfs::DirectoryStream stream = fs.OpenDir("/files");
    while (const dirent *entry = stream.Read()) {
        names.insert(entry->d_name);
    }
    CHECK((names == std::set<std::string>{".", "..", "a", "b", "d", "s", "fifo"}));
    stream.Rewind();
    CHECK(stream.Read() != nullptr);
    const long place = stream.Tell();
    const std::string next = stream.Read()->d_name;
    stream.Seek(place);
    CHECK(stream.Read()->d_name == next);
    fs.FChDir(stream.Descriptor());
    fs.Close(fs.OpenAt(stream.Descriptor(), "a", O_RDONLY));
    stream.Close();
    fs.FDOpenDir(fs.Open("/files", O_RDONLY));
    THROWS(ENOENT, fs.OpenDir("/none"));

    fs.UnLink("s");
    fs.Remove("fifo");
    THROWS(ENOTEMPTY, (fs.RmDir("/files"), 0));
    fs.MkDir("empty");
    fs.RmDir("empty");
    fs.MkDir("tree");
    fs.MkDir("tree/below");
    fs.Close(fs.Open("tree/below/file", O_CREAT | O_WRONLY));
    fs.CloneTree("tree", "clone");
    fs.Close(fs.Open("clone/below/file", O_RDONLY));
    THROWS(EEXIST, (fs.CloneTree("tree", "clone"), 0));
    fs.RemoveTree("clone");
    fs.RemoveTree("tree");
    THROWS(ENOENT, (fs.RemoveTree("tree"), 0));
    CHECK(fs.UMask(077) == 022 && fs.UMask(022) == 077);
    const kvfs::FileSystem child = fs.Fork();
    CHECK(child.GetCurrentDirName() == "/files");
    child.Exec();
}

void Keys(const kvfs::FileSystem &fs) {
    fs.CreateKeyspace("app");
    THROWS(EEXIST, (fs.CreateKeyspace("app"), 0));
    fs.Put("app", "a", "1");
    fs.Put("app", "b", std::string("2\0", 2));
    CHECK(fs.Get("app", "b") == std::string("2\0", 2) && !fs.Get("app", "c"));
    kvfs::Cursor cursor = fs.Scan("app", "a", "b");
    THROWS(EINVAL, cursor.Key());
    CHECK(cursor.Next() && cursor.Key() == "a" && cursor.Value() == "1" && !cursor.Next());
    kvfs::Cursor back = fs.Scan("app");
    CHECK(back.Prev() && back.Key() == "b");
    CHECK(fs.Delete("app", "a") && !fs.Delete("app", "a"));
    fs.DeleteRange("app", "");
    CHECK(!fs.Get("app", "b") && fs.Keyspaces() == std::vector<std::string>{"app"});
    fs.Write("app", kvfs::WriteBatch().Put("x", "1").Put("y", "").Delete("b"));
    CHECK(fs.Get("app", "x") == "1" && fs.Get("app", "y") == "");
    THROWS(EINVAL, (fs.Write("app", kvfs::WriteBatch().Put("z", "1").Put("", "2")), 0));
    CHECK(!fs.Get("app", "z"));
    fs.DropKeyspace("app");
    CHECK(fs.Keyspaces().empty());
}

void Transactions(const kvfs::FileSystem &fs) {
    kvfs::Transaction txn = fs.Begin(0, "test");
    {
        const kvfs::FileSystem inside = txn.Files(kRoot);
        inside.MkDir("/together");
        inside.Put("app", "k", "v");
    }
    CHECK(!fs.Allows("/together", F_OK));
    txn.Commit();
    CHECK(fs.Allows("/together", F_OK) && fs.Get("app", "k") == "v");
    {
        const kvfs::Transaction dropped = fs.Begin(KVFS_SERIALIZABLE);
        dropped.Files().GetCurrentDirName();
        dropped.Files(kRoot).MkDir("/dropped");
    }
    CHECK(!fs.Allows("/dropped", F_OK));
    kvfs::Transaction one = fs.Begin(), other = fs.Begin();
    one.Files(kRoot).Put("app", "k", "1");
    one.Commit();
    THROWS(ECANCELED, (other.Files(kRoot).Put("app", "k", "2"), 0));
    THROWS(ECANCELED, (other.Commit(), 0));
    kvfs::Transaction aborted = fs.Begin();
    aborted.Abort();
}

} // namespace

int main(int count, char **arguments) {
    if (count != 2) {
        return 2;
    }
    const std::string path = std::string(arguments[1]) + "/store";
    CHECK(!kvfs::Version().empty());
    THROWS(ENOENT, kvfs::Store(path, 0));
    kvfs::Store::Format(path, Small());
    THROWS(EEXIST, kvfs::Store(path, KVFS_CREATE | KVFS_EXCL));
    auto store = std::make_shared<kvfs::Store>(path, 0, Small());
    CHECK(!store->IsServed());
    {
        const kvfs::FileSystem fs(store, kRoot);
        Files(fs);
        Keys(fs);
        Transactions(fs);
        THROWS(EBUSY, (store->Close(), 0));
        store->Sync();
        store->CreateSnapshot("monday");
        CHECK(store->Snapshots() == std::vector<std::string>{"monday"});
        fs.UnLink("/files/a");
        CHECK(fs.InSnapshot("monday", kRoot).Allows("/files/a", R_OK));
        THROWS(EROFS, (fs.InSnapshot("monday").MkDir("/new"), 0));
        THROWS(ENOENT, fs.InSnapshot("tuesday"));
        store->DeleteSnapshot("monday");
        CHECK(fs.GetStore() == store);
    }
    store->Close();
    store.reset();

    kvfs::FileSystem fs(path, 0, Small());
    kvfs::FileSystem also(std::move(fs));
    also.ChDir("/");
    fs = std::move(also);
    fs.UnMount();
    {
        /* What is left keeps its store open, and closes it. */
        kvfs::Transaction txn = kvfs::FileSystem(path, 0, Small()).Begin();
        kvfs::FileSystem other(std::string(arguments[1]) + "/other", KVFS_CREATE, Small());
        txn = other.Begin();
        kvfs::DirectoryStream stream = kvfs::FileSystem(path, 0, Small()).OpenDir("/");
        CHECK(stream.Read() != nullptr);
        stream = other.OpenDir("/");
        kvfs::Cursor cursor = kvfs::FileSystem(path, 0, Small()).Scan("app");
        CHECK(cursor.Next() && cursor.Key() == "k");
    }
    kvfs::FileSystem(path, KVFS_RDONLY, Small()).Stat("/together");
    std::cout << "all functions do what they should\n";
    return 0;
}
