//! The source tree that is unpacked: a plain tarball of some real project.
//!
//! Thread safety: free functions. Invariant: a file in the cache under its final name is complete.

use crate::host;
use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The Debian package that the default tree comes from if the cache holds none.
const PACKAGE: &str = "linux-source-6.1";
/// The directories of it that a quick run unpacks.
const QUICK_PARTS: &[&str] = &["fs"];

/// The tarball given by the user, or the default one, decompressed: xz is not what we measure.
pub fn tarball(given: Option<&Path>, is_quick: bool) -> Result<PathBuf> {
    let cache = cache_dir()?;
    fs::create_dir_all(&cache)?;
    match given {
        Some(path) => {
            ensure!(path.is_file(), "there is no tarball at {}", path.display());
            let plain = cache.join(path.file_stem().context("the tarball has no name")?);
            if path.extension().is_some_and(|extension| extension == "xz") {
                unxz(path, &plain)
            } else {
                Ok(path.to_owned())
            }
        }
        None if is_quick => part_tarball(QUICK_PARTS),
        None => default_tarball(&cache),
    }
}

fn cache_dir() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(base) => PathBuf::from(base),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(base.join("kvfs-realwork"))
}

/// Any Linux source that the cache holds, else Debian's.
fn default_tarball(cache: &Path) -> Result<PathBuf> {
    if let Some(plain) = find(cache, "linux-source-", ".tar")? {
        return Ok(plain);
    }
    if let Some(cached) = find(cache, "linux-source-", ".tar.xz")? {
        return unxz(&cached, &cached.with_extension(""));
    }
    let scratch = Scratch::new(cache)?;
    eprintln!("fetching the Debian package {PACKAGE}, once");
    let fetched = Command::new("apt-get").args(["download", PACKAGE]).current_dir(&scratch.0).status()?;
    ensure!(fetched.success(), "apt-get cannot download {PACKAGE}; give a tarball by --tar");
    let package = find(&scratch.0, PACKAGE, ".deb")?.context("apt-get downloaded nothing")?;
    host::run("dpkg-deb", &[Path::new("-x"), &package, &scratch.0])?;
    unxz(&scratch.0.join(format!("usr/src/{PACKAGE}.tar.xz")), &cache.join(format!("{PACKAGE}.tar")))
}

/// These directories of the default tree, packed again.
pub fn part_tarball(parts: &[&str]) -> Result<PathBuf> {
    let cache = cache_dir()?;
    fs::create_dir_all(&cache)?;
    let prefix = format!("part-{}-", parts.join("-"));
    if let Some(part) = find(&cache, &prefix, ".tar")? {
        return Ok(part);
    }
    let whole = default_tarball(&cache)?;
    let name = whole.file_stem().context("the tarball has no name")?.to_string_lossy();
    let dirs: Vec<OsString> = parts.iter().map(|part| format!("{name}/{part}").into()).collect();
    let scratch = Scratch::new(&cache)?;
    let at: [OsString; 2] = ["-C".into(), scratch.0.clone().into()];
    host::run("tar", &[&["-xf".into(), whole.clone().into()], at.as_slice(), &dirs].concat())?;
    let packed = scratch.0.join("packed.tar");
    host::run("tar", &[&["-cf".into(), packed.clone().into()], at.as_slice(), &dirs].concat())?;
    let part = cache.join(format!("{prefix}{name}.tar"));
    fs::rename(&packed, &part)?;
    Ok(part)
}

fn unxz(compressed: &Path, plain: &Path) -> Result<PathBuf> {
    if plain.is_file() {
        return Ok(plain.to_owned());
    }
    eprintln!("decompressing {}, once", compressed.display());
    let partial = plain.with_extension(format!("partial-{}", std::process::id()));
    let output = File::create(&partial)?;
    let status = Command::new("xz")
        .args(["-dc", "--threads=0", "--"])
        .arg(compressed)
        .stdout(Stdio::from(output))
        .status()?;
    if !status.success() {
        fs::remove_file(&partial)?;
    }
    ensure!(status.success(), "xz cannot decompress {}", compressed.display());
    fs::rename(&partial, plain)?;
    Ok(plain.to_owned())
}

/// The first file of `dir`, by name, that begins and ends so.
fn find(dir: &Path, prefix: &str, suffix: &str) -> Result<Option<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix) && name.ends_with(suffix)) {
            found.push(entry.path());
        }
    }
    Ok(found.into_iter().min())
}

/// A directory that goes away.
struct Scratch(PathBuf);

impl Scratch {
    fn new(parent: &Path) -> Result<Self> {
        let path = parent.join(format!("scratch-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The cache is scratch space; leftovers do no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}
