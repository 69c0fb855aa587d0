//! A source tree, by the programs that people use.

use super::{Job, Scenario, ScenarioName, Start, Workload, files, nothing};
use anyhow::{Result, ensure};
use kvfs_bench::host;
use kvfs_bench::results::Class;
use std::fs;
use std::path::{Path, PathBuf};

pub(super) const SCENARIO: Scenario = Scenario {
    name: ScenarioName::Tree,
    workloads: &[
        Workload {
            key: "untar",
            title: |_| "untar".into(),
            class: Class::NoSync,
            start: Start::Settled,
            prepare: |job| Ok(fs::create_dir(dir(job))?),
            run: untar,
        },
        Workload {
            key: "find-cold",
            title: |_| "find".into(),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: |job| find(&dir(job)),
        },
        Workload {
            key: "grep-cold",
            title: |_| "grep -r".into(),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: |job| host::grep_in_vain(&dir(job)),
        },
        Workload {
            key: "grep-warm",
            title: |_| "grep -r".into(),
            class: Class::Warm,
            start: Start::Warm,
            prepare: nothing,
            run: |job| host::grep_in_vain(&dir(job)),
        },
        Workload {
            key: "find-warm",
            title: |_| "find".into(),
            class: Class::Warm,
            start: Start::Warm,
            prepare: nothing,
            run: |job| find(&dir(job)),
        },
        Workload {
            key: "rename-tree",
            title: |sizes| format!("{} x rename of the tree", sizes.renames),
            class: Class::NoSync,
            start: Start::Settled,
            prepare: |job| Ok(fs::create_dir(job.dir.join("elsewhere"))?),
            run: rename,
        },
        Workload {
            key: "rm-tree-cold",
            title: |_| "rm -rf of the tree".into(),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: |job| files::remove(&dir(job)),
        },
        Workload {
            key: "rm-tree-warm",
            title: |_| "rm -rf of the tree, just made".into(),
            class: Class::NoSync,
            start: Start::Warm,
            prepare: |job| {
                fs::create_dir(dir(job))?;
                untar(job)
            },
            run: |job| files::remove(&dir(job)),
        },
    ],
};

/// What a distribution has installed: unlike an archive it was not made in the order of its names.
pub(super) const INSTALLED: Scenario = Scenario {
    name: ScenarioName::Installed,
    workloads: &[
        Workload {
            key: "installed-copy",
            title: |_| "cp -a of /usr/share and /usr/include".into(),
            class: Class::NoSync,
            start: Start::Settled,
            prepare: |job| Ok(fs::create_dir(dir(job))?),
            run: copy_installed,
        },
        Workload {
            key: "installed-find-cold",
            title: |_| "find in it".into(),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: |job| find(&dir(job)),
        },
        Workload {
            key: "installed-grep-cold",
            title: |_| "grep -r in it".into(),
            class: Class::Cold,
            start: Start::Cold,
            prepare: nothing,
            run: |job| host::grep_in_vain(&dir(job)),
        },
    ],
};

fn dir(job: &Job) -> PathBuf {
    job.dir.join("tree")
}

fn untar(job: &Job) -> Result<()> {
    let dir = dir(job);
    host::run("tar", &["-xf".as_ref(), job.sizes.tarball.as_os_str(), "-C".as_ref(), dir.as_os_str()])?;
    Ok(())
}

fn copy_installed(job: &Job) -> Result<()> {
    let dir = dir(job);
    host::run("cp", &["-a".as_ref(), "/usr/share".as_ref(), "/usr/include".as_ref(), dir.as_os_str()])?;
    Ok(())
}

/// Looks for a name that is nowhere.
fn find(dir: &Path) -> Result<()> {
    let found = host::run("find", &[dir.as_os_str(), "-name".as_ref(), "kvfs-no-such-name".as_ref()])?;
    ensure!(found.is_empty(), "find found what cannot be there: {found}");
    Ok(())
}

/// Into another directory and back; an even number leaves it where it was.
fn rename(job: &Job) -> Result<()> {
    let (here, there) = (dir(job), job.dir.join("elsewhere/tree"));
    for number in 0..job.sizes.renames {
        let (from, to) = if number % 2 == 0 { (&here, &there) } else { (&there, &here) };
        fs::rename(from, to)?;
    }
    ensure!(here.is_dir(), "the tree is gone");
    Ok(())
}
