//! What mount(8) and umount(8) call for the type `fuse.kvfs`: this program by another name.
//!
//! `mount -t fuse.kvfs STORE DIR` and lines of `/etc/fstab` run
//! `/sbin/mount.fuse.kvfs STORE DIR [-sfnv] [-o …]`, `umount DIR` runs `/sbin/umount.fuse.kvfs DIR [-flnrv]`.
//! Both are links to `kvfs`; what they are given is put into the words of `kvfs mount` and `kvfs umount`
//! here, and exit codes into those of mount(8).

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::{CommandFactory, FromArgMatches, Parser};

use crate::error::Code;

const MOUNT: &str = "mount.fuse.kvfs";
const UMOUNT: &str = "umount.fuse.kvfs";

/// Exit codes of mount(8).
const EXIT_USAGE: u8 = 1;
const EXIT_FAILED: u8 = 32;

const FSTAB: &str = "\
Lines of /etc/fstab:
  /var/lib/kvfs/data  /srv/data  fuse.kvfs  noatime,memory=512M  0 0
  /home/me/store      /home/me/mnt  fuse.kvfs  noauto,user,noexec  0 0
  /kvfs/big  /big  fuse.kvfs  nofail,x-systemd.requires-mounts-for=/kvfs  0 0

Examples:
  mount -t fuse.kvfs /var/lib/kvfs/data /srv/data
  mount -t fuse.kvfs -o ro,commit=5 /var/lib/kvfs/data /srv/data
  mount -o remount,ro /srv/data
  mount /srv/data

STORE is the directory of a store, also of one on a block device. All options of
`kvfs mount -o` work, among them memory=SIZE, workers=N and create. The command
returns when the mount is ready.";

/// What mount(8) and umount(8) both say.
#[derive(Debug, clap::Args)]
struct Common {
    /// Say what is done
    #[arg(short = 'v')]
    verbose: bool,
    /// Keep out of /etc/mtab, as always
    #[arg(short = 'n')]
    no_mtab: bool,
    /// Type of the file system
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

/// Mount a kvfs store; mount(8) calls this
#[derive(Debug, Parser)]
#[command(name = MOUNT, version, disable_version_flag = true, after_help = FSTAB, max_term_width = 80)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a command")]
struct MountHelper {
    /// The store
    store: PathBuf,
    /// Existing, empty directory to mount on
    dir: PathBuf,
    /// Mount options, separated by commas; those of mount(8) alone are passed over
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Pass over options that are not known
    #[arg(short = 's')]
    sloppy: bool,
    /// Check everything that can be checked, and don't mount
    #[arg(short = 'f')]
    fake: bool,
    /// As -o ro
    #[arg(short = 'r')]
    read_only: bool,
    /// As -o rw
    #[arg(short = 'w')]
    writable: bool,
    #[command(flatten)]
    common: Common,
}

/// Unmount a kvfs store, and wait until everything is written; umount(8) calls this
#[derive(Debug, Parser)]
#[command(name = UMOUNT, version, disable_version_flag = true, max_term_width = 80)]
struct UmountHelper {
    /// The mount point
    dir: PathBuf,
    /// Detach now, although files are still open
    #[arg(short = 'l')]
    lazy: bool,
    /// Abort open transactions
    #[arg(short = 'f')]
    force: bool,
    /// For other file systems: mount read-only when it can't be unmounted
    #[arg(short = 'r')]
    read_only: bool,
    #[command(flatten)]
    common: Common,
}

/// For the manual.
pub(crate) fn commands() -> [clap::Command; 2] {
    [MountHelper::command(), UmountHelper::command()]
}

/// What a call under a helper's name comes to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// The words behind `kvfs`.
    pub(crate) words: Vec<OsString>,
    /// Check the words, but carry nothing out.
    pub(crate) is_fake: bool,
}

/// The call, if the program was started under the name of a helper; else `None`. Wrong usage is told, and
/// ends the process as mount(8) expects.
pub(crate) fn called_as(words: &[OsString]) -> Option<Call> {
    let name = Path::new(words.first()?).file_name()?;
    let call = if name == OsStr::new(MOUNT) {
        parse::<MountHelper>(words).mount()
    } else if name == OsStr::new(UMOUNT) {
        parse::<UmountHelper>(words).umount()
    } else {
        return None;
    };
    Some(call)
}

/// The exit code that mount(8) expects for a failure.
pub(crate) fn exit_code(code: Code) -> u8 {
    match code {
        Code::Usage | Code::Denied => EXIT_USAGE,
        _ => EXIT_FAILED,
    }
}

fn parse<T: CommandFactory + FromArgMatches>(words: &[OsString]) -> T {
    let matches = T::command().try_get_matches_from(words).and_then(|found| T::from_arg_matches(&found));
    matches.unwrap_or_else(|error| {
        // Help asked for is no error; there is nowhere to tell that the terminal is gone.
        let _ = error.print();
        std::process::exit(if error.use_stderr() { EXIT_USAGE.into() } else { 0 })
    })
}

impl MountHelper {
    fn mount(self) -> Call {
        let mut list: Vec<String> = self.options;
        list.extend(self.read_only.then(|| "ro".to_owned()));
        list.extend(self.writable.then(|| "rw".to_owned()));
        let options: Vec<&str> = list.iter().flat_map(|list| list.split(',')).collect();
        if self.common.verbose {
            eprintln!("{MOUNT}: {} on {} ({})", self.store.display(), self.dir.display(), options.join(","));
        }
        let mut words: Vec<OsString> = vec!["mount".into()];
        if self.sloppy {
            words.push("--sloppy".into());
        }
        if !options.is_empty() {
            words.extend(["-o".into(), options.join(",").into()]);
        }
        words.extend(["--".into(), self.store.into(), self.dir.into()]);
        Call { words, is_fake: self.fake }
    }
}

impl UmountHelper {
    fn umount(self) -> Call {
        if self.common.verbose {
            eprintln!("{UMOUNT}: {}", self.dir.display());
        }
        let mut words: Vec<OsString> = vec!["umount".into()];
        words.extend(self.lazy.then(|| "--lazy".into()));
        words.extend(self.force.then(|| "--abort-open".into()));
        words.extend(["--".into(), self.dir.into()]);
        Call { words, is_fake: false }
    }
}

#[cfg(test)]
mod tests;
