/* On the mount of an empty store, whose directory is the first argument. */

#include <fcntl.h>

#include "check.h"

int main(int count, char **arguments)
{
    struct kvfs_store *store;
    struct kvfs_process *p;
    char inside[4096];
    int fd;

    CHECK(count == 2);
    IS_NULL(EEXIST, kvfs_store_open(arguments[1], KVFS_CREATE | KVFS_EXCL, NULL));
    FAILS(EBUSY, kvfs_store_format(arguments[1], NULL));
    snprintf(inside, sizeof inside, "%s/inside", arguments[1]);
    FAILS(EBUSY, kvfs_store_format(inside, NULL));
    IS_NULL(EBUSY, kvfs_store_open(inside, KVFS_CREATE, NULL));

    CHECK((store = kvfs_store_open(arguments[1], KVFS_CREATE, NULL)));
    CHECK(kvfs_store_is_served(store) == 1);
    CHECK((p = kvfs_process_new(store)));
    CHECK((fd = kvfs_open(p, "/file", O_CREAT | O_WRONLY, 0644)) >= 0);
    CHECK(kvfs_write(p, fd, "text", 4) == 4);
    CHECK(kvfs_close(p, fd) == 0);
    kvfs_process_free(p);
    CHECK(kvfs_store_close(store) == 0);
    puts("the store is the mounted one");
    return 0;
}
