#!/usr/bin/env python3
"""Job control of `kvfs txn run` on a terminal, as it is under `env`.
usage: tests/suites/terminal.py KVFS MNT CASE [SHELL]     77: the shell is not installed"""
import fcntl, os, pty, re, select, shutil, signal, struct, sys, tempfile, termios, time

LIMIT = 40.0


class Terminal:
    """An interactive shell on a terminal of its own, as a user sits before."""

    def __init__(self, mnt):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(mnt)
            home = os.environ.get("TERMINAL_HOME", "/nonexistent")
            env = {"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "P> ", "HOME": home, "LC_ALL": "C"}
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], env)
        self.seen = self.log = ""
        self.size(24, 80)

    def size(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.fd, text.encode())

    def expect(self, pattern, what=None):
        """What comes up to `pattern`; it must come."""
        end = time.monotonic() + LIMIT
        while True:
            found = re.search(pattern, self.seen)
            if found:
                before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
                return before
            left = end - time.monotonic()
            ready = left > 0 and select.select([self.fd], [], [], left)[0]
            try:
                data = os.read(self.fd, 65536) if ready else b""
            except OSError:
                data = b""
            if not data:
                raise SystemExit(f"never came: {what or pattern!r}; last seen: {self.seen[-400:]!r}")
            self.seen += data.decode(errors="replace")
            self.log += data.decode(errors="replace")

    def run(self, command):
        """A command of the outer shell; what it says, and its exit status."""
        self.type(command + "; printf '<%s>\\n' \"status=$?\"\n")
        self.expect(r"<%s>")  # its echo
        text = self.expect(r"<status=\d+>")
        return text, int(re.search(r"<status=(\d+)>", text).group(1))

    def close(self):
        os.close(self.fd)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def check(holds, what):
    if not holds:
        raise SystemExit(f"not so: {what}")


SHELLS = {
    "bash": "bash --norc --noprofile --noediting -i",
    "dash": "dash -i",
    "zsh": "zsh -f -i -o NO_ZLE",
    "fish": "fish --no-config -i",
}


def shell(kvfs, mnt, name):
    """Its jobs, Ctrl-C, Ctrl-Z and its exit, which commits."""
    terminal = Terminal(mnt)
    made = os.path.join(mnt, f"made-{name}")
    terminal.type(f"{kvfs} txn run {SHELLS[name]}\n")
    say = (lambda word: f"echo {word[:2]}''{word[2:]}\n")
    terminal.type(say("ready"))
    terminal.expect("ready")
    terminal.type(f"touch {made}\n")
    # Ctrl-C ends what runs in it, and not the shell.
    terminal.type(say("begins") + "sleep 1000\n")
    terminal.expect("begins")
    until(lambda: child_named(terminal.pid, "sleep"), "sleep runs")
    terminal.type("\x03")
    terminal.type("\n" + say("goes-on"))
    terminal.expect("goes-on")
    # Ctrl-Z stops it, and the shell makes it a job.
    terminal.type("sleep 1000\n")
    until(lambda: child_named(terminal.pid, "sleep"), "sleep runs again")
    terminal.type("\x1a")
    terminal.type("\n" + say("stopped"))
    terminal.expect("stopped")
    terminal.type("kill -9 %1; wait %1\n" if name != "fish" else "kill -9 (jobs -lp)\n")
    until(lambda: not child_named(terminal.pid, "sleep"), "sleep is gone")
    terminal.type("\n" + say("leaving") + "exit\n")
    terminal.expect("leaving")
    # The outer shell has the terminal again.
    terminal.expect("kvfs: committed as")
    terminal.type("printf '<%s>\\n' \"status=$?\"\n")
    terminal.expect(r"<%s>")
    text = terminal.expect(r"<status=\d+>")
    check("<status=0>" in text, f"exit 0 of {name}: {terminal.log!r}")
    check(os.path.exists(made), f"what {name} has made is committed")
    terminal.close()


def until(holds, what):
    end = time.monotonic() + LIMIT
    while not holds():
        check(time.monotonic() < end, what)
        time.sleep(0.02)


def processes():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                start, rest = file.read().rsplit(")", 1)
        except OSError:
            continue
        fields = rest.split()
        yield int(pid), start.split("(", 1)[1], fields[0], int(fields[1])


def below(root):
    found, table = {root}, list(processes())
    grown = True
    while grown:
        grown = False
        for pid, _, _, parent in table:
            if parent in found and pid not in found:
                found.add(pid)
                grown = True
    return [line for line in table if line[0] in found]


