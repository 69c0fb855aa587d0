//! Where a path argument leads: below the prefix, through a descriptor, or elsewhere.
//!
//! Thread safety: pure, but for the hints in `state.rs`. Invariant: symbolic links are not followed; a path
//! elsewhere whose link leads below the prefix is elsewhere.

use crate::client;
use crate::state::{self, CWD};
use crate::sys;
use std::sync::atomic::Ordering::Relaxed;

/// A path argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place<'a> {
    /// Below the prefix: the rest, without slashes in front; empty for the root.
    Below(&'a [u8]),
    /// Relative to a directory that may belong to the store (`AT_FDCWD`: the working directory). Empty: the
    /// directory.
    At(i32, &'a [u8]),
    /// It leaves through `..` of the root: the rest, from the directory that holds the prefix.
    Above(&'a [u8]),
    /// A name of a descriptor of this process that may belong to the store: `/proc/self/fd/N`, `/dev/stdin`.
    /// A path through one is relative to it.
    Descriptor(i32),
    /// Elsewhere: the call takes the argument as it is.
    Outside,
}

/// Sorts the path at `address`, relative to `directory`.
pub(crate) fn resolve<'a>(directory: i32, address: u64) -> Place<'a> {
    let path = if address < 4096 { Some(&b""[..]) } else { sys::string(address) };
    // Too long: the kernel says so.
    let Some(path) = path else { return Place::Outside };
    let mut buffer = [0; state::PREFIX_MAX];
    sort(directory, path, state::prefix(&mut buffer))
}

fn sort<'a>(directory: i32, path: &'a [u8], prefix: &[u8]) -> Place<'a> {
    if path.first() == Some(&b'/') {
        if let Some((fd, rest)) = descriptor(path) {
            return match rest {
                _ if !state::is_marked(fd) => Place::Outside,
                b"" => Place::Descriptor(fd),
                rest => Place::At(fd, rest),
            };
        }
        return below(path, prefix, prefix).unwrap_or(Place::Outside);
    }
    if directory != libc::AT_FDCWD {
        if !state::is_marked(directory) {
            return Place::Outside;
        }
        let last = prefix.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
        return below(path, &prefix[last..], prefix)
            .filter(|_| is_parent(directory, prefix))
            .unwrap_or(Place::At(directory, path));
    }
    if CWD.load(Relaxed) == state::CWD_OUTSIDE && !path.starts_with(b"..") {
        return Place::Outside;
    }
    let mut buffer = [0; sys::PATH_MAX];
    let here = sys::current_directory(&mut buffer);
    if client::owns(here) {
        return Place::At(libc::AT_FDCWD, path);
    }
    // One that is gone has no name.
    if here.starts_with(b"/") { from_here(here, path, prefix) } else { None }.unwrap_or(Place::Outside)
}

/// Where a path leads from a directory outside of the store. The kernel has resolved that one, so `..` in
/// front is what lies above it.
fn from_here<'a>(mut here: &[u8], mut path: &'a [u8], prefix: &[u8]) -> Option<Place<'a>> {
    while let Some(rest) = skip(path, false).strip_prefix(b"..")
        && rest.first().is_none_or(|b| *b == b'/')
    {
        here = &here[..here.iter().rposition(|b| *b == b'/').unwrap_or(0)];
        path = rest;
    }
    let here = here.strip_suffix(b"/").unwrap_or(here);
    let from = prefix.strip_prefix(here).filter(|from| from.starts_with(b"/"))?;
    below(skip(path, false), from, prefix)
}

/// Where a path leads that begins with `from`: the prefix, or its last part if the path is relative to its
/// parent.
fn below<'a>(path: &'a [u8], from: &[u8], prefix: &[u8]) -> Option<Place<'a>> {
    let mut rest = path;
    for part in from.split(|b| *b == b'/').filter(|part| !part.is_empty()) {
        rest = skip(rest, path.first() == Some(&b'/')).strip_prefix(part)?;
        if rest.first().is_some_and(|b| *b != b'/') {
            return None;
        }
    }
    let rest = skip(rest, false);
    let (mut depth, mut end) = (0, 0);
    for part in rest.split(|b| *b == b'/') {
        end += part.len() + 1;
        match part {
            b"" | b"." => {}
            b".." => depth -= 1,
            _ => depth += 1,
        }
        if depth < 0 {
            let above = skip(rest.get(end..).unwrap_or(&[]), !prefix[1..].contains(&b'/'));
            let last = prefix.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
            return Some(below(above, &prefix[last..], prefix).unwrap_or(Place::Above(above)));
        }
    }
    Some(Place::Below(rest))
}

/// Skips `/` and `./` in front; at the root `../` too.
fn skip(mut path: &[u8], at_root: bool) -> &[u8] {
    loop {
        path = match path {
            [b'/', rest @ ..] | [b'.', b'/', rest @ ..] => rest,
            [b'.'] => &[],
            [b'.', b'.', b'/', rest @ ..] if at_root => rest,
            _ => return path,
        };
    }
}

/// Whether a descriptor is of the directory that holds the prefix.
pub(crate) fn is_parent(fd: i32, prefix: &[u8]) -> bool {
    let (mut found, mut parent) = (sys::Stat::new(), sys::Stat::new());
    let mut path = [0; state::PREFIX_MAX];
    let name = state::parent(prefix);
    path[..name.len()].copy_from_slice(name);
    found.of_descriptor(fd) && parent.of_path(path.as_ptr() as u64) && found.identity() == parent.identity()
}

/// The number in a name of a descriptor, and the path from there.
fn descriptor(path: &[u8]) -> Option<(i32, &[u8])> {
    let name = match path {
        b"/dev/stdin" => return Some((0, b"")),
        b"/dev/stdout" => return Some((1, b"")),
        b"/dev/stderr" => return Some((2, b"")),
        _ => path.strip_prefix(b"/proc/self/fd/").or_else(|| path.strip_prefix(b"/dev/fd/"))?,
    };
    let (number, rest) = name.split_at(name.iter().position(|b| *b == b'/').unwrap_or(name.len()));
    let number = std::str::from_utf8(number).ok()?.parse().ok()?;
    Some((number, skip(rest, false)))
}

#[cfg(test)]
mod tests;
