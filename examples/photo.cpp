// A photo and its tags in a store inside of this program, stored together or not at all: no mount, no daemon.
//
// c++ -std=c++17 photo.cpp $(pkg-config --cflags --libs kvfs) -o photo && ./photo STORE

#include <iostream>
#include <string>

#include <unistd.h>

#include <kvfs.hpp>

namespace {

const std::string kPhoto(100000, '\1');

void StorePhoto(const kvfs::FileSystem &fs, bool gives_up) {
    kvfs::Transaction txn = fs.Begin();
    const kvfs::FileSystem inside = txn.Files();
    kvfs::File(inside, "/photos/cat.jpg", O_CREAT | O_WRONLY | O_TRUNC, 0644).Write(kPhoto);
    inside.Put("photo-tags", "cat.jpg", "cat, sofa");
    // A transaction that is not committed has not happened.
    if (!gives_up) {
        txn.Commit();
    }
}

void Show(const kvfs::FileSystem &fs) {
    std::cout << "  photo: " << (fs.Allows("/photos/cat.jpg", F_OK) ? "there" : "absent")
              << "   tags: " << fs.Get("photo-tags", "cat.jpg").value_or("absent") << '\n';
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 2) {
        std::cerr << "usage: photo STORE\n";
        return 2;
    }
    try {
        kvfs::FileSystem fs(argv[1], KVFS_CREATE, kvfs::Options().Memory(64 << 20).Capacity(1 << 30));
        if (!fs.Allows("/photos", F_OK)) {
            fs.MkDir("/photos", 0755);
        }
        std::cout << "a transaction that is given up:\n";
        StorePhoto(fs, true);
        Show(fs);
        std::cout << "the same, committed:\n";
        StorePhoto(fs, false);
        Show(fs);
        fs.UnMount();
    } catch (const kvfs::Error &error) {
        std::cerr << "photo: " << error.what() << '\n';
        return 1;
    }
    return 0;
}
