//! `kvfs get` and `kvfs set`.
//!
//! Properties of files and directories go the way of everything else on a mount: by a call on the path, so
//! that rights, transactions and branches mean for them what they mean for content.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kvfs_fs::{COMPRESSION_ATTRIBUTE, TIER_ATTRIBUTE};
use kvfs_store::Compression;
use rustix::fs::{XattrFlags, getxattr, lgetxattr, lsetxattr, setxattr};
use rustix::io::Errno;

use super::txn;
use crate::args::{GetArgs, SetArgs, Setting};
use crate::control::{self, Request, Response};
use crate::endpoint::Endpoint;
use crate::error::{CliError, Code, Result};
use crate::mounts;
use crate::output::printable_path;
use crate::tree::{Found, walk};

/// Longest value of a property (bytes).
const VALUE_LEN_MAX: usize = 64;

pub(crate) fn get(args: &GetArgs) -> Result<ExitCode> {
    if args.inline {
        println!("inline={}", inline(args.store.as_deref(), None)?);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(name) = &args.keyspace {
        let value = ask(args.store.as_deref(), name, None)?;
        println!("compression={value}");
        return Ok(ExitCode::SUCCESS);
    }
    for path in &args.paths {
        for (property, attribute) in [("compression", COMPRESSION_ATTRIBUTE), ("tier", TIER_ATTRIBUTE)] {
            let mut value = [0; VALUE_LEN_MAX];
            let len = getxattr(path, attribute, &mut value[..])
                .map_err(|error| explain("read a property of", path, error))?;
            let value = String::from_utf8_lossy(&value[..len]).into_owned();
            if args.paths.len() == 1 {
                println!("{property}={value}");
            } else {
                println!("{}: {property}={value}", printable_path(path));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn set(args: &SetArgs) -> Result<ExitCode> {
    if let Some(bytes) = args.inline {
        inline(args.store.as_deref(), Some(bytes))?;
        return Ok(ExitCode::SUCCESS);
    }
    let (setting, paths) = args.parse().map_err(|message| CliError::new(Code::Usage, message))?;
    if let (Some(name), Setting::Compression(compression)) = (&args.keyspace, setting) {
        ask(args.store.as_deref(), name, Some(compression))?;
    }
    let (attribute, value) = match setting {
        Setting::Compression(compression) => (COMPRESSION_ATTRIBUTE, compression.to_string()),
        Setting::Tier(tier) => {
            (TIER_ATTRIBUTE, tier.map_or_else(|| "auto".to_owned(), |tier| tier.to_string()))
        }
    };
    if args.recursive {
        return set_below(args, &paths, attribute, &value);
    }
    for path in &paths {
        setxattr(path, attribute, value.as_bytes(), XattrFlags::empty())
            .map_err(|error| explain("change a property of", path, error))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Sets it on all that is below, in the view that the paths are in, or else in a transaction of its own, in
/// whose view the command runs once more.
fn set_below(args: &SetArgs, paths: &[PathBuf], attribute: &[u8], value: &str) -> Result<ExitCode> {
    let first = paths.first().map_or(Path::new("."), PathBuf::as_path);
    let mounted = |path: &Path| {
        let found = mounts::containing(path)?;
        found.ok_or_else(|| explain("change a property of", path, Errno::OPNOTSUPP))
    };
    let on = mounted(first)?;
    for path in paths.iter().skip(1) {
        if mounted(path)?.device != on.device {
            let message = format!(
                "{} and {} are not on one mount: one transaction can't change both; name one of them",
                printable_path(first),
                printable_path(path)
            );
            return Err(CliError::new(Code::Usage, message));
        }
    }
    if !on.is_view {
        let command = ["/proc/self/exe", "set", "-R", "--"].map(OsString::from);
        let command = command.into_iter().chain(args.words.iter().cloned()).collect();
        return txn::run_own(&on.dir, command);
    }
    let (mut changed, mut found) = (0_u64, 0_u64);
    let mut set = |entry: &Found<'_>| {
        if !entry.metadata.is_dir() && !entry.metadata.is_file() {
            return Ok(true);
        }
        found += 1;
        let mut now = [0; VALUE_LEN_MAX];
        let len = lgetxattr(entry.at, attribute, &mut now[..])
            .map_err(|error| explain("read a property of", entry.path, error))?;
        if now[..len] != *value.as_bytes() {
            lsetxattr(entry.at, attribute, value.as_bytes(), XattrFlags::empty())
                .map_err(|error| explain("change a property of", entry.path, error))?;
            changed += 1;
        }
        Ok(true)
    };
    paths.iter().try_for_each(|path| walk(path, &mut set))?;
    println!("changed {changed} of {found} files and directories");
    Ok(ExitCode::SUCCESS)
}

/// Sets the compression of a keyspace, or asks for it.
fn ask(store: Option<&Path>, keyspace: &str, compression: Option<Compression>) -> Result<String> {
    let request = Request::Compression {
        keyspace: keyspace.to_owned(),
        compression: compression.map(|compression| compression.to_string()),
    };
    let answer = Endpoint::with(store, compression.is_none(), |endpoint| endpoint.call(&request))?;
    let Response::Compression(value) = answer else { return Err(control::confused()) };
    Ok(value)
}

/// The inline threshold (bytes), and the one from now on.
fn inline(store: Option<&Path>, change: Option<u32>) -> Result<u32> {
    let request = Request::Inline { change };
    let answer = Endpoint::with(store, change.is_none(), |endpoint| endpoint.call(&request))?;
    let Response::Inline(bytes) = answer else { return Err(control::confused()) };
    Ok(bytes)
}

fn explain(what: &str, path: &Path, error: Errno) -> CliError {
    if error == Errno::OPNOTSUPP || error == Errno::NODATA {
        let message = format!("{} has no such property: is it a file or directory on kvfs?", path.display());
        return CliError::new(Code::NotMounted, message);
    }
    CliError::io(what, path, &error.into())
}
