//! A memory cgroup that this process and the daemons it starts live in for a while.
//!
//! Thread safety: moves the whole process, so one at a time.
//!
//! Invariants: on drop the process is where it was before and the cgroup is gone.

use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

const V1: &str = "/sys/fs/cgroup/memory";
const V2: &str = "/sys/fs/cgroup";

/// A cgroup with a limit.
pub struct MemoryCgroup {
    dir: PathBuf,
    /// Where the process came from.
    home: PathBuf,
}

impl MemoryCgroup {
    /// Makes one that holds nothing yet.
    pub fn new(limit_bytes: u64) -> Result<Self> {
        let (base, own_path, limit_file) = own_hierarchy()?;
        let home = base.join(own_path.trim_start_matches('/'));
        let dir = dir_of(base, std::process::id());
        fs::create_dir(&dir).with_context(|| format!("cannot make the cgroup {}", dir.display()))?;
        let cgroup = Self { dir, home };
        if limit_file == "memory.max" {
            // Where the controller is handed down already this changes nothing.
            let _ = fs::write(base.join("cgroup.subtree_control"), "+memory");
        }
        fs::write(cgroup.dir.join(limit_file), limit_bytes.to_string())
            .context("cannot limit the cgroup's memory")?;
        Ok(cgroup)
    }

    /// Removes what a process that was killed has left, if it has.
    pub fn remove_of(process: u32) {
        if let Ok((base, ..)) = own_hierarchy() {
            let _ = fs::remove_dir(dir_of(base, process));
        }
    }

    /// Moves this process in: what it starts from now on is in it too.
    pub fn enter(&self) -> Result<()> {
        move_to(&self.dir)
    }

    /// Moves this process back; what it has started stays.
    pub fn leave(&self) -> Result<()> {
        move_to(&self.home)
    }
}

fn move_to(dir: &Path) -> Result<()> {
    let procs = dir.join("cgroup.procs");
    fs::write(&procs, std::process::id().to_string())
        .with_context(|| format!("cannot enter {}", dir.display()))
}

fn dir_of(base: &Path, process: u32) -> PathBuf {
    base.join(format!("kvfs-bench-{process}"))
}

fn own_hierarchy() -> Result<(&'static Path, String, &'static str)> {
    let own = fs::read_to_string("/proc/self/cgroup")?;
    hierarchy(&own).context("there is no memory cgroup hierarchy here")
}

/// Mount point, own path and name of the limit of version 1 or, where memory is not there, of version 2.
fn hierarchy(own: &str) -> Option<(&'static Path, String, &'static str)> {
    let mut lines = own.lines().map(|line| line.splitn(3, ':').collect::<Vec<_>>());
    let v1 = lines
        .clone()
        .find(|fields| fields.get(1).is_some_and(|names| names.split(',').any(|it| it == "memory")));
    if let Some(fields) = v1 {
        return Some((Path::new(V1), (*fields.get(2)?).to_owned(), "memory.limit_in_bytes"));
    }
    let fields = lines.find(|fields| fields.first() == Some(&"0"))?;
    Some((Path::new(V2), (*fields.get(2)?).to_owned(), "memory.max"))
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let gone = self.leave().and_then(|()| Ok(fs::remove_dir(&self.dir)?));
        if let Err(error) = gone {
            eprintln!("{} stays: {error:#}", self.dir.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_known() {
        let v1 = hierarchy("9:pids:/\n5:cpu,memory:/a/b\n0::/").expect("found");
        assert_eq!((v1.1.as_str(), v1.2), ("/a/b", "memory.limit_in_bytes"));
        let v2 = hierarchy("0::/user.slice").expect("found");
        assert_eq!((v2.1.as_str(), v2.2), ("/user.slice", "memory.max"));
        assert!(hierarchy("").is_none());
    }
}