def child_named(root, name, states="SRTD"):
    return [pid for pid, found, state, _ in below(root) if found == name and state in states]


def signals(kvfs, mnt, _):
    """Ctrl-C drops, Ctrl-Z stops and fg goes on, the window's size arrives: of commands without job control."""
    terminal = Terminal(mnt)
    terminal.type(f"{kvfs} txn run sh -c 'touch dropped; sleep 1000'\n")
    until(lambda: child_named(terminal.pid, "sleep"), "sleep runs")
    terminal.type("\x03")
    terminal.type("printf '<%s>\\n' \"status=$?\"\n")
    text = terminal.expect(r"<status=\d+>")
    check("<status=130>" in text and "dropped: ended by signal 2; nothing happened" in text, text)
    check(not os.path.exists(os.path.join(mnt, "dropped")), "Ctrl-C drops")
    # A command that goes on gets each Ctrl-C once. TERM to the process above comes after all copies of them.
    with tempfile.NamedTemporaryFile("w") as script:
        script.write("trap 'echo interrupted' INT; trap 'exit 1' TERM; sleep 1000 & echo catches; while :; do wait; done")
        script.flush()
        terminal.type(f"{kvfs} txn run sh {script.name}\n")
        terminal.expect("catches")
        # A Ctrl-C during the start of a command is passed on, lest it is lost. Both processes are past that.
        until(lambda: len(child_named(terminal.pid, "kvfs", "S") + child_named(terminal.pid, "exe", "S")) == 2, "they wait")
        for _ in range(2):
            terminal.type("\x03")
            terminal.expect("interrupted")
        os.kill(child_named(terminal.pid, "kvfs")[0], signal.SIGTERM)
        text = terminal.expect("ended by signal 15; nothing happened")
        check("interrupted" not in text, f"once each: {text!r}")
    terminal.type(f"{kvfs} txn run sh -c 'touch stopped; sleep 1000; echo went''-on'\n")
    until(lambda: child_named(terminal.pid, "sleep"), "sleep runs")
    terminal.type("\x1a")
    terminal.expect("Stopped")
    until(lambda: child_named(terminal.pid, "sleep", "T"), "the command has stopped")
    until(lambda: len(child_named(terminal.pid, "kvfs", "T") + child_named(terminal.pid, "exe", "T")) == 2, "and what is above it")
    terminal.type("fg\n")
    until(lambda: child_named(terminal.pid, "sleep", "SR"), "the command goes on")
    os.kill(child_named(terminal.pid, "sleep")[0], signal.SIGTERM)
    terminal.expect("went-on")
    terminal.expect("committed as")
    check(os.path.exists(os.path.join(mnt, "stopped")), "fg goes on to the commit")
    # Of a shell that has a process group of its own: `suspend` goes to the outer shell.
    terminal.type(f"{kvfs} txn run bash --norc --noprofile --noediting -i\n")
    terminal.type("touch suspended; suspend\n")
    terminal.expect("Stopped")
    until(lambda: child_named(terminal.pid, "bash", "T"), "the inner shell has stopped")
    terminal.type("fg\n")
    terminal.type("echo be''hind; exit\n")
    terminal.expect("behind")
    terminal.expect("committed as")
    # A pipeline: the command shares its process group, so `less` may read the terminal; and the size follows.
    terminal.size(40, 132)
    text, status = terminal.run(f"{kvfs} txn run stty size | cat")
    check("40 132" in text, f"the size of the window: {text!r}")
    terminal.type(f"{kvfs} txn run sh -c 'trap \"stty size; exit\" WINCH; echo wa''its; while :; do sleep 0.05; done'\n")
    terminal.expect("waits")
    terminal.size(50, 100)
    terminal.expect("50 100", "SIGWINCH arrives")
    terminal.close()


def left(kvfs, mnt, _):
    """What is left of a command is named; Ctrl-C drops; --kill-children waits for nothing."""
    terminal = Terminal(mnt)
    terminal.type(f"{kvfs} txn run sh -c 'touch late; setsid sleep 1000 & exit 0'\n")
    terminal.expect(r"the command has ended; .* 1 process: \d+ \(sleep\)")
    terminal.type("\x03")
    terminal.type("printf '<%s>\\n' \"status=$?\"\n")
    text = terminal.expect(r"<status=\d+>")
    check("<status=130>" in text, text)
    check(not os.path.exists(os.path.join(mnt, "late")), "Ctrl-C drops it")
    text, status = terminal.run(f"{kvfs} txn run --kill-children sh -c 'touch early; setsid sleep 1000 & exit 0'")
    check(status == 0 and "committed as" in text, text)
    check(os.path.exists(os.path.join(mnt, "early")), "it is committed")
    check(not [pid for pid, name, _, _ in processes() if name == "sleep" and argument(pid) == "1000"], "nothing is left")
    terminal.close()


