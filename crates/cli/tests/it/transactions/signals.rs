//! Signals of runs, and which runs are tried again.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::user::{as_nobody, can_be_nobody};
use crate::world::{KVFS, World, can_mount, daemon_of, kvfs, run, wait_exit, wait_until};

const CONFLICT: i32 = 75;

/// A set of signals of process `pid` as `/proc` has it: `SigCgt`, `SigIgn`.
fn signals(pid: u32, which: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(which)?.strip_prefix(':'));
    mask.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).unwrap())
}

fn has(mask: u64, signal: Signal) -> bool {
    mask & (1 << (signal.as_raw() - 1)) != 0
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn signal_before_the_command_runs_ends_the_run() {
    if !can_mount("signal_before_the_command_runs_ends_the_run") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    let daemon = daemon_of(&store);
    kill_process(daemon, Signal::STOP).unwrap();
    for signal in [Signal::INT, Signal::QUIT, Signal::TERM, Signal::HUP] {
        for retries in ["0", "3"] {
            // By the store: nothing is asked of the mount, which does not answer.
            let mut run = Command::new(KVFS)
                .args(["txn", "-s", &store, "run", "--retry", retries, "--", "touch", &world.text("ran")])
                .process_group(0)
                .spawn()
                .unwrap();
            wait_until("a run that catches signals", || has(signals(run.id(), "SigCgt"), signal));
            kill_process_group(Pid::from_child(&run), signal).unwrap();
            let status = wait_exit(&mut run);
            let number = signal.as_raw();
            assert!(status.signal() == Some(number) || status.code() == Some(128 + number), "{status}");
        }
    }
    kill_process(daemon, Signal::CONT).unwrap();
    wait_until("the end of all", || kvfs(&["txn", "-s", &dir, "list", "--json"]).ok().trim() == "[]");
    assert!(!world.path("ran").exists());
}

/// The parent of process `pid`.
fn parent(pid: i32) -> i32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().parse().unwrap()
}

