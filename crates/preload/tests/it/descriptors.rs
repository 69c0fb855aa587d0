//! Descriptors that come from other processes, and those that the server does not know.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};

use crate::run::{Served, compare};

/// Two descriptors of the store arrive by one call of recvmmsg, and are written to.
const RECEIVES: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int c, char **v) {
  (void)c; int s[2]; if (socketpair(AF_UNIX, SOCK_DGRAM, 0, s)) return 1;
  for (int i = 0; i < 2; i++) {
    int fd = open(v[1], O_CREAT | O_WRONLY | O_APPEND, 0600); char b[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec o = {"x", 1}; struct msghdr m = {.msg_iov = &o, .msg_iovlen = 1, .msg_control = b, .msg_controllen = sizeof b};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m); h->cmsg_level = SOL_SOCKET; h->cmsg_type = SCM_RIGHTS; h->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(h), &fd, sizeof fd); if (sendmsg(s[0], &m, 0) != 1) return 2; close(fd);
  }
  // What arrives gets numbers that were never of the store.
  for (int i = 0; i < 90; i++) if (fcntl(0, F_DUPFD, 3) < 0) return 3;
  char d[2], b[2][CMSG_SPACE(sizeof(int))]; struct iovec o[2] = {{d, 1}, {d + 1, 1}}; struct mmsghdr m[2]; memset(m, 0, sizeof m);
  for (int i = 0; i < 2; i++) m[i].msg_hdr = (struct msghdr){.msg_iov = o + i, .msg_iovlen = 1, .msg_control = b[i], .msg_controllen = sizeof b[i]};
  if (recvmmsg(s[1], m, 2, 0, 0) != 2) return 4;
  for (int i = 0; i < 2; i++) {
    int fd; memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m[i].msg_hdr)), sizeof fd);
    printf("%ld\n", (long)write(fd, "hi\n", 3));
  }
  return 0;
}
"#;

#[test]
fn descriptors_that_arrive_in_several_messages_are_those_of_the_store() {
    compare(
        &["gcc"],
        &format!(
            "gcc -o $D/prog -x c - <<'C_END'\n{RECEIVES}\nC_END\n$D/prog $D/log; cat $D/log; rm $D/prog"
        ),
    );
}

/// A thread waits for a lock that a child has, so that another call needs a lane; then all numbers are used.
const USES_ALL_NUMBERS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static int fd; static volatile int tid;
static int lock(int fd, int command) { struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET}; return fcntl(fd, command, &l); }
static void *work(void *d) { (void)d; tid = syscall(SYS_gettid); return (void *)(long)lock(fd, F_SETLKW); }
static int sleeps(void) {
  char p[64], b[256] = {0}; snprintf(p, sizeof p, "/proc/self/task/%d/stat", tid); FILE *f = fopen(p, "r"); if (!f) return 0;
  fread(b, 1, sizeof b - 1, f); fclose(f); char *state = strrchr(b, ')'); return state && state[2] == 'S';
}
int main(int c, char **v) {
  (void)c; char p[4096], q[4096], b[8] = {0}; snprintf(p, sizeof p, "%s/f", v[1]); snprintf(q, sizeof q, "%s/x.lock", v[1]);
  struct rlimit few = {64, 64}; if (setrlimit(RLIMIT_NOFILE, &few)) return 1;
  fd = open(p, O_CREAT | O_RDWR, 0600); if (write(fd, "kept", 4) != 4) return 2; int ready[2], done[2]; if (pipe(ready) || pipe(done)) return 3;
  if (!fork()) { close(done[1]); int own = open(p, O_RDWR); if (lock(own, F_SETLK)) _exit(1); write(ready[1], "x", 1); read(done[0], b, 1); _exit(0); }
  if (read(ready[0], b, 1) != 1) return 4;
  pthread_t th; pthread_create(&th, 0, work, 0); while (!tid || !sleeps()) sched_yield();
  while (dup(0) >= 0) ;
  printf("%d\n", errno == EMFILE); printf("%d\n", (int)pread(fd, b, 4, 0));
  printf("%d %d\n", open(p, O_WRONLY | O_TRUNC), errno == EMFILE); printf("%d %d\n", open(q, O_CREAT | O_EXCL | O_WRONLY, 0600), errno == EMFILE);
  struct stat st; printf("%d %d\n", fstat(fd, &st), (int)st.st_size); printf("%d\n", access(q, F_OK));
  close(ready[0]); printf("%d\n", open(q, O_CREAT | O_EXCL | O_WRONLY, 0600) >= 0); close(ready[1]); printf("%d %d\n", open(q, O_CREAT | O_EXCL | O_WRONLY, 0600), errno == EEXIST);
  close(done[1]); void *r; pthread_join(th, &r); printf("%d\n", (int)(long)r); return 0;
}
"#;

#[test]
fn program_without_a_free_number_calls_on_and_makes_and_truncates_nothing() {
    compare(
        &["gcc"],
        &format!(
            "gcc -w -pthread -o $D/prog -x c - <<'C_END'\n{USES_ALL_NUMBERS}\nC_END\n$D/prog $D; cat $D/f; rm $D/prog"
        ),
    );
}

