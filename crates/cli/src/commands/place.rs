//! Names in mounted stores, and calls on trees there, for the commands that have several of them.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use kvfs_rpc::client::{ClientError, calls};
use rustix::io::Errno;

use crate::control;
use crate::error::{CliError, Code, Result};
use crate::mounts::{self, MountedStore};

/// A name in a mounted store, whether something has it or not.
pub(super) struct Place {
    /// Without symbolic links and dots, but for the name itself.
    pub(super) path: PathBuf,
    pub(super) mount: MountedStore,
}

impl Place {
    /// The last name of a path; `None`: it ends with `..`, or is the root, or the working directory.
    pub(super) fn name_of(path: &Path) -> Option<&OsStr> {
        match path.components().next_back()? {
            Component::Normal(name) => Some(name),
            _ => None,
        }
    }

    /// Of a path that ends with a name. The directory that it is in must be there.
    pub(super) fn of(path: &Path) -> Result<Self> {
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let above = above.canonicalize().map_err(|error| CliError::io("resolve", above, &error))?;
        let elsewhere = || mounts::required(path).err().unwrap_or_else(control::confused);
        let mount = mounts::on(&above)?.ok_or_else(elsewhere)?;
        Ok(Self { path: above.join(Self::name_of(path).unwrap_or_default()), mount })
    }

    /// The directory that it is in.
    pub(super) fn above(&self) -> &Path {
        self.path.parent().unwrap_or(&self.mount.dir)
    }

    /// As a path from the root of the store.
    pub(super) fn in_store(&self) -> Vec<u8> {
        self.mount.path_in_store(&self.path)
    }
}

/// Makes a call on the lowest directory above all of these places that may be opened, with what they are from
/// there.
pub(super) fn from_above<T>(
    places: &[&Place],
    call: impl Fn(&calls::Mount, &[&[u8]]) -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    let [first, ..] = places else { return Err(ClientError::NotMounted(PathBuf::new())) };
    let mut refused = ClientError::NotMounted(first.mount.dir.clone());
    let above = first.above().ancestors().take_while(|above| above.starts_with(&first.mount.dir));
    let in_common = |directory: &&Path| places.iter().all(|place| place.above().starts_with(directory));
    for directory in above.filter(in_common) {
        match calls::Mount::open(directory) {
            Ok(top) => {
                let below =
                    places.iter().map(|place| place.path.strip_prefix(directory).unwrap_or(&place.path));
                let below: Vec<&[u8]> = below.map(|path| path.as_os_str().as_bytes()).collect();
                return call(&top, &below).map_err(|error| match error {
                    ClientError::Tree { errno, text } => {
                        let text = format!("{}/{text}", directory.display());
                        ClientError::Tree { errno, text }
                    }
                    error => error,
                });
            }
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Why a command has no file at `path`, with the directory in which it was looked for where the path does not
/// say it.
pub(super) fn not_found(verb: &str, path: &Path, error: &io::Error) -> CliError {
    let looked_in = std::env::current_dir().ok().filter(|_| path.is_relative());
    let place = looked_in.map(|dir| format!(" in {}", dir.display())).unwrap_or_default();
    let CliError { code, .. } = CliError::io(verb, path, error);
    let why = match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        _ => error.to_string(),
    };
    CliError::new(code, format!("cannot {verb} {}{place}: {why}", path.display()))
}

/// Why a call on a tree failed.
pub(super) fn tree_error(verb: &str, path: &Path, error: ClientError) -> CliError {
    match error {
        ClientError::Io(error) => CliError::io(verb, path, &error),
        ClientError::Tree { errno, text } => CliError::new(code_of(errno), text),
        error => CliError::new(Code::Failed, error.to_string()),
    }
}

fn code_of(errno: i32) -> Code {
    match Errno::from_raw_os_error(errno) {
        Errno::ACCESS | Errno::PERM => Code::Denied,
        Errno::BUSY => Code::InUse,
        Errno::NOSPC | Errno::DQUOT => Code::NoSpace,
        Errno::CANCELED => Code::Conflict,
        _ => Code::Failed,
    }
}
