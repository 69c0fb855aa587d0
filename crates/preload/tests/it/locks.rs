//! Locks of ranges.

use crate::run::compare;

/// What another process finds of the lock of a file.
const ASK: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static int lock(int fd, int command) { struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET}; return fcntl(fd, command, &l); }
static void ask(const char *p) {
  fflush(stdout); pid_t pid = fork();
  if (!pid) { int fd = open(p, O_RDWR); struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET}; if (fcntl(fd, F_GETLK, &l)) _exit(1); _exit(l.l_type == F_WRLCK ? 7 : 8); }
  int s; waitpid(pid, &s, 0); printf("%d\n", WEXITSTATUS(s));
}
"#;

/// A child of `posix_spawn` closes the file.
const SPAWNS: &str = r#"
int main(int c, char **v) {
  (void)c; char p[4096]; snprintf(p, sizeof p, "%s/db", v[1]); int fd = open(p, O_CREAT | O_RDWR, 0600);
  printf("%d\n", lock(fd, F_SETLK)); pid_t pid; int s; char *w[] = {"true", 0};
  posix_spawn_file_actions_t a; posix_spawn_file_actions_init(&a); posix_spawn_file_actions_addclose(&a, fd);
  if (posix_spawn(&pid, "/bin/true", &a, 0, w, environ)) return 1;
  waitpid(pid, &s, 0); ask(p); pid = vfork(); if (!pid) { close(fd); _exit(0); }
  waitpid(pid, &s, 0); ask(p); printf("%d\n", (int)write(fd, "x", 1)); close(fd); ask(p); return 0;
}
"#;

/// Of 80 threads each waits for a lock.
const WAITS: &str = r#"
static int held; static volatile int tids[80];
static void *work(void *at) { tids[(long)at] = syscall(SYS_gettid); return (void *)(long)lock(held, F_SETLKW); }
static int sleeps(int tid) {
  char p[64], b[256] = {0}; snprintf(p, sizeof p, "/proc/self/task/%d/stat", tid); FILE *f = fopen(p, "r"); if (!f) return 0;
  fread(b, 1, sizeof b - 1, f); fclose(f); char *state = strrchr(b, ')'); return state && state[2] == 'S';
}
int main(int c, char **v) {
  (void)c; char p[4096], q[4096]; snprintf(p, sizeof p, "%s/held", v[1]); snprintf(q, sizeof q, "%s/own", v[1]);
  int ready[2], done[2]; char b; if (pipe(ready) || pipe(done)) return 1; pid_t pid = fork();
  if (!pid) { close(done[1]); int fd = open(p, O_CREAT | O_RDWR, 0600); if (lock(fd, F_SETLK)) _exit(1); write(ready[1], "x", 1); read(done[0], &b, 1); _exit(0); }
  if (read(ready[0], &b, 1) != 1) return 2;
  held = open(p, O_RDWR); int own = open(q, O_CREAT | O_RDWR, 0600); pthread_t th[80];
  for (long i = 0; i < 80; i++) pthread_create(&th[i], 0, work, (void *)i);
  for (int i = 0; i < 80; i++) while (!tids[i] || !sleeps(tids[i])) sched_yield();
  printf("%d\n", lock(own, F_SETLK)); ask(q); printf("%d\n", lock(own, F_SETLK)); ask(q);
  for (int i = 0; i < 2000; i++) if (lseek(own, i, SEEK_SET) != i) return 3;
  close(done[1]); long failed = 0; void *r; for (int i = 0; i < 80; i++) { pthread_join(th[i], &r); failed |= (long)r; }
  int s; waitpid(pid, &s, 0); printf("%ld %d\n", failed, s); ask(p); ask(q); return 0;
}
"#;

