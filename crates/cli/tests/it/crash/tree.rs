//! What a directory tree should hold after each of a list of steps, and what is there.
//!
//! Invariant: each step is one request to the daemon that changes something, so it happens wholly or not.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use kvfs_device::Rng;

/// One change. Paths are relative to the root of the tree, without a leading slash.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Create {
        path: String,
    },
    /// `len` of the bytes that follow from `content`, without the first `skip`.
    Write {
        path: String,
        offset: u64,
        skip: usize,
        len: usize,
        content: u64,
    },
    Truncate {
        path: String,
        len: u64,
    },
    /// Zeros in place of what was there; the length stays.
    Punch {
        path: String,
        offset: u64,
        len: u64,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    Rename {
        from: String,
        to: String,
    },
    Exchange {
        one: String,
        other: String,
    },
    Link {
        from: String,
        to: String,
    },
    Symlink {
        path: String,
        target: String,
    },
    Unlink {
        path: String,
    },
    Mkdir {
        path: String,
    },
    Rmdir {
        path: String,
    },
}

/// The bytes of a write.
pub(super) fn bytes_of(content: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(content).fill(&mut bytes);
    bytes
}

/// Directory part of a path; the root is empty.
pub(super) fn parent_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

#[derive(Debug, Clone)]
pub(super) enum Name {
    /// Holds the number of steps after which it changed last, itself or its list of names.
    Directory {
        changed: usize,
    },
    File(u64),
    Symlink {
        target: String,
        changed: usize,
    },
}

#[derive(Debug, Clone, Default)]
pub(super) struct Inode {
    pub(super) content: Vec<u8>,
    pub(super) mode: u32,
    pub(super) nlink: u64,
    /// The number of steps after which it changed last.
    pub(super) changed: usize,
}

/// What should be there.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    pub(super) names: BTreeMap<String, Name>,
    pub(super) inodes: BTreeMap<u64, Inode>,
    steps: usize,
}

impl Tree {
    pub(super) fn new() -> Self {
        let names = BTreeMap::from([(String::new(), Name::Directory { changed: 0 })]);
        Self { names, inodes: BTreeMap::new(), steps: 0 }
    }

    /// Steps after which everything that an fsync of `path` promises has happened.
    pub(super) fn changed(&self, path: &str) -> usize {
        match &self.names[path] {
            Name::Directory { changed } | Name::Symlink { changed, .. } => *changed,
            Name::File(inode) => self.inodes[inode].changed,
        }
    }

    pub(super) fn inode(&self, path: &str) -> &Inode {
        let Name::File(inode) = self.names[path] else { panic!("{path} is no file") };
        &self.inodes[&inode]
    }

    fn inode_mut(&mut self, path: &str) -> &mut Inode {
        let Name::File(inode) = self.names[path] else { panic!("{path} is no file") };
        let inode = self.inodes.get_mut(&inode).unwrap();
        inode.changed = self.steps;
        inode
    }

    fn touch(&mut self, path: &str) {
        let steps = self.steps;
        match self.names.get_mut(path).unwrap() {
            Name::Directory { changed } | Name::Symlink { changed, .. } => *changed = steps,
            Name::File(inode) => self.inodes.get_mut(inode).unwrap().changed = steps,
        }
    }

    fn add(&mut self, path: &str, name: Name) {
        if let Name::File(inode) = name {
            self.inodes.entry(inode).or_default().nlink += 1;
        }
        assert!(self.names.insert(path.to_owned(), name).is_none(), "{path} exists");
        self.touch(path);
        self.touch(parent_of(path));
    }

    fn remove(&mut self, path: &str) -> Name {
        self.touch(path);
        self.touch(parent_of(path));
        let name = self.names.remove(path).unwrap();
        if let Name::File(inode) = name {
            let file = self.inodes.get_mut(&inode).unwrap();
            file.nlink -= 1;
            // A rename puts it back with the same number.
            if file.nlink == 0 {
                file.changed = self.steps;
            }
        }
        name
    }

    /// Everything below the directory `path`, taken out.
    fn take_below(&mut self, path: &str) -> Vec<(String, Name)> {
        let start = format!("{path}/");
        let below: Vec<String> = self
            .names
            .range(start.clone()..)
            .map(|(name, _)| name.clone())
            .take_while(|n| n.starts_with(&start))
            .collect();
        let split = |name: String| (name[path.len()..].to_owned(), self.names.remove(&name).unwrap());
        below.into_iter().map(split).collect()
    }

    fn put_below(&mut self, path: &str, below: Vec<(String, Name)>) {
        self.names.extend(below.into_iter().map(|(rest, name)| (format!("{path}{rest}"), name)));
    }

