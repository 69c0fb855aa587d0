//! Signals, forks and raw system calls of programs, and executables that do not load the library.

use crate::run::{Served, compare, compiled};

/// A handler that writes below the prefix interrupts calls below the prefix; threads fork meanwhile; `vfork`
/// and `syscall`.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
static int log_fd; static volatile int hits;
static void handler(int s) { (void)s; if (write(log_fd, "x", 1) == 1) __sync_fetch_and_add(&hits, 1); }
static void *work(void *d) {
  char p[4096]; struct stat st; double v = 1.5; snprintf(p, sizeof p, "%s/log", (char *)d);
  for (int i = 0; i < 20000; i++) { double w = v * i; if (stat(p, &st) || w != v * i) abort(); }
  return 0;
}
int main(int c, char **v) {
  (void)c; char p[4096]; char *d = v[1]; struct stat st; snprintf(p, sizeof p, "%s/log", d);
  log_fd = open(p, O_CREAT | O_WRONLY | O_APPEND, 0600);
  struct sigaction sa = {.sa_handler = handler, .sa_flags = SA_RESTART}; sigaction(SIGALRM, &sa, 0);
  struct itimerval t = {{0, 200}, {0, 200}}; setitimer(ITIMER_REAL, &t, 0);
  pthread_t th[3]; for (int i = 0; i < 3; i++) pthread_create(&th[i], 0, work, d);
  for (int i = 0; i < 100; i++) {
    pid_t pid = fork();
    if (!pid) _exit(stat(p, &st) ? 1 : 0);
    int s; while (waitpid(pid, &s, 0) < 0); if (s) { printf("fork %x\n", s); return 1; }
  }
  for (int i = 0; i < 3; i++) pthread_join(th[i], 0);
  while (!hits) stat(p, &st);
  struct itimerval off = {{0, 0}, {0, 0}}; setitimer(ITIMER_REAL, &off, 0);
  fstat(log_fd, &st); printf("%d\n", st.st_size == hits);
  pid_t pid = vfork();
  if (!pid) { execl("/bin/ls", "ls", d, (char *)0); _exit(9); }
  int s; waitpid(pid, &s, 0); printf("vfork %d\n", s);
  int fd = syscall(SYS_openat, AT_FDCWD, p, O_RDONLY, 0); char b[2] = {0}; printf("%ld %s\n", (long)syscall(SYS_read, fd, b, 1), b);
  unlink(p); return 0;
}
"#;

#[test]
fn handlers_forks_and_raw_calls_reach_the_prefix() {
    compare(
        &["gcc"],
        &format!("gcc -O1 -pthread -o $D/prog -x c - <<'C_END'\n{PROGRAM}\nC_END\n$D/prog $D; rm $D/prog"),
    );
}

/// Children of vfork and `posix_spawn` reach the store before the program itself does.
const SPAWNS_FIRST: &str = r#"
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
int main(int c, char **v) {
  (void)c; char p[4096]; snprintf(p, sizeof p, "%s/log", v[1]); int s; pid_t pid = vfork();
  if (!pid) { if (chdir(v[1])) _exit(8); execl("/bin/sh", "sh", "-c", "echo child > log", (char *)0); _exit(9); }
  waitpid(pid, &s, 0); printf("vfork %d\n", s);
  posix_spawn_file_actions_t a; posix_spawn_file_actions_init(&a);
  posix_spawn_file_actions_addopen(&a, 1, p, O_WRONLY | O_APPEND, 0);
  char *w[] = {"echo", "spawned", 0}; s = posix_spawn(&pid, "/bin/echo", &a, 0, w, environ); if (s) return s;
  waitpid(pid, &s, 0); printf("spawn %d\n", s);
  for (int i = 0; i < 2; i++) { FILE *f = fopen(p, "a"); if (!f) { perror("open"); return 1; } fputs("parent\n", f); if (fclose(f)) return 2; }
  return 0;
}
"#;

#[test]
fn child_of_vfork_that_reaches_the_store_first_leaves_it_to_its_parent() {
    compare(
        &["gcc"],
        &format!(
            "gcc -o $D/prog -x c - <<'C_END'\n{SPAWNS_FIRST}\nC_END\n$D/prog $D; cat $D/log; rm $D/prog"
        ),
    );
}

