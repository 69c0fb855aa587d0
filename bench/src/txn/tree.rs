//! A real tree on a mount: unpacked, searched, read and removed, and a build, outside of transactions and in one.
//!
//! Table 4.3 and figures 4.6 and 4.7 of the thesis. Times are of the whole command, so those of transactions include
//! the commit.
//!
//! Thread safety: one experiment at a time; the mount is shared by all and taken down with the last.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use kvfs_bench::source;

use crate::{Experiment, Goal, ends};

/// A store and its mount.
pub(crate) struct Mount {
    program: PathBuf,
    dir: PathBuf,
}

impl Mount {
    fn new(program: &Path, work: &Path) -> Result<Self> {
        let (store, dir) = (work.join("store"), work.join("mnt"));
        fs::create_dir(&dir)?;
        let args = ["mount".as_ref(), "--create".as_ref(), store.as_os_str(), dir.as_os_str()];
        let status = Command::new(program).args(args).status().context("kvfs mount")?;
        ensure!(status.success(), "kvfs mount: {status}");
        Ok(Self { program: program.to_owned(), dir })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Runs a shell command in the mount, in a transaction of its own if `level` says so; seconds.
    fn time(&self, level: Level, command: &str) -> Result<f64> {
        let mut shell = match level.option() {
            None => Command::new("sh"),
            Some(isolation) => {
                let mut run = Command::new(&self.program);
                run.args(["txn", "run", "--isolation", isolation, "--", "sh"]);
                run
            }
        };
        shell.args(["-c", command]).current_dir(&self.dir).stdin(Stdio::null()).stdout(Stdio::null());
        let start = Instant::now();
        let status = shell.status().with_context(|| format!("cannot run {command}"))?;
        let seconds = start.elapsed().as_secs_f64();
        ensure!(status.success(), "{command}: {status}");
        Ok(seconds)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        match Command::new(&self.program).arg("umount").arg(&self.dir).status() {
            Ok(status) if status.success() => {}
            other => eprintln!("{} stays mounted: {other:?}", self.dir.display()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    None,
    Snapshot,
    Serializable,
}

impl Level {
    const ALL: [Self; 3] = [Self::None, Self::Snapshot, Self::Serializable];

    fn option(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Snapshot => Some("si"),
            Self::Serializable => Some("serializable"),
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::None => "no transaction",
            Self::Snapshot => "snapshot isolation",
            Self::Serializable => "serializable",
        }
    }

    /// Of the build: the other steps do nothing but file operations.
    fn build_goal(self) -> Option<Goal> {
        match self {
            Self::None => None,
            Self::Snapshot => Some(Goal::AtMost(1.03)),
            Self::Serializable => Some(Goal::AtMost(1.08)),
        }
    }
}

/// The steps, each at three levels, on one mount.
pub(crate) fn experiments(program: &Path, work: &Path, quick: bool) -> Result<Vec<Experiment>> {
    // A transaction of the whole tree is what `--quick` leaves out.
    let tarball = source::tarball(None, quick)?;
    let mount = Rc::new(Mount::new(program, work)?);
    let untar = format!("mkdir tree && tar -xf {} -C tree", tarball.display());
    // Crates of this workspace: whoever has made this program has what it takes.
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("bench/ is in no workspace")?;
    let build = format!(
        "mkdir build && cp -r {0}/crates {0}/Cargo.toml {0}/Cargo.lock build && cd build && \
         CARGO_TARGET_DIR=target cargo build --quiet --offline -p kvfs-txn && cd .. && rm -rf build",
        workspace.display()
    );
    let steps = [
        ("build", build.as_str()),
        ("unpack", untar.as_str()),
        ("find", "find tree -newer tree -print"),
        ("read all", "tar -cf - tree | cat"),
        ("remove", "rm -rf tree"),
    ];
    let mut all = Vec::new();
    all.extend(ends::experiments(&mount, quick));
    let in_mount = Rc::clone(&mount);
    all.push(Experiment {
        name: "kvfs txn run -- true".into(),
        unit: "s",
        against: None,
        goal: Some(Goal::AtMost(0.025)),
        measure: Box::new(move || in_mount.time(Level::Snapshot, "true")),
    });
    for level in Level::ALL {
        for (step, command) in steps {
            let (mount, command) = (Rc::clone(&mount), command.to_owned());
            let goal = if step == "build" { level.build_goal() } else { None };
            all.push(Experiment {
                name: format!("{step}, {}", level.title()),
                unit: "s",
                against: (level != Level::None).then(|| (format!("{step}, {}", Level::None.title()), goal)),
                goal: None,
                measure: Box::new(move || mount.time(level, &command)),
            });
        }
    }
    Ok(all)
}