/// Of two descriptors of an open file, one is closed while a thread waits for a lock by the other.
const CLOSES: &str = r#"
static int fd; static volatile int tid;
static void *work(void *d) { (void)d; tid = syscall(SYS_gettid); return (void *)(long)lock(fd, F_SETLKW); }
static int sleeps(void) {
  char p[64], b[256] = {0}; snprintf(p, sizeof p, "/proc/self/task/%d/stat", tid); FILE *f = fopen(p, "r"); if (!f) return 0;
  fread(b, 1, sizeof b - 1, f); fclose(f); char *state = strrchr(b, ')'); return state && state[2] == 'S';
}
int main(int c, char **v) {
  (void)c; char p[4096], q[4096], b; snprintf(p, sizeof p, "%s/f", v[1]); snprintf(q, sizeof q, "%s/own", v[1]);
  int ready[2], done[2]; if (pipe(ready) || pipe(done)) return 1;
  if (!fork()) { close(done[1]); int own = open(p, O_CREAT | O_RDWR, 0600); if (lock(own, F_SETLK)) _exit(1); write(ready[1], "x", 1); read(done[0], &b, 1); _exit(0); }
  if (read(ready[0], &b, 1) != 1) return 2;
  fd = open(p, O_RDWR); int copy = dup(fd), own = open(q, O_CREAT | O_RDWR, 0600); if (lock(own, F_SETLK)) return 3;
  pthread_t th; pthread_create(&th, 0, work, 0); while (!tid || !sleeps()) sched_yield();
  close(copy); close(done[1]); void *r; pthread_join(th, &r); int s; wait(&s);
  printf("%d %d\n", (int)(long)r, s); ask(p); copy = dup(fd); ask(p); close(copy); ask(p); return 0;
}
"#;

/// A file is closed by each of the calls that close, while a copy of the descriptor stays.
const REPLACES: &str = r#"
int main(int c, char **v) {
  (void)c; char p[4096]; snprintf(p, sizeof p, "%s/db", v[1]); int null = open("/dev/null", O_RDWR), kept = open(p, O_CREAT | O_RDWR, 0600);
  for (int how = 0; how < 5; how++) {
    int fd = dup(kept); lock(fd, F_SETLK); ask(p);
    // None of these closes it.
    dup2(fd, fd); dup2(77, fd); syscall(SYS_close_range, fd, fd, 4); ask(p);
    if (how == 0) close(fd); else if (how == 1) dup2(null, fd); else if (how == 2) dup3(null, fd, O_CLOEXEC); else if (how == 3) syscall(SYS_close_range, fd, ~0U, 0); else dup2(kept, fd);
    ask(p); close(fd);
  }
  printf("%d\n", (int)write(kept, "x", 1)); return 0;
}
"#;

/// A file is closed whose number is above the limit by now; then a program that may have very many numbers
/// closes ranges without an end. What fails closes nothing.
const CLOSES_RANGES: &str = r#"
#include <sys/resource.h>
#include <time.h>
int main(int c, char **v) {
  (void)c; char p[4096]; snprintf(p, sizeof p, "%s/db", v[1]); int fd = open(p, O_CREAT | O_RDWR, 0600), high = fcntl(fd, F_DUPFD, 300);
  struct rlimit was, few = {200, 200}, many = {1 << 20, 1 << 20}; getrlimit(RLIMIT_NOFILE, &was); few.rlim_max = was.rlim_max; setrlimit(RLIMIT_NOFILE, &few);
  lock(fd, F_SETLK); printf("%ld %ld\n", syscall(SYS_close_range, high, ~0U, 8), syscall(SYS_close_range, ~0U, 3, 0)); ask(p);
  printf("%ld\n", syscall(SYS_close_range, high, ~0U, 0)); ask(p);
  // Only root may have so many.
  if (setrlimit(RLIMIT_NOFILE, &many)) setrlimit(RLIMIT_NOFILE, &was);
  lock(fd, F_SETLK); clock_t start = clock(); for (int i = 0; i < 50; i++) syscall(SYS_close_range, fd + 1, ~0U, 0);
  printf("%d\n", clock() - start < 2 * CLOCKS_PER_SEC); ask(p); close(fd); ask(p); return 0;
}
"#;

fn compare_program(main: &str) {
    compare(
        &["gcc"],
        &format!("gcc -w -pthread -o $D/prog -x c - <<'C_END'\n{ASK}{main}\nC_END\n$D/prog $D; rm $D/prog"),
    );
}

#[test]
fn close_in_a_child_of_vfork_leaves_the_locks_of_its_parent() {
    compare_program(SPAWNS);
}

#[test]
fn lock_is_kept_while_many_threads_of_it_call() {
    compare_program(WAITS);
}

#[test]
fn thread_that_waits_for_a_lock_gets_it_though_a_copy_of_its_descriptor_was_closed() {
    compare_program(CLOSES);
}

#[test]
fn locks_end_with_each_call_that_closes_a_descriptor_of_the_file() {
    compare_program(REPLACES);
}

#[test]
fn range_that_is_closed_ends_locks_whatever_the_limit_is_and_in_the_time_of_what_is_open() {
    compare_program(CLOSES_RANGES);
}