    pub(super) fn apply(&mut self, step: &Step) {
        self.steps += 1;
        match step {
            Step::Create { path } => {
                let inode = self.steps as u64;
                self.inodes.insert(inode, Inode { mode: 0o644, ..Inode::default() });
                self.add(path, Name::File(inode));
            }
            Step::Write { path, offset, skip, len, content } => {
                let (start, bytes) = (*offset as usize, bytes_of(*content, skip + len));
                let file = self.inode_mut(path);
                if file.content.len() < start + len {
                    file.content.resize(start + len, 0);
                }
                file.content[start..start + len].copy_from_slice(&bytes[*skip..]);
            }
            Step::Truncate { path, len } => self.inode_mut(path).content.resize(*len as usize, 0),
            Step::Punch { path, offset, len } => {
                let file = self.inode_mut(path);
                let end = file.content.len().min((offset + len) as usize);
                let start = end.min(*offset as usize);
                file.content[start..end].fill(0);
            }
            Step::Chmod { path, mode } => self.inode_mut(path).mode = *mode,
            Step::Rename { from, to } => {
                let below = self.take_below(from);
                let name = self.remove(from);
                if self.names.contains_key(to) {
                    self.remove(to);
                }
                self.add(to, name);
                self.put_below(to, below);
            }
            Step::Exchange { one, other } => {
                let (below_one, below_other) = (self.take_below(one), self.take_below(other));
                let (name_one, name_other) = (self.remove(one), self.remove(other));
                self.add(one, name_other);
                self.add(other, name_one);
                self.put_below(one, below_other);
                self.put_below(other, below_one);
            }
            Step::Link { from, to } => {
                let name = self.names[from].clone();
                self.add(to, name);
            }
            Step::Symlink { path, target } => {
                self.add(path, Name::Symlink { target: target.clone(), changed: self.steps });
            }
            Step::Mkdir { path } => self.add(path, Name::Directory { changed: self.steps }),
            Step::Unlink { path } | Step::Rmdir { path } => {
                self.remove(path);
            }
        }
    }
}

/// What is there.
enum Found {
    Directory,
    File { inode: u64, nlink: u64, mode: u32, content: Vec<u8> },
    Symlink(String),
}

/// A tree as the mount shows it.
pub(super) struct Survivor(BTreeMap<String, Found>);

impl Survivor {
    /// Reads everything below `root`.
    ///
    /// # Errors
    /// What can't be read of it.
    pub(super) fn read(root: &Path) -> Result<Self, String> {
        let mut found = BTreeMap::new();
        read_into(root, String::new(), &mut found)?;
        Ok(Self(found))
    }

    /// How this differs from what should be there; stops after `differences_max`.
    pub(super) fn compare(&self, tree: &Tree, differences_max: usize) -> Vec<String> {
        let mut differences = Vec::new();
        let mut inodes = BTreeMap::new();
        for path in tree.names.keys().chain(self.0.keys().filter(|path| !tree.names.contains_key(*path))) {
            if differences.len() >= differences_max {
                break;
            }
            let difference = match (tree.names.get(path), self.0.get(path)) {
                (Some(_), None) => Some("is missing".to_owned()),
                (None, Some(found)) => Some(format!("should not be there: {found:?}")),
                (Some(Name::Directory { .. }), Some(Found::Directory)) | (None, None) => None,
                (Some(Name::Symlink { target, .. }), Some(Found::Symlink(found))) => {
                    (target != found).then(|| format!("leads to {found} instead of {target}"))
                }
                (Some(Name::File(wanted)), Some(found @ Found::File { inode, .. })) => {
                    if inodes.entry(*wanted).or_insert(*inode) == inode {
                        tree.inodes[wanted].compare(found)
                    } else {
                        Some("is no longer a link to the same file".to_owned())
                    }
                }
                (Some(wanted), Some(found)) => Some(format!("is {found:?} instead of {wanted:?}")),
            };
            differences.extend(difference.map(|text| format!("\"{path}\" {text}")));
        }
        differences
    }
}

impl Inode {
    fn compare(&self, found: &Found) -> Option<String> {
        let Found::File { nlink, mode, content, .. } = found else { return Some("is no file".to_owned()) };
        if (*nlink, *mode) != (self.nlink, self.mode) {
            return Some(format!(
                "nlink and mode: {nlink} {mode:o} instead of {} {:o}",
                self.nlink, self.mode
            ));
        }
        if content.len() != self.content.len() {
            return Some(format!("has {} bytes instead of {}", content.len(), self.content.len()));
        }
        if content == &self.content {
            return None;
        }
        let differ = |&at: &usize| content[at] != self.content[at];
        let first = (0..content.len()).find(differ)?;
        let last = (0..content.len()).rev().find(differ)?;
        let zeros = if content[first..=last].iter().all(|&byte| byte == 0) { ", all zeros" } else { "" };
        Some(format!("({} bytes) differs in {first}..={last}{zeros}", content.len()))
    }
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory => f.write_str("a directory"),
            Self::File { content, nlink, .. } => {
                write!(f, "a file of {} bytes, {nlink} names", content.len())
            }
            Self::Symlink(target) => write!(f, "a symbolic link to {target}"),
        }
    }
}

fn read_into(path: &Path, name: String, found: &mut BTreeMap<String, Found>) -> Result<(), String> {
    let told = |error: std::io::Error| format!("reading {}: {error}", path.display());
    let metadata = fs::symlink_metadata(path).map_err(told)?;
    let kind = metadata.file_type();
    let here = if kind.is_dir() {
        for entry in fs::read_dir(path).map_err(told)? {
            let child = entry.map_err(told)?.file_name().into_string().unwrap();
            let full = if name.is_empty() { child.clone() } else { format!("{name}/{child}") };
            read_into(&path.join(&child), full, found)?;
        }
        Found::Directory
    } else if kind.is_symlink() {
        Found::Symlink(fs::read_link(path).map_err(told)?.into_os_string().into_string().unwrap())
    } else {
        let file = fs::File::open(path).map_err(told)?;
        let mut content = vec![0; metadata.len() as usize];
        file.read_exact_at(&mut content, 0).map_err(told)?;
        let mode = metadata.permissions().mode() & 0o7777;
        Found::File { inode: metadata.ino(), nlink: metadata.nlink(), mode, content }
    };
    found.insert(name, here);
    Ok(())
}
