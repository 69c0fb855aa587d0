//! Places on the command line: paths, and keys with a prefix.
//!
//! Thread safety: plain functions.

use std::path::Path;

use crate::control::{ChangeLine, PlaceLine};
use crate::error::{CliError, Code, Result};
use crate::mounts;

/// Keyspace and prefix of `kv:KEYSPACE/PREFIX`; `None`: it is a path.
pub(crate) fn key_prefix(target: &str) -> Result<Option<(&str, &str)>> {
    let Some(keys) = target.strip_prefix("kv:") else { return Ok(None) };
    let (keyspace, prefix) = keys.split_once('/').unwrap_or((keys, ""));
    if keyspace.is_empty() {
        return Err(CliError::new(Code::Usage, format!("{target}: kv:KEYSPACE or kv:KEYSPACE/PREFIX")));
    }
    Ok(Some((keyspace, prefix)))
}

/// The places that the words name: `kv:KEYSPACE/PREFIX`, or a path from the root of the store, which may
/// begin with the directory that the store is mounted on.
pub(crate) fn parse(words: &[String]) -> Result<Vec<PlaceLine>> {
    if words.is_empty() {
        return Ok(Vec::new());
    }
    let mounts = mounts::list().unwrap_or_default();
    let dirs: Vec<&Path> =
        mounts.iter().map(|mount| &*mount.dir).filter(|dir| *dir != Path::new("/")).collect();
    words.iter().map(|word| one(word, &dirs)).collect()
}

fn one(word: &str, mounts: &[&Path]) -> Result<PlaceLine> {
    if let Some((keyspace, prefix)) = key_prefix(word)? {
        return Ok(PlaceLine::Keys(format!("{keyspace}/{prefix}").into()));
    }
    if word.split('/').any(|part| part == "..") {
        return Err(CliError::new(Code::Usage, format!("{word}: without \"..\", please")));
    }
    let below = mounts.iter().find_map(|dir| Path::new(word).strip_prefix(dir).ok());
    let below = below.map_or_else(|| word.to_owned(), |below| below.display().to_string());
    let names = below.split('/').filter(|name| !name.is_empty() && *name != ".");
    Ok(PlaceLine::Path(names.flat_map(|name| ["/", name]).collect::<String>().into()))
}

/// Which lines of a comparison are meant.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits<'a> {
    /// Only these; none: all.
    pub(crate) only: &'a [PlaceLine],
    /// Not these.
    pub(crate) skip: &'a [PlaceLine],
}

impl Limits<'_> {
    /// Whether a change is meant: by where it is, or where it was.
    pub(crate) fn contain(&self, line: &ChangeLine) -> bool {
        let is_in = |places: &[PlaceLine]| {
            let keyspace = line.keyspace.as_deref();
            let all = [Some(&line.place), line.from.as_ref()];
            places.iter().any(|place| all.into_iter().flatten().any(|path| covers(place, path, keyspace)))
        };
        (self.only.is_empty() || is_in(self.only)) && !is_in(self.skip)
    }
}

/// As the daemon has it for an undo.
fn covers(place: &PlaceLine, path: &[u8], keyspace: Option<&str>) -> bool {
    match place {
        PlaceLine::All => true,
        PlaceLine::Path(top) => {
            let rest = path.strip_prefix(&top[..]).filter(|_| keyspace.is_none());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        }
        PlaceLine::Keys(prefix) => {
            keyspace.is_some_and(|name| prefix.len() >= name.len()) && path.starts_with(prefix)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_is_a_prefix_of_keys_or_a_path_from_the_root_of_the_store() {
        let mounts = [Path::new("/srv/mnt")];
        let path = |word: &str| match one(word, &mounts).expect("is valid") {
            PlaceLine::Path(path) => String::from_utf8(path).expect("is text"),
            other => format!("{other:?}"),
        };
        assert_eq!((&*path("/etc//a/"), &*path("etc/./a"), &*path("/")), ("/etc/a", "/etc/a", ""));
        assert_eq!(
            (&*path("/srv/mnt/etc/a"), &*path("/srv/mnt"), &*path("/srv/mnt2")),
            ("/etc/a", "", "/srv/mnt2")
        );
        assert_eq!(one("kv:tags/a/b", &mounts).expect("is valid"), PlaceLine::Keys(b"tags/a/b".to_vec()));
        assert_eq!(one("kv:tags", &mounts).expect("is valid"), PlaceLine::Keys(b"tags/".to_vec()));
        assert!(one("kv:/x", &mounts).is_err() && one("a/../b", &mounts).is_err());
    }

    #[test]
    fn limits_take_a_place_and_what_is_below_it() {
        let only = [PlaceLine::Path(b"/a".to_vec()), PlaceLine::Keys(b"tags/".to_vec())];
        let skip = [PlaceLine::Path(b"/a/not".to_vec())];
        let limits = Limits { only: &only, skip: &skip };
        let line = |kind: &str, place: &str, from: Option<&str>| ChangeLine {
            sign: '~',
            kind: kind.to_owned(),
            place: place.into(),
            keyspace: place.split_once('/').filter(|_| kind == "key").map(|(name, _)| name.to_owned()),
            from: from.map(Into::into),
            bytes: None,
            before: None,
            after: None,
        };
        assert!(
            limits.contain(&line("file", "/a/b", None)) && limits.contain(&line("file", "/b", Some("/a")))
        );
        assert!(
            limits.contain(&line("key", "tags/a", None)) && !limits.contain(&line("key", "other/a", None))
        );
        assert!(
            !limits.contain(&line("file", "/ab", None)) && !limits.contain(&line("file", "/a/not/x", None))
        );
        let other = ChangeLine { keyspace: Some("tags/own".to_owned()), ..line("key", "tags/own/a", None) };
        assert!(!limits.contain(&other), "it is of another keyspace");
    }
}
