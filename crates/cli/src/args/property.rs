//! Arguments of `kvfs get` and `kvfs set`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use kvfs_store::Compression;

const EXAMPLES: &str = "\
Examples:
  kvfs set ~/mnt/src compression=zstd:3    all that is made in it from now on
  kvfs set ~/mnt/video compression=none
  kvfs set --keyspace tags compression=lz4
  kvfs get ~/mnt/src                       compression=zstd:3
  kvfs get --keyspace tags

Compressions are none, lz4, zstd (zstd:3) and zstd:1 to zstd:19. What is there
already stays as it is until it is written again. A file keeps its setting
wherever it is moved. Data that does not shrink is stored as it is.";

/// A property and its value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) compression: Compression,
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GetArgs {
    /// Files or directories on a mount
    #[arg(required_unless_present = "keyspace")]
    pub(crate) paths: Vec<PathBuf>,
    /// A keyspace instead
    #[arg(long, value_name = "NAME", conflicts_with = "paths")]
    pub(crate) keyspace: Option<String>,
    /// Store, or a directory on its mount (default: the mount of the current directory)
    #[arg(short = 's', long = "store", value_name = "STORE|DIR", requires = "keyspace")]
    pub(crate) store: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SetArgs {
    /// Files or directories on a mount, then PROPERTY=VALUE
    #[arg(required = true, value_name = "PATH|PROPERTY=VALUE")]
    pub(crate) words: Vec<OsString>,
    /// A keyspace instead
    #[arg(long, value_name = "NAME")]
    pub(crate) keyspace: Option<String>,
    /// Store, or a directory on its mount (default: the mount of the current directory)
    #[arg(short = 's', long = "store", value_name = "STORE|DIR", requires = "keyspace")]
    pub(crate) store: Option<PathBuf>,
}

impl SetArgs {
    /// What to set, and on which paths.
    ///
    /// # Errors
    /// Words that make no sense, for people.
    pub(crate) fn parse(&self) -> Result<(Setting, Vec<PathBuf>), String> {
        let (last, paths) = self.words.split_last().ok_or("nothing to set")?;
        let value = last.to_str().and_then(|last| last.strip_prefix("compression="));
        let value = value
            .ok_or_else(|| format!("{:?} is no property; try compression=lz4", last.to_string_lossy()))?;
        let compression = value.parse().map_err(|error| format!("{error}"))?;
        match (paths, &self.keyspace) {
            ([], None) => Err("name a file or directory on a mount, or a --keyspace".to_owned()),
            ([_, ..], Some(_)) => Err("a --keyspace is not in a directory".to_owned()),
            _ => Ok((Setting { compression }, paths.iter().map(PathBuf::from).collect())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn set(words: &[&[u8]], keyspace: Option<&str>) -> Result<(Setting, Vec<PathBuf>), String> {
        let words = words.iter().map(|word| OsString::from_vec(word.to_vec())).collect();
        SetArgs { words, keyspace: keyspace.map(str::to_owned), store: None }.parse()
    }

    #[test]
    fn a_property_is_set_on_paths_that_are_no_text() {
        let (Setting { compression }, paths) =
            set(&[b"a\xff", b"compression=lz4"], None).expect("makes sense");
        assert_eq!(
            (compression, paths),
            (Compression::Lz4, vec![OsString::from_vec(b"a\xff".to_vec()).into()])
        );
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        assert!(set(&[b"dir", b"\xff"], None).is_err_and(|message| message.contains("no property")));
        assert!(set(&[b"compression=lz4"], None).is_err_and(|message| message.contains("--keyspace")));
        assert!(set(&[b"dir", b"compression=lz4"], Some("tags")).is_err());
        assert!(set(&[b"compression=lz4"], Some("tags")).is_ok());
    }
}