#[test]
fn interrupt_sent_to_one_process_of_a_run_ends_the_command_and_drops_the_transaction() {
    if !can_mount("interrupt_sent_to_one_process_of_a_run_ends_the_command_and_drops_the_transaction") {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    let pids = world.path("pids");
    let script = format!("echo x >'{dir}/made'; echo $$ >>'{}'; exec sleep 600", pids.display());
    for (retries, signal) in [("0", Signal::INT), ("0", Signal::QUIT), ("1", Signal::INT)] {
        for is_above_command in [false, true] {
            let mut run = Command::new(KVFS)
                .args(["txn", "-s", &dir, "run", "--retry", retries, "--", "sh", "-c", &script])
                .current_dir(world.path("."))
                .spawn()
                .unwrap();
            wait_until("the command", || fs::read_to_string(&pids).is_ok_and(|pid| pid.ends_with('\n')));
            let command = fs::read_to_string(&pids).unwrap().trim().parse().unwrap();
            let above = Pid::from_raw(parent(command)).unwrap();
            kill_process(if is_above_command { above } else { Pid::from_child(&run) }, signal).unwrap();
            assert_eq!(
                wait_exit(&mut run).code(),
                Some(128 + signal.as_raw()),
                "{retries} {is_above_command}"
            );
            assert_eq!(fs::read_to_string(&pids).unwrap().lines().count(), 1);
            assert!(!fs::exists(format!("{dir}/made")).unwrap());
            fs::remove_file(&pids).unwrap();
        }
    }
    assert_eq!(kvfs(&["txn", "-s", &dir, "list", "--json"]).ok().trim(), "[]");
}

#[test]
fn interrupts_of_a_run_are_the_commands_affair_however_often_they_come() {
    if !can_mount("interrupts_of_a_run_are_the_commands_affair_however_often_they_come") {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    let caught = world.path("caught");
    let note = |what: &str| format!("echo {what} >>'{}'", caught.display());
    let script = format!(
        "echo x >'{dir}/made'; trap \"{}\" INT; trap 'kill -9 $!; exit 0' QUIT; \
         trap \"{}; exit 1\" TERM; sleep 600 & {}; while :; do wait; done",
        note("int"),
        note("term"),
        note("ready")
    );
    let has =
        |words: &[&str]| fs::read_to_string(&caught).is_ok_and(|all| all.lines().eq(words.iter().copied()));
    for retries in ["0", "1"] {
        let begin = || {
            let _ = fs::remove_file(&caught);
            let run = Command::new(KVFS)
                .args(["txn", "-s", &dir, "run", "--retry", retries, "--", "sh", "-c", &script])
                .process_group(0)
                .spawn()
                .unwrap();
            wait_until("the command", || has(&["ready"]));
            run
        };
        // Once each, and no kill.
        let mut run = begin();
        for words in [&["ready", "int"][..], &["ready", "int", "int"]] {
            send(&run, Signal::INT);
            wait_until("the interrupt", || has(words));
        }
        send(&run, Signal::TERM);
        assert_eq!(wait_exit(&mut run).code(), Some(143));
        assert!(has(&["ready", "int", "int", "term"]), "{:?}", fs::read_to_string(&caught));
        // The copies of one that the whole group was sent are none either.
        let mut run = begin();
        kill_process_group(Pid::from_child(&run), Signal::INT).unwrap();
        wait_until("the interrupt", || !has(&["ready"]));
        send(&run, Signal::TERM);
        assert_eq!(wait_exit(&mut run).code(), Some(143));
        assert_eq!(fs::read_to_string(&caught).unwrap().lines().last(), Some("term"));
        assert!(!fs::exists(format!("{dir}/made")).unwrap());
        // A command that takes it for a success has succeeded.
        let mut run = begin();
        send(&run, Signal::QUIT);
        assert_eq!(wait_exit(&mut run).code(), Some(0));
        fs::remove_file(format!("{dir}/made")).unwrap();
    }
}

#[test]
fn signals_that_are_ignored_stay_ignored_in_the_command_and_the_daemon() {
    if !can_mount("signals_that_are_ignored_stay_ignored_in_the_command_and_the_daemon") {
        return;
    }
    let world = World::new();
    let (store, dir) = (world.store("store"), world.dir("mnt"));
    let ignoring = |args: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' HUP INT; exec \"$@\"", "sh", KVFS]).args(args);
        command
    };
    let mut daemon = ignoring(&["mount", "-f", &store, &dir]).stderr(Stdio::null()).spawn().unwrap();
    // The daemon answers a moment after its mount is there.
    wait_until("the mount", || kvfs(&["txn", "-s", &dir, "list"]).code == Some(0));
    for signal in [Signal::HUP, Signal::INT] {
        assert!(has(signals(daemon.id(), "SigIgn"), signal), "the daemon");
    }
    assert!(has(signals(daemon.id(), "SigCgt"), Signal::TERM), "the daemon");
    for retries in ["0", "1"] {
        let args =
            ["txn", "-s", &dir, "run", "--retry", retries, "--", "grep", "SigIgn", "/proc/self/status"];
        let said = run(&mut ignoring(&args)).ok();
        let mask = u64::from_str_radix(said.trim().strip_prefix("SigIgn:").unwrap().trim(), 16).unwrap();
        assert!(has(mask, Signal::HUP) && has(mask, Signal::INT) && !has(mask, Signal::TERM), "{said}");
    }
    send(&daemon, Signal::TERM);
    assert!(wait_exit(&mut daemon).success());
}

#[test]
fn interrupted_run_that_met_a_conflict_is_not_tried_again() {
    if !can_mount("interrupted_run_that_met_a_conflict_is_not_tried_again") {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    let (fought, runs) = (format!("{dir}/fought"), world.path("runs"));
    fs::write(&fought, "base").unwrap();
    let script = format!("echo mine >'{fought}'; echo run >>'{}'; exec sleep 600", runs.display());
    let mut run = Command::new(KVFS)
        .args(["txn", "-s", &dir, "run", "--retry", "3", "--", "sh", "-c", &script])
        .process_group(0)
        .spawn()
        .unwrap();
    wait_until("the command", || runs.exists());
    // Dooms the transaction, which the command does not notice.
    fs::write(&fought, "theirs").unwrap();
    kill_process_group(Pid::from_child(&run), Signal::INT).unwrap();
    assert_eq!(wait_exit(&mut run).code(), Some(130));
    assert_eq!(fs::read_to_string(&runs).unwrap().lines().count(), 1);
}

#[test]
fn run_that_the_daemon_has_ended_is_told_why_and_not_tried_again() {
    if !can_mount("run_that_the_daemon_has_ended_is_told_why_and_not_tried_again") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    let runs = world.path("runs");
    let script = format!("echo run >>'{}'; exec sleep 600", runs.display());
    let tries = ["--retry", "3", "--", "sh", "-c", &script];
    let idle = [&["txn", "-s", &dir, "run", "--idle-timeout", "200ms"], &tries[..]].concat();
    kvfs(&idle).fails(CONFLICT, &["idle time-out", "nothing happened"]);
    assert_eq!(fs::read_to_string(&runs).unwrap().lines().count(), 1);
    fs::remove_file(&runs).unwrap();
    // Of a user to whom the store's directory is closed.
    if can_be_nobody("run_that_the_daemon_has_ended_is_told_why_and_not_tried_again") {
        let args = ["txn", "-s", &dir, "run", "--idle-timeout", "200ms", "--", "sleep", "600"];
        as_nobody(&args).fails(CONFLICT, &["idle time-out", "nothing happened"]);
    }
    // A daemon that is no more is nothing to try again with.
    let command = [&["txn", "-s", &dir, "run"], &tries[..]].concat();
    let mut run = Command::new(KVFS).args(&command).spawn().unwrap();
    wait_until("the command", || runs.exists());
    kill_process(daemon_of(&store), Signal::KILL).unwrap();
    assert_eq!(wait_exit(&mut run).code(), Some(9));
    assert_eq!(fs::read_to_string(&runs).unwrap().lines().count(), 1);
}