/// A thread takes one number of the library's after the other for a file of its own, while another one opens
/// files, which asks on the connection.
const TAKES_NUMBERS: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
static int file; static volatile int is_over;
static void *work(void *d) {
  (void)d; long refused = 0;
  while (!is_over) for (int n = 64; n < 128; n++) if (dup2(file, n) != n || close(n)) refused++;
  return (void *)refused;
}
int main(int c, char **v) {
  (void)c; char p[4096], q[] = "/tmp/kvfs-taken-XXXXXX"; snprintf(p, sizeof p, "%s/f", v[1]);
  struct rlimit few = {128, 128}; struct stat st; if (setrlimit(RLIMIT_NOFILE, &few) || (file = mkstemp(q)) < 0 || unlink(q)) return 1;
  pthread_t th; pthread_create(&th, 0, work, 0); int failed = 0; void *refused;
  for (int i = 0; i < 5000; i++) { int fd = open(p, O_CREAT | O_RDWR, 0600); if (fd < 0) failed++; else close(fd); }
  is_over = 1; pthread_join(th, &refused); fstat(file, &st);
  printf("%d %ld %ld\n", failed, (long)refused, (long)st.st_size); return 0;
}
"#;

#[test]
fn number_that_a_program_takes_gets_nothing_of_a_request_that_is_under_way() {
    compare(
        &["gcc"],
        &format!(
            "gcc -w -pthread -o $D/prog -x c - <<'C_END'\n{TAKES_NUMBERS}\nC_END\n$D/prog $D; rm $D/prog"
        ),
    );
}

/// In each child a thread takes numbers that the library has not had yet, while the first call connects.
const TAKES_FIRST: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
static int file; static volatile int is_over, rounds;
static void *work(void *d) {
  (void)d; long refused = 0;
  for (; !is_over; rounds++) for (int n = 960; n < 963; n++) if (dup2(file, n) != n || close(n)) refused++;
  return (void *)refused;
}
int main(int c, char **v) {
  (void)c; file = open("/dev/null", O_RDWR); int failed = 0;
  for (int i = 0; i < 100; i++) {
    pid_t pid = fork();
    if (!pid) {
      pthread_t th; pthread_create(&th, 0, work, 0); while (!rounds) ; struct stat st; int bad = 0; void *refused;
      for (int k = 0; k < 3; k++) bad |= stat(v[1], &st);
      is_over = 1; pthread_join(th, &refused); _exit(bad || refused);
    }
    int s; waitpid(pid, &s, 0); failed += s != 0;
  }
  printf("%d\n", failed); return 0;
}
"#;

#[test]
fn number_that_a_program_takes_while_its_first_call_connects_is_not_the_connection() {
    compare(
        &["gcc"],
        &format!(
            "ulimit -Sn 1024; gcc -w -pthread -o $D/prog -x c - <<'C_END'\n{TAKES_FIRST}\nC_END\n$D/prog $D; rm $D/prog"
        ),
    );
}

fn run(served: &Served, script: &str) -> Output {
    served.command("bash").args(["-c", script]).output().expect("bash runs")
}

#[test]
fn what_is_written_to_an_open_file_of_another_server_is_refused() {
    let (one, other) = (Served::new(), Served::new());
    let socket = other.socket();
    let script = format!("KVFS_EXEC_SOCKET={} bash -c 'echo hi; echo $?  >&2' > /kvfs/log", socket.display());
    let ran = run(&one, &script);
    let message = String::from_utf8_lossy(&ran.stderr);
    assert!(message.contains("Input/output error") && message.ends_with("1\n"), "{message}");
    assert_eq!(run(&one, "cat /kvfs/log").stdout, b"");
}

#[test]
fn file_of_another_user_with_the_rights_of_a_placeholder_is_that_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("bait");
    std::fs::write(&path, "its own\n").expect("writes");
    if std::os::unix::fs::chown(&path, Some(65534), None).is_err() {
        eprintln!("skipped: only root gives files away");
        return;
    }
    std::fs::set_permissions(&path, Permissions::from_mode(0o1222)).expect("changes");
    // By numbers that were of the store, and inherited.
    let script = format!(
        "echo x > /kvfs/f; exec 5< /kvfs/f 5< {0}; read -r said <&5; echo $said; cat {0}; cat < {0}",
        path.display()
    );
    let ran = run(&Served::new(), &script);
    let message = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "its own\nits own\nits own\n", "{message}");
}

#[test]
fn open_file_of_another_process_is_not_opened_by_its_number() {
    let script = "exec 5> /kvfs/log; echo hi > /proc/$$/fd/5 && echo written; echo self >&5; cat /kvfs/log";
    let ran = run(&Served::new(), script);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "self\n");
    assert!(String::from_utf8_lossy(&ran.stderr).contains("No such device or address"));
}

#[test]
fn link_of_the_store_to_standard_output_does_not_open_what_stands_for_an_open_file() {
    let script = "ln -s /dev/stdout /kvfs/log; bash -c 'echo lost > /kvfs/log && echo written >&2' > /kvfs/out; cat /kvfs/out";
    let ran = run(&Served::new(), script);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "");
    let message = String::from_utf8_lossy(&ran.stderr);
    assert!(message.contains("No such device or address") && !message.contains("written"), "{message}");
}

#[test]
fn program_whose_first_failed_call_was_an_open_opens_files_at_a_new_server() {
    let mut served = Served::new();
    let script =
        "echo 0 > /kvfs/f; echo ready; read -r; for i in 1 2 3; do echo $i > /kvfs/f && echo $i; done";
    let mut program = served
        .command("bash")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("bash runs");
    let mut output = BufReader::new(program.stdout.take().expect("a pipe"));
    let mut said = String::new();
    output.read_line(&mut said).expect("says that it is ready");
    served.restart();
    program.stdin.take().expect("a pipe").write_all(b"go\n").expect("goes on");
    output.read_to_string(&mut said).expect("ends");
    program.wait().expect("has ended");
    assert_eq!(said, "ready\n2\n3\n");
    assert_eq!(run(&served, "cat /kvfs/f").stdout, b"3\n");
}
