//! Paths for people, in a tree that may not be one.
//!
//! Thread safety: pure functions.

use crate::schema::ROOT_INODE;

/// Longest path that is told in full (bytes, at least): system calls take half of it.
const PATH_LEN_MAX: usize = 8 << 10;

/// Path of a directory; empty for the root. `above` knows in which directory it is, and its name there. Where
/// it does not, or when there are `names_max` names already (a circle) or more than a reader takes in, the
/// path begins with a number. O(names), and bounded.
pub(crate) fn path_of<'n>(
    inode: u64,
    names_max: usize,
    above: impl Fn(u64) -> Option<(u64, &'n [u8])>,
) -> String {
    let (mut names, mut bytes) = (Vec::new(), 0);
    let mut at = inode;
    while at != ROOT_INODE {
        match above(at) {
            Some((parent, name)) if names.len() < names_max && bytes < PATH_LEN_MAX => {
                bytes += name.len() + 1;
                names.push(name.escape_ascii().to_string());
                at = parent;
            }
            _ => {
                names.push(format!("(inode {at})"));
                break;
            }
        }
    }
    names.push(String::new());
    names.reverse();
    names.join("/")
}

/// The path as it stands alone.
pub(crate) fn or_root(path: String) -> String {
    if path.is_empty() { "/".to_owned() } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_from_the_root_or_begins_with_a_number() {
        let above = |inode: u64| match inode {
            20 => Some((ROOT_INODE, &b"a"[..])),
            21 => Some((20, &b"b\n"[..])),
            30 => Some((31, &b"x"[..])),
            31 => Some((30, &b"y"[..])),
            _ => None,
        };
        assert_eq!(path_of(21, 4, above), "/a/b\\n");
        assert_eq!(path_of(40, 4, above), "/(inode 40)");
        assert_eq!(path_of(30, 2, above), "/(inode 30)/y/x", "a circle");
        assert_eq!(or_root(path_of(ROOT_INODE, 4, above)), "/");
        let deep = path_of(1_000_000, usize::MAX, |inode| Some((inode - 1, &b"name"[..])));
        assert!(deep.len() < 9 << 10 && deep.starts_with("/(inode 9"), "{}", deep.len());
    }
}