#[test]
fn few_descriptors_are_enough_and_all_numbers_can_be_had() {
    compare(
        &["ls"],
        "seq 100 > $D/f; (ulimit -n 40; cd $D; for i in 3 9 22 30 39; do eval \"exec $i<f\"; head -n 1 <&$i; done; pwd; ls; cat f > g)
        (for i in $(seq 3 255) $(seq 940 1023); do eval \"exec $i>&-\"; done; cd $D; head -n 1 g; exec 961<f; head -n 1 <&961; pwd)",
    );
}

#[test]
fn static_executable_is_told_of_or_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = compiled(directory.path(), "int main(void) { return 7; }", &["-static"]) else {
        return;
    };
    let served = Served::new();
    for (mode, status, has_message) in [("warn", 7, true), ("allow", 7, false), ("refuse", 126, true)] {
        let run = served
            .command("bash")
            .env("KVFS_EXEC_STATIC", mode)
            .args(["-c", "\"$0\"; exit $?"])
            .arg(&program)
            .output()
            .expect("bash runs");
        let message = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(status), "{mode}: {message}");
        assert_eq!(message.contains("it is static or written in Go"), has_message, "{mode}: {message}");
    }
}

/// Executes what it is told to where no memory that was written to becomes code.
const WITHOUT_NEW_CODE: &str = r"
#include <sys/prctl.h>
#include <unistd.h>
int main(int c, char **v) { (void)c; if (prctl(65, 1, 0, 0, 0)) return 99; execvp(v[1], v + 1); return 98; }
";

#[test]
fn program_whose_calls_cannot_be_intercepted_is_told_of_or_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = compiled(directory.path(), WITHOUT_NEW_CODE, &[]) else { return };
    let served = Served::new();
    for (mode, status, has_message) in [("warn", 0, true), ("allow", 0, false), ("refuse", 126, true)] {
        let commands = [
            (served.command(program.to_str().expect("text")), "calls of its C library cannot be intercepted"),
            (served.command("env"), "its environment is not that of `kvfs exec`"),
        ];
        for (at, (mut command, reason)) in commands.into_iter().enumerate() {
            if at == 1 {
                command.env_remove("KVFS_EXEC_RUN");
            }
            let run = command.arg("true").env("KVFS_EXEC_STATIC", mode).output().expect("runs");
            if run.status.code() == Some(99) {
                eprintln!("skipped: the kernel has no PR_SET_MDWE");
                continue;
            }
            let message = String::from_utf8_lossy(&run.stderr).into_owned();
            assert_eq!(run.status.code(), Some(status), "{mode}: {message}");
            assert_eq!(message.contains(reason), has_message, "{mode}: {message}");
        }
    }
}

#[test]
fn static_executable_is_refused_an_open_file_of_the_store_that_it_inherits() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = "#include <errno.h>\n#include <unistd.h>\nint main(void) {
        char byte; int of_read = read(1, &byte, 1) < 0 ? errno : 0;
        return write(1, \"lost\", 4) < 0 && errno == EFBIG && of_read == EBADF ? 0 : 1; }";
    let Some(program) = compiled(directory.path(), source, &["-static"]) else { return };
    let served = Served::new();
    let run = served
        .command("bash")
        .env("KVFS_EXEC_STATIC", "allow")
        .args(["-c", "\"$0\" > /kvfs/f && echo kept >> /kvfs/f && cat /kvfs/f"])
        .arg(&program)
        .output()
        .expect("bash runs");
    assert_eq!(String::from_utf8_lossy(&run.stdout), "kept\n", "{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn working_directory_of_a_program_without_the_library_takes_no_files() {
    let served = Served::new();
    let script = "cd /kvfs; exec env -u LD_PRELOAD stat -c %a .";
    let run = served.command("bash").args(["-c", script]).output().expect("bash runs");
    assert_eq!(String::from_utf8_lossy(&run.stdout), "500\n");
}

#[test]
fn dropped_preload_is_respected_and_lost_variables_are_kept() {
    let served = Served::new();
    let run = |script: &str| {
        let output = served.command("bash").args(["-c", script]).output().expect("bash runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(run("echo kept > /kvfs/f; env -u KVFS_EXEC_PREFIX -u KVFS_EXEC_SOCKET cat /kvfs/f"), "kept\n");
    assert_eq!(run("env -u LD_PRELOAD cat /kvfs/f || echo gone"), "gone\n");
}
