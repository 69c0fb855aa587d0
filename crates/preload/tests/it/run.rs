//! Runs a script twice: under the library on a store, and without it in a real directory.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use kvfs_fs::{FileSystem, MkfsOptions, MountOptions};
use kvfs_kvdb::Db;
use kvfs_posix::{Identity, Volume};
use kvfs_serve::Server;
use kvfs_store::{Store, clock::SystemClock};
use tempfile::TempDir;

/// Where the prefix is; no such directory exists.
pub(crate) const PREFIX: &str = "/kvfs";

/// The library that `cargo` built with this test.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    let path = test.parent().expect("deps").join("libkvfs_preload.so");
    assert!(path.exists(), "{} is missing", path.display());
    path
}

/// A store that this process serves, and the directory of a session.
pub(crate) struct Served {
    server: Option<Server>,
    volume: Volume,
    _db: Arc<Db>,
    run: PathBuf,
    _removed: Option<TempDir>,
}

impl Served {
    pub(crate) fn new() -> Self {
        let run = tempfile::tempdir().expect("a directory");
        let served = Self::at(run.path());
        Self { _removed: Some(run), ..served }
    }

    /// In a directory that stays; a store that is there is served.
    pub(crate) fn at(run: &Path) -> Self {
        let is_new = !run.join("cwd").exists();
        let run = run.canonicalize().expect("is there");
        let db = Db::builder().capacity_bytes(1 << 28).open(run.join("store")).expect("opens");
        let (store, clock) = (Arc::clone(&db) as Arc<dyn Store>, Arc::new(SystemClock::new()));
        if is_new {
            std::fs::create_dir(run.join("cwd")).expect("another one");
            FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).expect("makes");
        }
        let fs = FileSystem::open(store, clock, MountOptions::default()).expect("opens");
        let volume = Volume::over(Arc::new(fs)).expect("starts");
        let mut served = Self { server: None, volume, _db: db, run, _removed: None };
        served.start();
        served
    }

    fn start(&mut self) {
        let listener = UnixListener::bind(self.socket()).expect("binds");
        let volume = self.volume.clone();
        let world = move |identity: &Identity| volume.process(identity);
        self.server = Some(Server::start(listener, world).expect("starts"));
    }

    /// Another server takes over.
    pub(crate) fn restart(&mut self) {
        drop(self.server.take());
        std::fs::remove_file(self.socket()).expect("was there");
        self.start();
    }

    /// Where it is served.
    pub(crate) fn socket(&self) -> PathBuf {
        self.run.join("socket")
    }

    /// A command under the library.
    pub(crate) fn command(&self, program: &str) -> Command {
        under(program, &self.run)
    }
}

/// A command under the library, with the server and the session in a directory.
pub(crate) fn under(program: &str, run: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", library())
        .env("KVFS_EXEC_PREFIX", PREFIX)
        .env("KVFS_EXEC_SOCKET", run.join("socket"))
        .env("KVFS_EXEC_RUN", run.canonicalize().expect("is there"));
    command
}

/// Whether a program can be found.
pub(crate) fn is_installed(program: &str) -> bool {
    let found =
        Command::new("sh").args(["-c", &format!("{program} --version || {program} -version")]).output();
    found.is_ok_and(|output| output.status.success())
}

/// A program in C, made of this source without the library.
pub(crate) fn compiled(directory: &Path, source: &str, flags: &[&str]) -> Option<PathBuf> {
    if !is_installed("gcc") {
        eprintln!("skipped: gcc is not installed");
        return None;
    }
    let (program, text) = (directory.join("prog"), directory.join("prog.c"));
    std::fs::write(&text, source).expect("writes");
    let is_made = Command::new("gcc").args(flags).arg("-o").args([&program, &text]).status();
    if !is_made.is_ok_and(|status| status.success()) {
        eprintln!("skipped: gcc does not make it, with {flags:?}");
        return None;
    }
    Some(program)
}

fn script(mut command: Command, at: &str, script: &str) -> Output {
    let home = tempfile::tempdir().expect("a home");
    command
        .args(["-c", &format!("set -eu; exec 2>&1; cd /tmp; {script}")])
        .env("D", at)
        .env("LC_ALL", "C")
        .env("HOME", home.path())
        .output()
        .expect("bash runs")
}

/// Runs `text` in both ways with `$D` as its directory; output, status and trees must be alike.
pub(crate) fn compare(tools: &[&str], text: &str) {
    if let Some(tool) = tools.iter().find(|tool| !is_installed(tool)) {
        eprintln!("skipped: {tool} is not installed");
        return;
    }
    let (ours, real) = (Served::new(), tempfile::tempdir().expect("a directory"));
    let real = real.path().canonicalize().expect("is there");
    let at = real.to_str().expect("text");
    let expected = script(Command::new("bash"), at, text);
    let found = script(ours.command("bash"), PREFIX, text);
    let output = |output: &Output, at: &str| String::from_utf8_lossy(&output.stdout).replace(at, "$D");
    assert!(expected.status.success(), "the script itself fails: {}", output(&expected, at));
    assert_eq!(output(&expected, at), output(&found, PREFIX), "{text}");
    assert_eq!(expected.status, found.status, "{text}");
    assert_eq!(tree(Command::new("bash"), at), tree(ours.command("bash"), PREFIX), "{text}");
}

/// Names, types, modes and sizes below a directory; the files that hold paths or times are left out.
fn tree(mut command: Command, directory: &str) -> String {
    let list = "cd \"$0\"; find . -path '*/.git/*' -prune -o -type f -printf '%p %y %m %s\\n' -o -printf '%p %y %m %l\\n' | sort";
    let output = command.args(["-c", list]).arg(directory).output().expect("bash runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
