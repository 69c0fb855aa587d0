/* What tests of the library say and count. */

#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvfs.h"

#define CHECK(what)                                                                                        \
    do {                                                                                                   \
        errno = 0;                                                                                         \
        if (!(what)) {                                                                                     \
            fprintf(stderr, "%s:%d: %s: %s (%s)\n", __FILE__, __LINE__, #what, strerror(errno), kvfs_last_error()); \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

/* It fails with -1 and this errno, and says why. */
#define FAILS(number, what)                                                                                \
    do {                                                                                                   \
        errno = 0;                                                                                         \
        if ((what) != -1 || errno != (number) || !*kvfs_last_error()) {                                    \
            fprintf(stderr, "%s:%d: %s: %s, not %s (%s)\n", __FILE__, __LINE__, #what, strerror(errno),    \
                    strerror(number), kvfs_last_error());                                                  \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

/* The same of what returns a pointer. */
#define IS_NULL(number, what)                                                                              \
    do {                                                                                                   \
        errno = 0;                                                                                         \
        if ((what) != NULL || errno != (number) || !*kvfs_last_error()) {                                  \
            fprintf(stderr, "%s:%d: %s: %s, not %s (%s)\n", __FILE__, __LINE__, #what, strerror(errno),    \
                    strerror(number), kvfs_last_error());                                                  \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

#endif
