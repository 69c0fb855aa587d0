//! Programs that map files of the store.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use crate::run::{Served, compiled};

/// Mappings one after the other, which are moved and unmapped in parts; then two that stay, one of them
/// moved, and as many as there can be.
const MAPS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#define P 4096
static char *map(int fd, size_t n) { return mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0); }
static char *move(char *p, size_t n, size_t m) {
  char *to = mmap(0, m, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return mremap(p, n, m, MREMAP_MAYMOVE | MREMAP_FIXED, to);
}
static void sync_it(char *p) { printf("%d ", msync(p, P, MS_SYNC) ? errno : 0); }
int main(int c, char **v) {
  (void)c; int fd = open(v[1], O_CREAT | O_RDWR, 0600); if (fd < 0 || ftruncate(fd, 4 * P)) return 1;
  for (int i = 0; i < 300; i++) {
    char *p = map(fd, 2 * P); if (p == MAP_FAILED) { perror("mmap"); return 2; }
    p = move(p, 2 * P, 4 * P); if (p == MAP_FAILED) return 3;
    p[3 * P] = 'x'; if (munmap(p, P) || munmap(p + 3 * P, P) || munmap(p + P, 2 * P)) return 4;
  }
  char *stays = map(fd, P), *moved = move(map(fd, P), P, P), *last = 0; stays[0] = 'a'; moved[1] = 'b';
  char *part = map(fd, 2 * P); printf("%d ", mremap(part, P, P, MREMAP_MAYMOVE | MREMAP_FIXED, part + P) == MAP_FAILED);
  sync_it(stays); sync_it(moved); printf("\n"); fflush(stdout); getchar();
  sync_it(stays); sync_it(stays); sync_it(moved); printf("\n"); fflush(stdout);
  fd = open(v[1], O_RDWR); if (fd < 0) return 5;
  for (int i = 0; i < 1000; i++) { char *p = map(fd, P); if (p == MAP_FAILED) break; last = p; }
  printf("%d ", errno == ENOMEM); munmap(last, P); printf("%d\n", map(fd, P) != MAP_FAILED); return 0;
}
"#;

/// A mapping stays while the program takes each number for a descriptor of its own, and those that it has
/// taken then stay when the mapping goes.
const TAKES_NUMBERS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#define P 4096
#define N 128
int main(int c, char **v) {
  (void)c; struct rlimit few = {N, N}; if (setrlimit(RLIMIT_NOFILE, &few)) return 1;
  int fd = open(v[1], O_CREAT | O_RDWR, 0600), null = open("/dev/null", O_WRONLY); if (fd < 0 || null < 0 || ftruncate(fd, P)) return 2;
  char *p = mmap(0, P, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0); if (p == MAP_FAILED) return 3; p[0] = 'a';
  int refused = 0, lost = 0, taken[N], count = 0;
  for (int round = 0; round < 20; round++) for (int n = N / 2; n < N; n++) if (dup2(null, n) != n || write(n, "x", 1) != 1 || close(n)) refused++;
  printf("%d %d\n", refused, msync(p, P, MS_SYNC)); fflush(stdout); getchar();
  printf("%d ", msync(p, P, MS_SYNC) ? errno : 0);
  for (int n = 3; n < N; n++) if (fcntl(n, F_GETFD) < 0 && dup2(null, n) == n) taken[count++] = n;
  munmap(p, P); for (int i = 0; i < count; i++) if (write(taken[i], "x", 1) != 1) lost++;
  printf("%d %d\n", count > N / 2, lost); return 0;
}
"#;

/// A thread takes one number after the other, while msync is called.
const SYNCS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#define P 4096
static int null; static volatile int rounds, is_over;
static void *work(void *d) { (void)d; while (!is_over) { for (int n = 64; n < 72; n++) { dup2(null, n); close(n); } rounds++; } return 0; }
int main(int c, char **v) {
  (void)c; struct rlimit few = {128, 128}; if (setrlimit(RLIMIT_NOFILE, &few)) return 1;
  int fd = open(v[1], O_CREAT | O_RDWR, 0600); null = open("/dev/null", O_WRONLY); if (fd < 0 || null < 0 || ftruncate(fd, P)) return 2;
  char *p = mmap(0, P, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0); if (p == MAP_FAILED) return 3; p[0] = 'a';
  printf("%d\n", msync(p, P, MS_SYNC)); fflush(stdout); getchar();
  pthread_t th; pthread_create(&th, 0, work, 0); int unnoticed = 0;
  while (rounds < 4000) if (!msync(p, P, MS_SYNC) || errno != EIO) unnoticed++;
  is_over = 1; pthread_join(th, 0); printf("%d\n", unnoticed); return 0;
}
"#;

/// What a program says before and after its server was replaced.
fn expect_said_with_two_servers(source: &str, options: &[&str], said: [&str; 2]) {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = compiled(directory.path(), source, options) else { return };
    let mut served = Served::new();
    let mut program = served
        .command(program.to_str().expect("text"))
        .arg("/kvfs/f")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("runs");
    let mut output = BufReader::new(program.stdout.take().expect("a pipe"));
    let (mut before, mut after) = (String::new(), String::new());
    output.read_line(&mut before).expect("has synced");
    served.restart();
    program.stdin.take().expect("a pipe").write_all(b"\n").expect("goes on");
    output.read_to_string(&mut after).expect("ends");
    program.wait().expect("has ended");
    assert_eq!([before, after], said);
}

/// Mappings are replaced by others at their addresses, which are not of the file any more.
const REPLACES: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#define P 4096
#define FREE (MAP_PRIVATE | MAP_ANONYMOUS)
static int fd;
static char *map(void *at, int flags) { return mmap(at, 2 * P, PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, 0); }
static int sync_it(char *p) { return msync(p, P, MS_SYNC) ? errno : 0; }
int main(int c, char **v) {
  (void)c; fd = open(v[1], O_CREAT | O_RDWR, 0600); if (fd < 0 || ftruncate(fd, 2 * P)) return 1;
  int failed = 0; char *p = 0, *q = 0, *kept = map(0, 0);
  for (int i = 0; i < 100; i++) {
    p = map(0, 0); failed += p == MAP_FAILED || mmap(p, 2 * P, PROT_READ, FREE | MAP_FIXED, -1, 0) != p;
    q = map(0, 0); char *from = mmap(0, 2 * P, PROT_READ, FREE, -1, 0);
    failed += q == MAP_FAILED || mremap(from, 2 * P, 2 * P, MREMAP_MAYMOVE | MREMAP_FIXED, q) != q;
    failed += map(kept, MAP_FIXED) != kept;
  }
  char *half = map(0, 0); failed += mmap(half, P, PROT_READ, FREE | MAP_FIXED, -1, 0) != half;
  printf("%d %d\n", failed, sync_it(kept)); fflush(stdout); getchar();
  printf("%d %d %d %d %d\n", sync_it(p), sync_it(q), sync_it(half), sync_it(half + P), sync_it(kept)); return 0;
}
"#;

#[test]
fn memory_that_was_replaced_is_not_that_of_the_file_and_lets_it_go() {
    // EIO: the file is another server's.
    expect_said_with_two_servers(REPLACES, &[], ["0 0\n", "0 0 0 5 5\n"]);
}

#[test]
fn mapping_is_synced_whatever_numbers_the_program_takes_and_takes_none_of_them_along() {
    // EIO: the file is another server's.
    expect_said_with_two_servers(TAKES_NUMBERS, &[], ["0 0\n", "5 1 0\n"]);
}

#[test]
fn msync_of_each_mapping_reaches_its_server_or_fails() {
    // EIO: the file is another server's. A mapping that nothing would sync is refused.
    expect_said_with_two_servers(MAPS, &[], ["1 0 0 \n", "5 5 5 \n1 1\n"]);
}

#[test]
fn msync_finds_its_file_while_the_descriptor_that_keeps_it_moves() {
    // The file is another server's, so each fails.
    expect_said_with_two_servers(SYNCS, &["-pthread"], ["0\n", "0\n"]);
}
