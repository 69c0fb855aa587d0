//! Stores in object storage that are named by their URL alone: what the directory of a store has lies at a
//! place by convention.
//!
//! ```text
//! /var/lib/kvfs/NAME                   of root
//! $XDG_STATE_HOME/kvfs/NAME            of another user; ~/.local/state/kvfs/NAME
//! $KVFS_STATE_DIR/NAME                 of both, where that is set
//! ```
//!
//! Purpose: a machine needs nothing but a URL to mount a store. The directory is as any other one of a store:
//! it names the URL, and has the mark, log, sockets and the local cache.
//!
//! Thread safety: functions. Invariants: a directory is made only for a URL at which there is a store; NAME
//! is made of the URL and the endpoint, so each has one of its own.

use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use kvfs_service::ErrorKind;

use crate::engines::{self, EngineKind, Objects};
use crate::error::{Error, Result};
use crate::make::NewStore;
use crate::store_dir::StoreDir;

/// In the environment: where they are.
const STATE_DIR: &str = "KVFS_STATE_DIR";

/// Of root.
const OF_ROOT: &str = "/var/lib/kvfs";

/// Where an S3 server of one's own is, as the client of object storage has it.
const ENDPOINTS: [&str; 2] = ["AWS_ENDPOINT_URL", "AWS_ENDPOINT"];

/// Longest name of a directory (bytes), with what it is called before it is whole.
const NAME_LEN_MAX: usize = 255 - COMING.len() - 1;
const COMING: &str = "new";

/// Whether it is a URL, and no path.
pub fn is_url(store: &Path) -> bool {
    store.to_str().is_some_and(|text| text.contains("://"))
}

/// The directory of the store at this URL, which is made if there is none yet.
///
/// # Errors
/// There is no store at the URL, or it can't be reached; the directory can't be made; the build has no object
/// storage.
pub fn directory_of_url(store: &Path) -> Result<PathBuf> {
    let url = store.to_str().unwrap_or_default();
    engines::expect_remote(url)?;
    let endpoint = endpoint_of(url);
    let objects = Objects { url, endpoint: endpoint.as_deref() };
    let (path, coming) = paths_of(&objects)?;
    if StoreDir::is_occupied(&path) {
        return Ok(path);
    }
    engines::expect_store(&objects)?;
    // Whole, or not there. What makes new stores removes the objects where it fails: none of that here.
    let failed = |error: &io::Error| Error::io("make", &coming, error);
    match fs::remove_dir_all(&coming) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&error)),
        _ => {}
    }
    let new = NewStore { engine: EngineKind::SlateDb, objects: Some(objects), ..NewStore::of_size(None) };
    engines::adopt(&StoreDir::prepare(&coming)?, &new)?;
    match fs::rename(&coming, &path) {
        // Another process was faster.
        Err(_) if StoreDir::is_occupied(&path) => {}
        renamed => renamed.map_err(|error| failed(&error))?,
    }
    Ok(path)
}

/// The directory for a new store at this URL, and the endpoint that it is to have; the directory above it is
/// made.
///
/// # Errors
/// It can't be made; the URL makes no sense; the build has no object storage.
pub fn new_directory_of_url(store: &Path, endpoint: Option<&str>) -> Result<(PathBuf, Option<String>)> {
    let url = store.to_str().unwrap_or_default();
    engines::expect_remote(url)?;
    let endpoint = endpoint.map(str::to_owned).or_else(|| endpoint_of(url));
    let (path, _) = paths_of(&Objects { url, endpoint: endpoint.as_deref() })?;
    Ok((path, endpoint))
}

/// Where the S3 server is that the environment names.
fn endpoint_of(url: &str) -> Option<String> {
    let named =
        || ENDPOINTS.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    url.starts_with("s3").then(named).flatten()
}

/// The directory of a place, and what it is before it is whole; the one above them is made.
fn paths_of(objects: &Objects<'_>) -> Result<(PathBuf, PathBuf)> {
    let name = directory_name(&engines::name_of(objects)?)?;
    let base = base(rustix::process::geteuid().is_root(), &|name| std::env::var_os(name))?;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&base);
    made.map_err(|error| Error::io("make", &base, &error))?;
    let coming = base.join(format!("{name}.{COMING}"));
    Ok((base.join(name), coming))
}

/// Where the directories are.
fn base(is_root: bool, env: &dyn Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    let absolute = |name: &str| env(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(given) = absolute(STATE_DIR) {
        return Ok(given);
    }
    if is_root {
        return Ok(OF_ROOT.into());
    }
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let message = "no place for the log and the sockets of the store: set HOME, or give the store a directory (`kvfs mkfs --help`)";
    state.map(|state| state.join("kvfs")).ok_or_else(|| Error::new(ErrorKind::Usage, message))
}

/// `place` as the name of one directory.
fn directory_name(place: &str) -> Result<String> {
    let mut name = String::new();
    for byte in place.trim_end_matches('/').bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => name.push(char::from(byte)),
            // Writing to a string does not fail.
            byte => _ = write!(name, "%{byte:02x}"),
        }
    }
    if name.len() > NAME_LEN_MAX {
        let message =
            format!("{place} is too long for the name of a directory; give the store one of its own");
        return Err(Error::new(ErrorKind::Usage, message));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_urls_are_at_a_place_by_convention_and_apart() {
        let of = |vars: &[(&str, &str)], is_root| {
            let vars: Vec<_> =
                vars.iter().map(|(name, value)| ((*name).to_owned(), OsString::from(value))).collect();
            let env =
                |name: &str| vars.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
            base(is_root, &env)
        };
        let path = |path: &str| PathBuf::from(path);
        assert_eq!(of(&[], true).unwrap(), path("/var/lib/kvfs"));
        assert_eq!(of(&[("HOME", "/home/me")], false).unwrap(), path("/home/me/.local/state/kvfs"));
        assert_eq!(of(&[("HOME", "/home/me"), ("XDG_STATE_HOME", "/s")], false).unwrap(), path("/s/kvfs"));
        assert_eq!(
            of(&[("HOME", "/h"), ("XDG_STATE_HOME", "s")], false).unwrap(),
            path("/h/.local/state/kvfs")
        );
        assert_eq!(of(&[("KVFS_STATE_DIR", "/s"), ("HOME", "/h")], true).unwrap(), path("/s"));
        assert!(of(&[], false).is_err());
        assert_eq!(directory_name("s3://bucket/a/b/").unwrap(), "s3%3a%2f%2fbucket%2fa%2fb");
        assert_ne!(directory_name("s3://b/a%2f").unwrap(), directory_name("s3://b/a/").unwrap());
        assert!(directory_name(&"x".repeat(256)).is_err());
        assert!(is_url(Path::new("s3://b/p")) && !is_url(Path::new("/a/b")) && !is_url(Path::new("a:/b")));
    }
}
