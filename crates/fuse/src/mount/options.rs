//! Mount options: what the kernel checks itself, what FUSE needs, and what is left for the caller.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use rustix::mount::MountFlags;

use super::MountError;

/// When reading updates access times (the kernel's part of it).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtimeMode {
    /// At most once a day, or when the file changed since.
    #[default]
    Relatime,
    /// Never.
    Noatime,
}

/// Options of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct MountOptions {
    /// What the mount shows as its source.
    pub source: PathBuf,
    /// The part behind `fuse.` of the type that the mount shows.
    pub subtype: String,
    /// No changes.
    pub read_only: bool,
    /// No programs are run.
    pub noexec: bool,
    /// Setuid and setgid bits have no effect. Always so for mounts of ordinary users.
    pub nosuid: bool,
    /// Device nodes have no effect. Always so for mounts of ordinary users.
    pub nodev: bool,
    /// All writes are synchronous.
    pub sync: bool,
    /// Changes of directories are synchronous.
    pub dirsync: bool,
    /// Access times.
    pub atime: AtimeMode,
    /// Access times of directories never change.
    pub nodiratime: bool,
    /// Others than the mounting user may use the mount.
    pub allow_other: bool,
    /// The kernel checks permissions.
    pub default_permissions: bool,
    /// Largest READ (bytes); 0: no bound of its own.
    pub read_bytes_max: u32,
    /// The user that must own the mount point, where root mounts for another user.
    pub point_owner: Option<u32>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: PathBuf::from("kvfs"),
            subtype: "kvfs".to_owned(),
            read_only: false,
            noexec: false,
            nosuid: false,
            nodev: false,
            sync: false,
            dirsync: false,
            atime: AtimeMode::Relatime,
            nodiratime: false,
            allow_other: false,
            default_permissions: true,
            read_bytes_max: 0,
            point_owner: None,
        }
    }
}

/// What `/etc/fstab` may say to mount(8) alone.
fn is_for_mount_command(option: &str) -> bool {
    const WORDS: [&str; 15] = [
        "defaults", "auto", "noauto", "user", "nouser", "users", "nousers", "owner", "noowner", "group",
        "nogroup", "_netdev", "nofail", "silent", "loud",
    ];
    const STARTS: [&str; 6] = ["x-", "X-", "comment=", "user=", "uhelper=", "helper="];
    WORDS.contains(&option) || STARTS.iter().any(|start| option.starts_with(start))
}

/// Whether an option of a remount is none of the server's business: the kernel changes it, or mount(8) alone
/// reads it.
pub fn is_of_kernel(option: &str) -> bool {
    const CHANGED: [&str; 11] =
        ["ro", "rw", "exec", "noexec", "suid", "nosuid", "dev", "nodev", "sync", "async", "dirsync"];
    CHANGED.contains(&option) || is_for_mount_command(option)
}

impl MountOptions {
    /// Takes what this layer knows out of a comma-separated list, in order (later ones win), and returns the
    /// rest, which is the caller's.
    ///
    /// # Errors
    /// A value is missing or isn't a number; an option cannot be kept.
    pub fn apply<'a>(&mut self, list: &'a str) -> Result<Vec<&'a str>, MountError> {
        let mut rest = Vec::new();
        for option in list.split(',').filter(|option| !option.is_empty()) {
            if !self.apply_flag(option) && !self.apply_value(option)? {
                rest.push(option);
            }
        }
        Ok(rest)
    }

    fn apply_flag(&mut self, option: &str) -> bool {
        match option {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "exec" => self.noexec = false,
            "noexec" => self.noexec = true,
            "suid" => self.nosuid = false,
            "nosuid" => self.nosuid = true,
            "dev" => self.nodev = false,
            "nodev" => self.nodev = true,
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "dirsync" => self.dirsync = true,
            "atime" | "relatime" => self.atime = AtimeMode::Relatime,
            "noatime" => self.atime = AtimeMode::Noatime,
            "diratime" => self.nodiratime = false,
            "nodiratime" => self.nodiratime = true,
            "allow_other" => self.allow_other = true,
            "default_permissions" => self.default_permissions = true,
            "no_default_permissions" => self.default_permissions = false,
            other => return is_for_mount_command(other),
        }
        true
    }

    fn apply_value(&mut self, option: &str) -> Result<bool, MountError> {
        if option == "strictatime" {
            return Err(MountError::Option {
                option: option.to_owned(),
                reason: "not supported, because the kernel answers most reads from its cache and tells of none of them; \
                         use relatime (the default) or noatime",
            });
        }
        let Some((name, value)) = option.split_once('=') else { return Ok(false) };
        match name {
            "fsname" => self.source = PathBuf::from(value),
            "subtype" => value.clone_into(&mut self.subtype),
            "max_read" => {
                self.read_bytes_max = value.parse().map_err(|_| MountError::Option {
                    option: option.to_owned(),
                    reason: "not a number of bytes",
                })?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Flags of mount(2).
    pub(super) fn flags(&self) -> MountFlags {
        let mut flags = match self.atime {
            AtimeMode::Relatime => MountFlags::RELATIME,
            AtimeMode::Noatime => MountFlags::NOATIME,
        };
        for (set, flag) in [
            (self.read_only, MountFlags::RDONLY),
            (self.noexec, MountFlags::NOEXEC),
            (self.nosuid, MountFlags::NOSUID),
            (self.nodev, MountFlags::NODEV),
            (self.sync, MountFlags::SYNCHRONOUS),
            (self.dirsync, MountFlags::DIRSYNC),
            (self.nodiratime, MountFlags::NODIRATIME),
        ] {
            if set {
                flags |= flag;
            }
        }
        flags
    }

    /// Flags of mount(2) for a mount that has some already. Access times stay as they are: the server has its
    /// own part in them, and learns nothing of this.
    pub(super) fn remount_flags(&self) -> MountFlags {
        let atimes =
            MountFlags::RELATIME | MountFlags::NOATIME | MountFlags::STRICTATIME | MountFlags::NODIRATIME;
        self.flags().difference(atimes)
    }

    /// Options that FUSE itself reads.
    fn fuse_options(&self) -> Vec<String> {
        let mut options = Vec::new();
        if self.allow_other {
            options.push("allow_other".to_owned());
        }
        if self.default_permissions {
            options.push("default_permissions".to_owned());
        }
        if self.read_bytes_max > 0 {
            options.push(format!("max_read={}", self.read_bytes_max));
        }
        options
    }

    /// The data argument of mount(2).
    pub(super) fn syscall_data(&self, fd: i32, uid: u32, gid: u32) -> String {
        let mut options = vec![format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid}")];
        options.extend(self.fuse_options());
        options.join(",")
    }

    /// The option list of fusermount3.
    pub(super) fn fusermount_list(&self) -> OsString {
        let mut options = self.fuse_options();
        for (set, name) in [
            (self.read_only, "ro"),
            (self.noexec, "noexec"),
            (self.sync, "sync"),
            (self.dirsync, "dirsync"),
            (self.atime == AtimeMode::Noatime, "noatime"),
        ] {
            if set {
                options.push(name.to_owned());
            }
        }
        options.push("nosuid,nodev".to_owned());
        let mut list = options.join(",").into_bytes();
        for (name, value) in [("fsname", self.source.as_os_str()), ("subtype", OsStr::new(&self.subtype))] {
            list.extend_from_slice(format!(",{name}=").as_bytes());
            for &byte in value.as_bytes() {
                list.extend(matches!(byte, b'\\' | b',').then_some(b'\\'));
                list.push(byte);
            }
        }
        OsString::from_vec(list)
    }
}
