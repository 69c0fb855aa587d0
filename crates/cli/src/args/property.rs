//! Arguments of `kvfs get` and `kvfs set`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use kvfs_fs::INLINE_LEN_LIMIT;
use kvfs_store::{Compression, Tier};

use crate::units::parse_size;

const EXAMPLES: &str = "\
Examples:
  kvfs set ~/mnt/src compression=zstd:3    all that is made in it from now on
  kvfs set ~/mnt/video compression=none
  kvfs set --keyspace tags compression=lz4
  kvfs set ~/mnt/video tier=slow           on a slow device, if there is one
  kvfs set ~/mnt/db/hot.db tier=fast
  kvfs set -R ~/mnt/old tier=slow          and all that is in it already
  kvfs get ~/mnt/src                       compression=zstd:3 and tier=auto
  kvfs get --keyspace tags
  kvfs set --inline 16K -s ~/mnt           in the rows of small files
  kvfs get --inline -s ~/mnt

Compressions are none, lz4, zstd (zstd:3) and zstd:1 to zstd:19. What is there
already stays as it is until it is written again. Data that does not shrink is
stored as it is.

A tier is fast, slow or auto, which leaves it to the store, and matters in a
store of several devices. It is a wish: where the tier has no room, or no
device, data goes to the other one. What is there already moves in the
background.

--inline is a threshold of the whole store: content of at most so much lies in
the row of its file, so that reading many small files reads no blocks. It holds
from now on; what is there stays where it is until it is written again.

What is made in a directory takes its settings over, and keeps them wherever it
is moved.";

/// A property and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setting {
    Compression(Compression),
    /// `None`: the store decides.
    Tier(Option<Tier>),
}

impl Setting {
    /// # Errors
    /// Words that make no sense, for people.
    fn parse(words: &str) -> Result<Self, String> {
        match words.split_once('=') {
            Some(("compression", value)) => {
                value.parse().map(Self::Compression).map_err(|error| format!("{error}"))
            }
            Some(("tier", "auto")) => Ok(Self::Tier(None)),
            Some(("tier", value)) => match value.parse() {
                Ok(tier) => Ok(Self::Tier(Some(tier))),
                Err(_) => Err(format!("{value:?} is no tier; it is fast, slow or auto")),
            },
            _ => Err(format!("{words:?} is no property; try compression=lz4 or tier=slow, behind all paths")),
        }
    }
}

fn parse_inline(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text)?;
    let bytes = u32::try_from(bytes).ok().filter(|&bytes| bytes <= INLINE_LEN_LIMIT);
    bytes.ok_or_else(|| format!("at most {} KiB", INLINE_LEN_LIMIT >> 10))
}

#[derive(Debug, Args)]
#[command(
    after_help = EXAMPLES,
    override_usage = "kvfs get <PATHS>...\n       kvfs get <--keyspace <NAME>|--inline> [-s <STORE|DIR>]"
)]
pub(crate) struct GetArgs {
    /// Files or directories on a mount
    #[arg(required_unless_present_any = ["keyspace", "inline"])]
    pub(crate) paths: Vec<PathBuf>,
    /// A keyspace instead
    #[arg(long, value_name = "NAME", conflicts_with = "paths")]
    pub(crate) keyspace: Option<String>,
    /// The inline threshold of the store instead (bytes)
    #[arg(long, conflicts_with_all = ["paths", "keyspace"])]
    pub(crate) inline: bool,
    /// Store, or a directory on its mount (default: the mount of the current directory)
    #[arg(short = 's', long = "store", value_name = "STORE|DIR", conflicts_with = "paths")]
    pub(crate) store: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SetArgs {
    /// Files or directories on a mount, then PROPERTY=VALUE
    #[arg(required_unless_present = "inline", value_name = "PATH|PROPERTY=VALUE")]
    pub(crate) words: Vec<OsString>,
    /// Also all files and directories below, in one transaction
    #[arg(short = 'R', long, conflicts_with = "keyspace")]
    pub(crate) recursive: bool,
    /// A keyspace instead
    #[arg(long, value_name = "NAME")]
    pub(crate) keyspace: Option<String>,
    /// Keep content of files of at most so many bytes in their rows from now on (up to 64K; 0: none)
    #[arg(long, value_name = "SIZE", value_parser = parse_inline, conflicts_with_all = ["words", "keyspace", "recursive"])]
    pub(crate) inline: Option<u32>,
    /// Store, or a directory on its mount (default: the mount of the current directory)
    #[arg(short = 's', long = "store", value_name = "STORE|DIR")]
    pub(crate) store: Option<PathBuf>,
}

impl SetArgs {
    /// What to set, and on which paths.
    ///
    /// # Errors
    /// Words that make no sense, for people.
    pub(crate) fn parse(&self) -> Result<(Setting, Vec<PathBuf>), String> {
        let (last, paths) = self.words.split_last().ok_or("nothing to set")?;
        let setting = Setting::parse(&last.to_string_lossy())?;
        match (paths, &self.keyspace) {
            (_, Some(_)) if matches!(setting, Setting::Tier(_)) => {
                Err("a --keyspace has no tier: keys are on fast devices".to_owned())
            }
            (_, None) if self.store.is_some() => {
                Err("--store is for a --keyspace and --inline; name the path itself".to_owned())
            }
            ([], None) => Err("name a file or directory on a mount, or a --keyspace".to_owned()),
            ([_, ..], Some(_)) => Err("a --keyspace is not in a directory".to_owned()),
            _ => Ok((setting, paths.iter().map(PathBuf::from).collect())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn set(words: &[&[u8]], keyspace: Option<&str>) -> Result<(Setting, Vec<PathBuf>), String> {
        let words = words.iter().map(|word| OsString::from_vec(word.to_vec())).collect();
        let keyspace = keyspace.map(str::to_owned);
        SetArgs { words, recursive: false, keyspace, inline: None, store: None }.parse()
    }

    #[test]
    fn a_property_is_set_on_paths_that_are_no_text() {
        let paths: Vec<PathBuf> = vec![OsString::from_vec(b"a\xff".to_vec()).into()];
        let found = set(&[b"a\xff", b"compression=lz4"], None);
        assert_eq!(found, Ok((Setting::Compression(Compression::Lz4), paths.clone())));
        for (words, tier) in
            [("tier=fast", Some(Tier::Fast)), ("tier=slow", Some(Tier::Slow)), ("tier=auto", None)]
        {
            assert_eq!(set(&[b"a\xff", words.as_bytes()], None), Ok((Setting::Tier(tier), paths.clone())));
        }
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        assert!(set(&[b"dir", b"\xff"], None).is_err_and(|message| message.contains("no property")));
        assert!(set(&[b"compression=lz4"], None).is_err_and(|message| message.contains("--keyspace")));
        assert!(set(&[b"dir", b"compression=lz4"], Some("tags")).is_err());
        assert!(set(&[b"compression=lz4"], Some("tags")).is_ok());
        assert!(
            set(&[b"dir", b"tier=hot"], None).is_err_and(|message| message.contains("fast, slow or auto"))
        );
        assert!(set(&[b"tier=fast"], Some("tags")).is_err_and(|message| message.contains("no tier")));
    }
}
