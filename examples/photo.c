/* A photo and its tags in a store inside of this program, stored together or not at all: no mount, no daemon.
 *
 * cc photo.c $(pkg-config --cflags --libs kvfs) -o photo && ./photo STORE
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvfs.h>

static const char photo[100000] = {1};

/* Ends the program when something has failed. */
static void need(int is_done, const char *what) {
    if (!is_done) {
        fprintf(stderr, "photo: cannot %s: %s\n", what, kvfs_last_error());
        exit(1);
    }
}

/* Stores both in one transaction; leaves it before its end if that is asked for. */
static void store_photo(kvfs_store *store, int gives_up) {
    kvfs_txn *txn = kvfs_txn_begin(store, 0, "photo");
    kvfs_process *process = kvfs_txn_process(txn);
    int file;
    need(process != NULL, "begin");
    file = kvfs_open(process, "/photos/cat.jpg", O_CREAT | O_WRONLY | O_TRUNC, 0644);
    need(file >= 0 && kvfs_write(process, file, photo, sizeof photo) == sizeof photo, "write the photo");
    need(kvfs_kv_put(process, "photo-tags", "cat.jpg", 7, "cat, sofa", 9) == 0, "put the tags");
    kvfs_process_free(process);
    if (gives_up) {
        kvfs_txn_abort(txn);
    } else {
        need(kvfs_txn_commit(txn) == 0, "commit");
    }
}

static void show(kvfs_process *process) {
    struct stat found;
    char *tags = kvfs_kv_get(process, "photo-tags", "cat.jpg", 7, NULL);
    int is_there = kvfs_stat(process, "/photos/cat.jpg", &found) == 0;
    printf("  photo: %s   tags: %s\n", is_there ? "there" : "absent", tags ? tags : "absent");
    kvfs_free(tags);
}

int main(int argc, char **argv) {
    kvfs_options *options = kvfs_options_new();
    kvfs_store *store;
    kvfs_process *process;
    need(argc == 2, "start: usage: photo STORE");
    kvfs_options_set_memory(options, 64 << 20);
    kvfs_options_set_capacity(options, 1 << 30);
    store = kvfs_store_open(argv[1], KVFS_CREATE, options);
    need(store != NULL, "open the store");
    kvfs_options_free(options);
    process = kvfs_process_new(store);
    need(kvfs_mkdir(process, "/photos", 0755) == 0 || errno == EEXIST, "make a directory");

    puts("a transaction that is aborted:");
    store_photo(store, 1);
    show(process);
    puts("the same, committed:");
    store_photo(store, 0);
    show(process);

    kvfs_process_free(process);
    need(kvfs_store_close(store) == 0, "close the store");
    return 0;
}