def argument(pid):
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
            return file.read().split("\0")[1]
    except (OSError, IndexError):
        return ""


def told(kvfs, mnt, _):
    """A line says what has come of a run."""
    for name in ("told", "reviewed", "quiet1", "quiet2", "quiet3"):
        if os.path.exists(os.path.join(mnt, name)):
            os.remove(os.path.join(mnt, name))
    terminal = Terminal(mnt)
    text, status = terminal.run(f"{kvfs} txn run touch told")
    number = re.search(r"kvfs: committed as (\d+); undo: kvfs txn undo (\d+)", text)
    check(status == 0 and number and number.group(1) == number.group(2), text)
    text, status = terminal.run(f"{kvfs} txn undo {number.group(1)}")
    check(status == 0 and not os.path.exists(os.path.join(mnt, "told")), text)
    text, status = terminal.run(f"{kvfs} txn run sh -c 'touch told; exit 3'")
    check(status == 3 and "kvfs: dropped: the command exited with 3; nothing happened" in text, text)
    text, status = terminal.run(f"{kvfs} txn run true")
    check(status == 0 and "kvfs: nothing was changed" in text, text)
    for quiet in (f"{kvfs} -q txn run touch quiet1", f"{kvfs} txn run -q -- touch quiet2", f"{kvfs} txn run touch quiet3 2>/dev/null"):
        text, status = terminal.run(quiet)
        check(status == 0 and "kvfs:" not in text, text)
    # --review: no question where nothing has changed, d shows the difference.
    text, status = terminal.run(f"{kvfs} txn run --review true")
    check(status == 0 and "Commit" not in text, text)
    terminal.run("echo old-line >reviewed")
    terminal.type(f"{kvfs} txn run --review sh -c 'echo lost-line >reviewed'\n")
    terminal.expect(r"\[y\]es, \[N\]o, \[d\]iff ")
    terminal.type("\x03")
    # A shell whose command a signal has ended forgets what was typed meanwhile.
    terminal.expect(r"\^C\s*P> ")
    terminal.type("printf '<%s>\\n' \"status=$?\"\n")
    text = terminal.expect(r"<status=\d+>")
    check("<status=130>" in text, text)
    terminal.type(f"{kvfs} txn run --review sh -c 'echo new-line >reviewed'\n")
    terminal.expect(r"\[y\]es, \[N\]o, \[d\]iff ")
    terminal.type("d\n")
    text = terminal.expect(r"\[y\]es, \[N\]o, \[d\]iff ")
    check("-old-line" in text and "+new-line" in text, text)
    terminal.type("y\n")
    terminal.expect("committed as")
    text, status = terminal.run("cat reviewed")
    check("new-line" in text, text)
    terminal.close()


def empty(kvfs, mnt, _):
    """Lists with nothing in them say so, and what is done in a transaction is told of."""
    terminal = Terminal(mnt)
    for words, said in (
        ("txn list", "no transactions are open"),
        ("branch list", "no branches"),
        ("snapshot list", "no snapshots"),
        ("locks", "no transactions have locked anything"),
    ):
        text, status = terminal.run(f"{kvfs} {words}")
        check(status == 0 and f"kvfs: {said}" in text, text)
        for quiet in (f"{kvfs} -q {words}", f"{kvfs} {words} | cat"):
            text, status = terminal.run(quiet)
            check(status == 0 and "kvfs:" not in text, text)
    text, status = terminal.run(f"mkdir cloned-from && {kvfs} txn run sh -c '{kvfs} clone cloned-from clone; {kvfs} rm -r cloned-from clone'")
    check(status == 0 and "cloned, as a part" in text and "removed, as a part" in text, text)
    terminal.close()


def main():
    kvfs, mnt, case = sys.argv[1:4]
    name = sys.argv[4] if len(sys.argv) > 4 else ""
    if case == "shell" and not shutil.which(name):
        print(f"{name} is not installed")
        sys.exit(77)
    {"shell": shell, "signals": signals, "left": left, "told": told, "empty": empty}[case](kvfs, os.path.realpath(mnt), name)


main()
