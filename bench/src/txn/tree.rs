//! A real tree on a mount: unpacked, searched, read and removed, and a build, outside of transactions and in
//! one.
//!
//! Table 4.3 and figures 4.6 to 4.8 of the thesis; what is compiled is a crate of this workspace, and a
//! project of its own ([`project`]), alone and two at once. Times are of the whole command, so those of
//! transactions include the commit.
//!
//! Thread safety: one experiment at a time; the mount is shared by all and taken down with the last.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use kvfs_bench::goals::Bound;
use kvfs_bench::mount::{MountOptions, Mounted};
use kvfs_bench::source;

use crate::{Experiment, clients, ends, project};

/// A mounted store, and the program that serves it.
pub(crate) struct Mount {
    program: PathBuf,
    mounted: Mounted,
}

impl Mount {
    fn new(program: &Path, work: &Path) -> Result<Self> {
        let mounted = Mounted::new(program, work, &MountOptions::default())?;
        Ok(Self { program: program.to_owned(), mounted })
    }

    pub(crate) fn dir(&self) -> &Path {
        self.mounted.dir()
    }

    /// Runs a shell command in the mount, in a transaction of its own if `level` says so; seconds.
    fn time(&self, level: Level, command: &str) -> Result<f64> {
        self.time_all(level, &[command])
    }

    /// Runs shell commands at once, each in a transaction of its own if `level` says so; seconds.
    fn time_all(&self, level: Level, commands: &[&str]) -> Result<f64> {
        let start = Instant::now();
        let started: Result<Vec<_>> = commands.iter().map(|command| self.start(level, command)).collect();
        for (mut child, command) in started?.into_iter().zip(commands) {
            let status = child.wait().with_context(|| format!("cannot wait for {command}"))?;
            ensure!(status.success(), "{command}: {status}");
        }
        Ok(start.elapsed().as_secs_f64())
    }

    fn start(&self, level: Level, command: &str) -> Result<Child> {
        let mut shell = match level.option() {
            None => Command::new("sh"),
            Some(isolation) => {
                let mut run = Command::new(&self.program);
                run.args(["txn", "run", "--isolation", isolation, "--", "sh"]);
                run
            }
        };
        shell.args(["-c", command]).current_dir(self.dir()).stdin(Stdio::null()).stdout(Stdio::null());
        shell.spawn().with_context(|| format!("cannot run {command}"))
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
    fn build_goal(self) -> Option<Bound> {
        match self {
            Self::None => None,
            Self::Snapshot => Some(Bound::AtMost(1.03)),
            Self::Serializable => Some(Bound::AtMost(1.08)),
        }
    }
}

/// The steps, each at three levels, on one mount.
pub(crate) fn experiments(program: &Path, work: &Path, quick: bool) -> Result<Vec<Experiment>> {
    // A transaction of the whole tree is what `--quick` leaves out.
    let tarball = source::tarball(None, quick)?;
    let mount = Rc::new(Mount::new(program, work)?);
    let untar = format!("mkdir tree && tar -xf {} -C tree", tarball.display());
    let sources = work.join("project");
    project::create(&sources, if quick { 12 } else { 100 })?;
    let steps = [
        ("unpack", untar.as_str()),
        ("find", "find tree -newer tree -print"),
        ("read all", "tar -cf - tree | cat"),
        ("remove", "rm -rf tree"),
    ];
    let mut all = Vec::new();
    all.extend(ends::experiments(&mount, quick));
    all.extend(clients::experiments(&mount, quick));
    let in_mount = Rc::clone(&mount);
    all.push(Experiment {
        name: "kvfs txn run -- true".into(),
        unit: "s",
        against: None,
        goal: Some(Bound::AtMost(0.025)),
        measure: Box::new(move || in_mount.time(Level::Snapshot, "true")),
    });
    builds(&mount, &sources, &mut all)?;
    for level in Level::ALL {
        for (step, command) in steps {
            let (mount, command) = (Rc::clone(&mount), command.to_owned());
            all.push(Experiment {
                name: format!("{step}, {}", level.title()),
                unit: "s",
                against: (level != Level::None).then(|| (format!("{step}, {}", Level::None.title()), None)),
                goal: None,
                measure: Box::new(move || mount.time(level, &command)),
            });
        }
    }
    Ok(all)
}

/// Projects copied and built, then removed: by cargo, by make, and two by make at the same time.
fn builds(mount: &Rc<Mount>, sources: &Path, all: &mut Vec<Experiment>) -> Result<()> {
    // The machine that has made this program has what it takes to build a crate of it.
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("bench/ is in no workspace")?;
    let in_rust = format!(
        "mkdir crates && cp -r {0}/crates {0}/Cargo.toml {0}/Cargo.lock crates && cd crates && \
         CARGO_TARGET_DIR=target cargo build --quiet --offline -p kvfs-txn && cd .. && rm -rf crates",
        workspace.display()
    );
    let build = |dir: &str| {
        format!("cp -r {} {dir} && make -s -j2 -C {dir} >/dev/null && rm -r {dir}", sources.display())
    };
    let (alone, one, other) = (build("alone"), build("one"), build("other"));
    let goals = [
        ("build in Rust", vec![in_rust], true),
        ("build", vec![alone], true),
        ("two builds at once", vec![one, other], false),
    ];
    for (step, commands, has_goal) in goals {
        for level in Level::ALL {
            // Two serializable ones that make directories in the same place exclude each other.
            if level == Level::Serializable && !has_goal {
                continue;
            }
            let (mount, commands) = (Rc::clone(mount), commands.clone());
            let goal = level.build_goal().filter(|_| has_goal);
            all.push(Experiment {
                name: format!("{step}, {}", level.title()),
                unit: "s",
                against: (level != Level::None).then(|| (format!("{step}, {}", Level::None.title()), goal)),
                goal: None,
                measure: Box::new(move || {
                    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
                    mount.time_all(level, &commands)
                }),
            });
        }
    }
    Ok(())
}
