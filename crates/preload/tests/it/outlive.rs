//! Programs that outlive their server.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::run::{PREFIX, Served, compiled, under};

/// Two threads wait for locks that a child has, so that the process has three lanes. The child gives one up.
/// When the server is gone `stat` fails once, the other thread's wait ends, and a lock is there to stay.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static int held; static volatile int tids[2];
static int lock(int fd, int command, int at, int type) { struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1}; return fcntl(fd, command, &l) ? -1 : l.l_type; }
static void *work(void *at) { tids[(long)at] = syscall(SYS_gettid); return (void *)(long)lock(held, F_SETLKW, (long)at, F_WRLCK); }
static int sleeps(int tid) {
  char p[64], b[256] = {0}; snprintf(p, sizeof p, "/proc/self/task/%d/stat", tid); FILE *f = fopen(p, "r"); if (!f) return 0;
  fread(b, 1, sizeof b - 1, f); fclose(f); char *state = strrchr(b, ')'); return state && state[2] == 'S';
}
int main(int c, char **v) {
  (void)c; char p[4096], b; snprintf(p, sizeof p, "%s/held", v[1]); int ready[2], done[2]; if (pipe(ready) || pipe(done)) return 1;
  if (!fork()) {
    close(done[1]); close(ready[0]); int fd = open(p, O_CREAT | O_RDWR, 0600);
    if (lock(fd, F_SETLK, 0, F_WRLCK) < 0 || lock(fd, F_SETLK, 1, F_WRLCK) < 0) _exit(1);
    write(ready[1], "x", 1); read(done[0], &b, 1); lock(fd, F_SETLK, 1, F_UNLCK); read(done[0], &b, 1); _exit(0);
  }
  if (read(ready[0], &b, 1) != 1) return 2;
  held = open(p, O_RDWR); pthread_t th[2]; struct stat st; void *r;
  for (long i = 0; i < 2; i++) pthread_create(&th[i], 0, work, (void *)i);
  for (int i = 0; i < 2; i++) while (!tids[i] || !sleeps(tids[i])) sched_yield();
  printf("%d\n", stat(v[1], &st)); write(done[1], "x", 1); pthread_join(th[1], &r); printf("%d ready\n", (int)(long)r); fflush(stdout);
  if (read(0, &b, 1) != 1) return 3;
  for (int i = 0; i < 3; i++) printf("%d\n", stat(v[1], &st));
  pthread_join(th[0], &r); printf("%d\n", (int)(long)r);
  int own = open(p, O_CREAT | O_RDWR, 0600); printf("%d\n", lock(own, F_SETLK, 2, F_WRLCK)); for (int i = 0; i < 3; i++) printf("%d\n", stat(v[1], &st));
  fflush(stdout); pid_t pid = fork(); if (!pid) { int fd = open(p, O_RDWR); _exit(lock(fd, F_GETLK, 2, F_WRLCK) == F_WRLCK ? 7 : 8); }
  int s; waitpid(pid, &s, 0); printf("%d\n", WEXITSTATUS(s)); return 0;
}
"#;

/// Names the directory in which [`server_of_another_test`] is one.
const DIRECTORY: &str = "KVFS_TEST_SERVER";

#[test]
#[ignore = "a server that another test kills"]
fn server_of_another_test() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let served = Served::at(Path::new(&directory));
    println!("\nready");
    // Until it is killed.
    std::io::stdin().read_to_end(&mut Vec::new()).expect("is open");
    drop(served);
}

/// The output up to a line.
fn until(output: &mut BufReader<ChildStdout>, line: &str) -> String {
    let mut said = String::new();
    while !said.lines().any(|one| one == line) {
        assert_ne!(output.read_line(&mut said).expect("reads"), 0, "{said}");
    }
    said
}

fn serve(directory: &Path) -> (Child, BufReader<ChildStdout>) {
    let test = std::env::current_exe().expect("a test knows where it is");
    let mut server = Command::new(test)
        .args(["--exact", "outlive::server_of_another_test", "--ignored", "--nocapture"])
        .env(DIRECTORY, directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("runs");
    let mut output = BufReader::new(server.stdout.take().expect("a pipe"));
    until(&mut output, "ready");
    (server, output)
}

#[test]
fn threads_of_a_program_whose_server_was_killed_end_their_calls_and_use_the_next_one() {
    let (directory, other) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let Some(program) = compiled(other.path(), PROGRAM, &["-w", "-pthread"]) else { return };
    let (mut server, _output) = serve(directory.path());
    let mut command = under(program.to_str().expect("text"), directory.path());
    let mut program = command.arg(PREFIX).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("runs");
    let mut output = BufReader::new(program.stdout.take().expect("a pipe"));
    let before = until(&mut output, "1 ready");
    server.kill().expect("is killed");
    server.wait().expect("has ended");
    std::fs::remove_file(directory.path().join("socket")).expect("was there");
    let (mut server, _output) = serve(directory.path());
    program.stdin.take().expect("a pipe").write_all(b"x").expect("goes on");
    let mut after = String::new();
    output.read_to_string(&mut after).expect("ends");
    program.wait().expect("has ended");
    assert_eq!((&*before, &*after), ("0\n1 ready\n", "-1\n0\n0\n-1\n1\n0\n0\n0\n7\n"));
    drop(server.stdin.take());
    server.wait().expect("has ended");
}

/// The first call of a thread waits for a server; the program goes elsewhere meanwhile.
const GOES_ELSEWHERE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static volatile int tid;
static void *work(void *path) { struct stat st; tid = syscall(SYS_gettid); return (void *)(long)stat(path, &st); }
static int sleeps(void) {
  char p[64], b[256] = {0}; snprintf(p, sizeof p, "/proc/self/task/%d/stat", tid); FILE *f = fopen(p, "r"); if (!f) return 0;
  fread(b, 1, sizeof b - 1, f); fclose(f); char *state = strrchr(b, ')'); return state && state[2] == 'S';
}
int main(int c, char **v) {
  (void)c; pthread_t th; pthread_create(&th, 0, work, v[1]); while (!tid || !sleeps()) sched_yield();
  printf("%d\n", chdir("/")); fflush(stdout); _exit(0);
}
"#;

#[test]
fn program_goes_elsewhere_while_a_server_does_not_answer() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = compiled(directory.path(), GOES_ELSEWHERE, &["-pthread"]) else { return };
    let run = tempfile::tempdir().expect("another one");
    // Takes no connection.
    let _listener = UnixListener::bind(run.path().join("socket")).expect("binds");
    let program = [program.to_str().expect("text"), PREFIX];
    let ran = under("timeout", run.path()).args(["-s", "KILL", "60"]).args(program).output().expect("runs");
    assert_eq!((String::from_utf8_lossy(&ran.stdout).as_ref(), ran.status.code()), ("0\n", Some(0)));
}
