// An io_uring client without a library: writes a file through the ring, fsyncs it, reads it back, with and without O_DIRECT.
// usage: uring FILE; ends with 77 where the kernel has no io_uring.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct io_uring_params params;
static int ring;
static char *sq, *cq;
static struct io_uring_sqe *sqes;

static void die(const char *what, int error) {
  fprintf(stderr, "%s: %s\n", what, strerror(error));
  exit(1);
}

// One operation to its end.
static int run(int opcode, int fd, void *data, unsigned len, unsigned long offset) {
  unsigned *tail = (unsigned *)(sq + params.sq_off.tail), mask = *(unsigned *)(sq + params.sq_off.ring_mask);
  unsigned index = *tail & mask;
  struct io_uring_sqe *sqe = &sqes[index];
  memset(sqe, 0, sizeof *sqe);
  sqe->opcode = opcode, sqe->fd = fd, sqe->addr = (unsigned long)data, sqe->len = len, sqe->off = offset;
  ((unsigned *)(sq + params.sq_off.array))[index] = index;
  __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
  if (syscall(__NR_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0) die("io_uring_enter", errno);
  unsigned *head = (unsigned *)(cq + params.cq_off.head);
  struct io_uring_cqe *cqe = (struct io_uring_cqe *)(cq + params.cq_off.cqes) + (*head & *(unsigned *)(cq + params.cq_off.ring_mask));
  int result = cqe->res;
  __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
  if (result < 0) die("operation", -result);
  return result;
}

static void *map(unsigned long len, unsigned long offset) {
  void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, offset);
  if (at == MAP_FAILED) die("mmap", errno);
  return at;
}

int main(int argc, char **argv) {
  enum { BLOCK = 65536, BLOCKS = 16 };
  if (argc != 2) return 2;
  ring = syscall(__NR_io_uring_setup, 8, &params);
  if (ring < 0) return printf("io_uring: %s\n", strerror(errno)), 77;
  sq = map(params.sq_off.array + params.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
  cq = map(params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
  sqes = map(params.sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
  char *out = aligned_alloc(4096, BLOCK), *in = aligned_alloc(4096, BLOCK);
  for (int direct = 0; direct < 2; direct++) {
    int fd = open(argv[1], O_CREAT | O_TRUNC | O_RDWR | (direct ? O_DIRECT : 0), 0644);
    if (fd < 0) die(argv[1], errno);
    for (int i = 0; i < BLOCKS; i++) {
      memset(out, i + 1 + direct * 100, BLOCK);
      if (run(IORING_OP_WRITE, fd, out, BLOCK, (unsigned long)i * BLOCK) != BLOCK) die("short write", EIO);
    }
    run(IORING_OP_FSYNC, fd, NULL, 0, 0);
    for (int i = 0; i < BLOCKS; i++) {
      memset(out, i + 1 + direct * 100, BLOCK);
      if (run(IORING_OP_READ, fd, in, BLOCK, (unsigned long)i * BLOCK) != BLOCK) die("short read", EIO);
      if (memcmp(in, out, BLOCK)) die("content", EILSEQ);
    }
    close(fd);
  }
  return 0;
}
