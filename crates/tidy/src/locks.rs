//! Locks are those of `kvfs_locks`: they have a place in the order, and tell which thread has them.

use syn::spanned::Spanned;
use syn::visit::Visit;

use crate::Finding;
use crate::source::{Source, TOOLS};

/// Where other locks may be, as path prefixes.
const ALLOWED: &[&str] = &[
    // It is made of them.
    "crates/locks/",
    // Preloaded into programs that know nothing of kvfs.
    "crates/lane/src/connection.rs",
    // Its wake-up of all waiters is one system call; the lock itself is never held with another one.
    "crates/kvdb/src/journal/monitor.rs",
    // Devices, transports and stores for tests.
    "crates/device/src/crash.rs",
    "crates/device/src/fault.rs",
    "crates/device/src/memory.rs",
    "crates/device/src/overlay.rs",
    "crates/fuse/src/transport/memory.rs",
    "crates/store/src/model/",
];

/// Checks one source.
pub fn check(source: &Source) -> Vec<Finding> {
    let is_allowed = ALLOWED.iter().any(|prefix| source.path.starts_with(prefix));
    if is_allowed || TOOLS.contains(&source.krate()) {
        return Vec::new();
    }
    let mut names = Names { found: Vec::new() };
    names.visit_file(&source.file);
    let others = names.found.into_iter().filter(|(name, _)| is_other_lock(name));
    others
        .map(|(name, line)| {
            format!(
                "{}:{line}: `{name}`: use kvfs_locks, with a class in crates/locks/src/class.rs",
                source.path
            )
        })
        .collect()
}

fn is_other_lock(name: &str) -> bool {
    let std_lock = name.strip_prefix("std::sync::").or_else(|| name.strip_prefix("sync::"));
    let std_lock = std_lock.and_then(|rest| rest.split("::").next());
    name.starts_with("parking_lot") || matches!(std_lock, Some("Mutex" | "RwLock" | "Condvar" | "*"))
}

/// Every path, with its line.
struct Names {
    found: Vec<(String, usize)>,
}

impl Names {
    fn add_use(&mut self, prefix: &str, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => self.add_use(&format!("{prefix}{}::", path.ident), &path.tree),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_use(prefix, tree)),
            syn::UseTree::Name(name) => {
                self.found.push((format!("{prefix}{}", name.ident), name.span().start().line));
            }
            syn::UseTree::Rename(name) => {
                self.found.push((format!("{prefix}{}", name.ident), name.span().start().line));
            }
            syn::UseTree::Glob(glob) => self.found.push((format!("{prefix}*"), glob.span().start().line)),
        }
    }
}

impl<'a> Visit<'a> for Names {
    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.add_use("", &item.tree);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let parts: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.found.push((parts.join("::"), path.span().start().line));
        syn::visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::source::Source;

    fn findings(path: &str, text: &str) -> Vec<String> {
        check(&Source::parse(path, text).unwrap())
    }

    #[test]
    fn other_locks_are_found_in_imports_and_paths() {
        let text = "use std::sync::{Arc, Mutex};\nuse parking_lot::RwLock as Lock;\n\
                    struct S { a: Arc<std::sync::Condvar>, b: parking_lot::Mutex<()> }";
        let found = findings("crates/fs/src/x.rs", text);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[1].starts_with("crates/fs/src/x.rs:2: `parking_lot::RwLock`"), "{}", found[1]);
        assert!(findings("crates/locks/src/mutex.rs", text).is_empty());
        let classed = "use std::sync::Arc;\nuse kvfs_locks::{Mutex, class};\n#[cfg(test)] mod tests { use std::sync::Mutex; }";
        assert!(findings("crates/fs/src/x.rs", classed).is_empty());
    }
}
