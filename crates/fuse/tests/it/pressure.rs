//! Dirty pages of mapped files can be freed only by the daemon; with memory gone, it must still get on.

mod mapped;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use kvfs_fs::MountOptions;
use kvfs_fuse::Operations;
use kvfs_fuse::bridge::init_config;
use kvfs_fuse::session::{InitConfig, SessionConfig};

use crate::bridge::over_the_model;
use crate::floor::Floor;
use crate::mounted::{mount_or_skip, start};

const WRITER_FILE: &str = "KVFS_TEST_MAPPED_FILE";
const FILE_BYTES: usize = 96 << 20;
const CGROUP_BYTES_MAX: usize = 24 << 20;

static NEXT_GROUP: AtomicU32 = AtomicU32::new(0);

fn pattern(page: usize) -> u8 {
    (page % 251) as u8 + 1
}

/// Not a test of its own: the writer, in a process of its own, started by the test below.
#[test]
fn mapped_writer_process() {
    let Some(path) = std::env::var_os(WRITER_FILE) else { return };
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    mapped::fill(&file, FILE_BYTES, pattern);
}

/// A memory control group with a limit, removed in the end.
struct Cgroup(PathBuf);

impl Cgroup {
    /// A group below the root of the memory controller, of either version of control groups.
    fn new(bytes_max: usize) -> Result<Self, String> {
        let root = Path::new("/sys/fs/cgroup");
        let why = |error: std::io::Error| error.to_string();
        let number = NEXT_GROUP.fetch_add(1, Ordering::Relaxed);
        let name = format!("kvfs-fuse-it-{}-{number}", std::process::id());
        let (group, limit) = if root.join("memory").is_dir() {
            (Self(root.join("memory").join(name)), "memory.limit_in_bytes")
        } else {
            fs::write(root.join("cgroup.subtree_control"), "+memory").map_err(why)?;
            (Self(root.join(name)), "memory.max")
        };
        fs::create_dir(&group.0).map_err(why)?;
        fs::write(group.0.join(limit), bytes_max.to_string()).map_err(why)?;
        Ok(group)
    }

    fn add(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn mapped_writers_without_memory_get_on() {
    get_on("mapped_writers_without_memory_get_on", Arc::new(Floor::new()), InitConfig::default());
}

#[test]
fn mapped_writers_without_memory_get_on_over_the_file_system() {
    let (_fs, bridge) = over_the_model(MountOptions::default());
    get_on("mapped_writers_without_memory_get_on_over_the_file_system", bridge, init_config());
}

fn get_on(test: &str, operations: Arc<dyn Operations>, init: InitConfig) {
    let cgroup = match Cgroup::new(CGROUP_BYTES_MAX) {
        Ok(cgroup) => cgroup,
        Err(reason) => return eprintln!("SKIPPED {test}: {reason}"),
    };
    let config = SessionConfig { init, workers: 1, ..SessionConfig::default() };
    let Some(mounted) = mount_or_skip(test, operations, &config) else { return };
    let path = mounted.path("mapped");
    let file = File::create_new(&path).unwrap();
    file.set_len(FILE_BYTES as u64).unwrap();

    // The shell puts itself into the group before it becomes the writer.
    let mut writer = Command::new("sh");
    writer
        .args(["-c", "read go && exec \"$0\" mapped_writer_process --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .env(WRITER_FILE, &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    let mut writer = start(&mut writer);
    cgroup.add(writer.id());
    drop(writer.stdin.take().map(|mut stdin| std::io::Write::write_all(&mut stdin, b"go\n")));
    assert!(writer.wait().unwrap().success(), "the writer failed");

    let mut page = vec![0; 4096];
    for index in 0..FILE_BYTES / 4096 {
        file.read_exact_at(&mut page, (index * 4096) as u64).unwrap();
        assert!(page.iter().all(|&byte| byte == pattern(index)), "page {index}");
    }
    drop(file);
    mounted.unmount();
}
