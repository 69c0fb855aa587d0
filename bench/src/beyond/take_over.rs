//! A writer that is killed, and another machine that goes on: how long that takes, and whether anything
//! acknowledged is lost.
//!
//! Thread safety: functions.

use crate::storage::Storage;
use crate::target::{STORE_URL, kvfs, mount_kvfs};
use anyhow::{Context, Result, ensure};
use kvfs_bench::daemon::Daemon;
use kvfs_bench::{host, interrupt};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Each writer makes so many files before it is killed.
const FILES: u32 = 20;

/// So many writers, one after another, each of which is killed; how long each successor took from then to its
/// first fsync.
pub(crate) fn measure(program: &Path, storage: &Storage, work: &Path, count: u32) -> Result<Vec<Duration>> {
    // Each machine has local files of its own, so that it knows nothing of the other's end.
    let machines = [work.join("machine0"), work.join("machine1")];
    let dirs = [work.join("mnt0"), work.join("mnt1")];
    for dir in machines.iter().chain(&dirs) {
        fs::create_dir_all(dir)?;
    }
    host::succeed(kvfs(program, storage, &machines[0]).args(["mkfs", STORE_URL]))?;
    let mount = |number: usize| -> Result<Daemon> {
        let mut command = mount_kvfs(program, storage, &machines[number], "storage");
        command.arg(&dirs[number]);
        Daemon::start(command, &dirs[number], &machines[number].with_extension("log"))
    };
    let mut writer = mount(0)?;
    let mut took = Vec::new();
    for round in 0..count {
        interrupt::check()?;
        let (old, new) = (round as usize % 2, (round as usize + 1) % 2);
        for number in 0..FILES {
            acknowledged(&dirs[old], round * FILES + number)?;
        }
        let start = Instant::now();
        writer.kill()?;
        writer = mount(new)?;
        acknowledged(&dirs[new], u32::MAX - round)?;
        took.push(start.elapsed());
        for number in 0..(round + 1) * FILES {
            let path = dirs[new].join(number.to_string());
            let content = fs::read(&path).with_context(|| format!("file {number} is lost"))?;
            ensure!(content == number.to_le_bytes(), "file {number} has other bytes");
        }
    }
    writer
        .stop(|_| host::run(program, &["umount".as_ref(), dirs[count as usize % 2].as_os_str()]).map(drop))?;
    for dir in machines {
        fs::remove_dir_all(dir)?;
    }
    Ok(took)
}

fn acknowledged(dir: &Path, number: u32) -> Result<()> {
    let mut file = File::create(dir.join(number.to_string()))?;
    file.write_all(&number.to_le_bytes())?;
    Ok(file.sync_all()?)
}
