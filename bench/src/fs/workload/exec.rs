//! What `kvfs exec` is for: a source tree by the programs that people use, without a mount and on one.
//! Everything is synced before a timing ends.

use super::{Job, Scenario, ScenarioName, Start, Workload, nothing};
use anyhow::{Result, ensure};
use kvfs_bench::results::Class;
use std::ffi::OsStr;
use std::path::PathBuf;

pub(super) const SCENARIO: Scenario = Scenario {
    name: ScenarioName::Exec,
    workloads: &[
        Workload {
            key: "exec-untar",
            title: |_| "tar xf of a source tree".into(),
            class: Class::SyncAtEnd,
            start: Start::Settled,
            prepare: |job| run(job, &["mkdir".as_ref(), tree(job).as_ref()]),
            run: |job| {
                let tarball = job.sizes.tarball.as_os_str();
                run_durably(
                    job,
                    &["tar".as_ref(), "-xf".as_ref(), tarball, "-C".as_ref(), tree(job).as_ref()],
                )
            },
        },
        Workload {
            key: "exec-copy",
            title: |_| "cp -a of it".into(),
            class: Class::SyncAtEnd,
            start: Start::Warm,
            prepare: nothing,
            run: |job| {
                run_durably(job, &["cp".as_ref(), "-a".as_ref(), tree(job).as_ref(), copy(job).as_ref()])
            },
        },
        Workload {
            key: "exec-remove",
            title: |_| "rm -rf of the copy".into(),
            class: Class::SyncAtEnd,
            start: Start::Warm,
            prepare: |job| {
                let (copied, all) = (job.programs.count(&copy(job))?, job.programs.count(&tree(job))?);
                ensure!(copied == all, "the copy has {copied} names, the tree {all}");
                Ok(())
            },
            run: |job| run_durably(job, &["rm".as_ref(), "-rf".as_ref(), copy(job).as_ref()]),
        },
        Workload {
            key: "exec-git-status",
            title: |_| "git status in it".into(),
            class: Class::SyncAtEnd,
            start: Start::Warm,
            prepare: make_repository,
            run: |job| {
                let changed = job.programs.run_durably(&git(job, &["status", "--porcelain"]))?;
                ensure!(changed.is_empty(), "git status finds changes: {changed}");
                Ok(())
            },
        },
    ],
};

fn tree(job: &Job) -> PathBuf {
    job.programs.dir().join("tree")
}

fn copy(job: &Job) -> PathBuf {
    job.programs.dir().join("copy")
}

fn run(job: &Job, words: &[&OsStr]) -> Result<()> {
    job.programs.run(words).map(drop)
}

fn run_durably(job: &Job, words: &[&OsStr]) -> Result<()> {
    job.programs.run_durably(words).map(drop)
}

/// A command line of git in the tree, whatever the user has configured.
fn git(job: &Job, words: &[&str]) -> Vec<String> {
    let tree = tree(job).to_string_lossy().into_owned();
    let options = ["user.name=bench", "user.email=bench@localhost", "gc.auto=0", "core.fsmonitor=false"];
    let options = options.into_iter().flat_map(|option| ["-c".to_owned(), option.to_owned()]);
    let begin = ["git".to_owned(), "-C".to_owned(), tree];
    begin.into_iter().chain(options).chain(words.iter().map(|&word| word.to_owned())).collect()
}

/// All of the tree is committed, and git has looked at it once.
fn make_repository(job: &Job) -> Result<()> {
    for words in [
        ["init", "-q"].as_slice(),
        &["add", "-A", "-f"],
        &["commit", "-q", "-m", "all"],
        &["status", "--porcelain"],
    ] {
        job.programs.run(&git(job, words))?;
    }
    Ok(())
}
