//! How the workloads run programs on a file system: plainly on its mount, or under `kvfs exec`.
//!
//! Purpose: the same command lines everywhere, so that nothing but the way to the file system differs.
//!
//! Thread safety: a plain value.

use crate::host;
use anyhow::{Result, ensure};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Runs its arguments, and then writes out all of the file system that `$0` is on, as [`host::make_durable`]
/// does.
const DURABLY: &str =
    r#""$@" && sync -f "$0" && : >"$0/.made-last" && sync "$0/.made-last" && rm "$0/.made-last""#;

/// See the module.
#[derive(Clone, Debug)]
pub struct Programs {
    /// In front of each command line.
    prefix: Vec<OsString>,
    dir: PathBuf,
}

impl Programs {
    /// On a mounted directory.
    pub fn on_mount(dir: &Path) -> Self {
        Self { prefix: Vec::new(), dir: dir.to_owned() }
    }

    /// Under `kvfs exec` on a store whose root programs see at `/kvfs`; `dir` begins there.
    pub fn under_exec(kvfs: &Path, store: &Path, dir: &Path) -> Self {
        let prefix = [kvfs.as_os_str(), "exec".as_ref(), "--store".as_ref(), store.as_ref(), "--".as_ref()];
        Self { prefix: prefix.map(OsStr::to_owned).into(), dir: dir.to_owned() }
    }

    /// Where programs find the directory that they work in.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Runs a program to its end; returns what it prints.
    pub fn run<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<String> {
        let line = self.line(words);
        host::run(&line[0], &line[1..])
    }

    /// As [`Self::run`]; what it changed survives a power cut.
    pub fn run_durably<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<String> {
        let shell = ["sh".as_ref(), "-c".as_ref(), DURABLY.as_ref(), self.dir.as_os_str()];
        let words: Vec<&OsStr> = shell.into_iter().chain(words.iter().map(AsRef::as_ref)).collect();
        self.run(&words)
    }

    /// Names beneath a directory, itself included.
    pub fn count(&self, dir: &Path) -> Result<u64> {
        let counted = self.run(&[OsStr::new("find"), dir.as_os_str(), "-printf".as_ref(), ".".as_ref()])?;
        ensure!(!counted.is_empty(), "{} is not there", dir.display());
        Ok(counted.len() as u64)
    }

    fn line<S: AsRef<OsStr>>(&self, words: &[S]) -> Vec<OsString> {
        self.prefix.iter().cloned().chain(words.iter().map(|word| word.as_ref().to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_differ_by_what_stands_in_front_alone() {
        let plain = Programs::on_mount(Path::new("/mnt/work"));
        let exec = Programs::under_exec(Path::new("kvfs"), Path::new("/store"), Path::new("/kvfs/work"));
        assert_eq!(plain.line(&["rm", "-rf"]), ["rm", "-rf"]);
        assert_eq!(exec.line(&["rm", "-rf"]), ["kvfs", "exec", "--store", "/store", "--", "rm", "-rf"]);
    }

    #[test]
    fn a_program_that_fails_is_not_made_durable_in_silence() {
        let dir = std::env::temp_dir();
        let programs = Programs::on_mount(&dir);
        assert_eq!(programs.run_durably(&["echo", "a b"]).expect("it succeeds"), "a b\n");
        assert!(programs.run_durably(&["false"]).is_err());
    }
}
