//! A directory of its own for each test, runs of the command, and waits for what they bring about.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use kvfs_store::clock::{Clock, SystemClock};
use rustix::process::{Pid, Signal, kill_process};

/// Nothing here takes this long.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

static NEXT: AtomicU32 = AtomicU32::new(0);

pub(crate) const KVFS: &str = env!("CARGO_BIN_EXE_kvfs");

/// What a run of a command gave.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Run {
    /// Panics unless the command succeeded; returns what it printed.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        String::from_utf8(self.stdout).unwrap()
    }

    /// Panics unless the command failed with `code` and a message that contains each of `words`.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{} {}", self.stderr, String::from_utf8_lossy(&self.stdout));
        for word in words {
            assert!(self.stderr.contains(word), "\"{word}\" is not in: {}", self.stderr);
        }
    }
}

/// Waits until `reached`; polls, since the kernel reports no mounts or exits of unrelated processes.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let clock = SystemClock::new();
    while !reached() {
        assert!(clock.monotonic() < PATIENCE, "waited in vain for {what}");
        thread::park_timeout(Duration::from_millis(10));
    }
}

#[track_caller]
pub(crate) fn wait_exit(child: &mut Child) -> ExitStatus {
    let mut status = None;
    let clock = SystemClock::new();
    while status.is_none() {
        if clock.monotonic() > PATIENCE {
            child.kill().unwrap();
            panic!("the command did not end");
        }
        status = child.try_wait().unwrap();
        thread::park_timeout(Duration::from_millis(2));
    }
    status.unwrap()
}

/// Runs a command to its end.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> Run {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let read_out = thread::spawn(move || {
        let mut bytes = Vec::new();
        out.read_to_end(&mut bytes).map(|_| bytes)
    });
    let read_err = thread::spawn(move || {
        let mut bytes = Vec::new();
        err.read_to_end(&mut bytes).map(|_| bytes)
    });
    let status = wait_exit(&mut child);
    // A daemon that did not let go of the terminal would keep these waiting.
    let stdout = read_out.join().unwrap().unwrap();
    let stderr = String::from_utf8_lossy(&read_err.join().unwrap().unwrap()).into_owned();
    Run { code: status.code(), stdout, stderr }
}

/// `kvfs` with `args`.
#[track_caller]
pub(crate) fn kvfs<S: AsRef<OsStr>>(args: &[S]) -> Run {
    run(Command::new(KVFS).args(args))
}

/// Whether mounts are possible here; says why not.
pub(crate) fn can_mount(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED {test}: needs root");
        return false;
    }
    if fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        eprintln!("SKIPPED {test}: needs /dev/fuse");
        return false;
    }
    true
}

/// A directory of its own; what is mounted or runs below ends with it.
pub(crate) struct World {
    root: PathBuf,
}

impl World {
    pub(crate) fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("kvfs-cli-it-{}-{number}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
        Self { root: root.canonicalize().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// A new directory.
    pub(crate) fn dir(&self, name: &str) -> String {
        fs::create_dir_all(self.path(name)).unwrap();
        self.text(name)
    }

    /// A new, small store.
    #[track_caller]
    pub(crate) fn store(&self, name: &str) -> String {
        let store = self.text(name);
        kvfs(&["mkfs", &store, "--size", "256M"]).ok();
        store
    }

    /// A new store, mounted on a new directory in the background.
    #[track_caller]
    pub(crate) fn mounted(&self) -> (String, String) {
        let (store, dir) = (self.store("store"), self.dir("mnt"));
        kvfs(&["mount", &store, &dir]).ok();
        (store, dir)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for dir in mounts_below(&self.root) {
            // A daemon that lives ends; a dead one leaves nothing. By force: without an answer a thread that
            // writes pages out would keep a killed one, and with it the connection, for ever.
            let _ = Command::new("umount").args(["-f", "-l"]).arg(&dir).stderr(Stdio::null()).status();
        }
        for pid in daemons_of(&self.root) {
            let _ = kill_process(pid, Signal::KILL);
        }
        if !thread::panicking() {
            assert_eq!(mounts_below(&self.root), Vec::<PathBuf>::new());
        }
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Mount points at or below `root`, the topmost last mounted first.
pub(crate) fn mounts_below(root: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let points = table.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    let mut found: Vec<PathBuf> = points.filter(|point| point.starts_with(root)).collect();
    found.reverse();
    found
}

pub(crate) fn is_mounted(dir: &str) -> bool {
    mounts_below(Path::new(dir)).iter().any(|point| point == Path::new(dir))
}

/// Processes of `kvfs mount` and `kvfs serve` whose arguments name something at or below `path`.
pub(crate) fn daemons_of(path: &Path) -> Vec<Pid> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(line) = fs::read(entry.path().join("cmdline")) else { continue };
        let words: Vec<PathBuf> =
            line.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).as_ref().into()).collect();
        let ours = words.first().is_some_and(|word| word.file_name() == Some(OsStr::new("kvfs")))
            && words.get(1).is_some_and(|word| [Path::new("mount"), Path::new("serve")].contains(&&**word));
        if ours && words.iter().any(|word| word.starts_with(path)) {
            found.extend(Pid::from_raw(pid));
        }
    }
    found
}

/// The one daemon of `store`.
#[track_caller]
pub(crate) fn daemon_of(store: &str) -> Pid {
    let daemons = daemons_of(Path::new(store));
    assert_eq!(daemons.len(), 1, "{daemons:?}");
    daemons[0]
}

/// Everything in the device, as one number.
pub(crate) fn fingerprint(store: &str) -> (u64, u64) {
    let bytes = fs::read(Path::new(store).join("device")).unwrap();
    let hash = bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325u64, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
    });
    (bytes.len() as u64, hash)
}
