//! Inside the engine a module uses only those before it, so that each can be read knowing only the earlier.

use syn::visit::Visit;

use crate::Finding;
use crate::source::{Source, flatten};

/// The modules of `kvdb`, lowest first.
pub const ORDER: &[&str] = &[
    "format",
    "salvage",
    "space",
    "cache",
    "journal",
    "memtable",
    "table",
    "version",
    "iter",
    "compaction",
    "commit",
    "runtime",
    "layers",
    "pressure",
    "live",
    "order",
    "history",
    "read",
    "commits",
    "flush",
    "merge",
    "devices",
    "write",
    "txn",
    "parts",
    "check",
    "threads",
    "db",
    "open",
    "builder",
    "repair",
    "fuzzing",
];

/// Checks one source of `kvdb` against [`ORDER`].
pub fn check(source: &Source) -> Vec<Finding> {
    let module = source.module();
    let Some(own) = module.first() else { return Vec::new() };
    let Some(rank) = ORDER.iter().position(|m| m == own) else {
        return vec![format!("{}: module `{own}` has no place in the order {ORDER:?}", source.path)];
    };
    let mut uses = Uses { module: module.clone(), found: Vec::new() };
    uses.visit_file(&source.file);
    let mut findings = Vec::new();
    for (used, line) in uses.found {
        match ORDER.iter().position(|m| *m == used) {
            Some(r) if r <= rank => {}
            Some(_) => {
                findings.push(format!("{}:{line}: `{own}` uses the later module `{used}`", source.path));
            }
            None => findings.push(format!(
                "{}:{line}: `{own}` reaches `{used}` through the crate root; name its module",
                source.path
            )),
        }
    }
    findings
}

/// Collects the top-level modules that a file's paths lead to.
struct Uses {
    /// The module at the place of the visit, inline modules included.
    module: Vec<String>,
    found: Vec<(String, usize)>,
}

impl Uses {
    /// Notes where `path` leads when it starts with `crate` or climbs with `super`.
    fn note(&mut self, path: &[String], line: usize) {
        let mut at = match path.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("super" | "self") => self.module.clone(),
            _ => return,
        };
        for part in path {
            match part.as_str() {
                "crate" => at.clear(),
                "super" => {
                    at.pop();
                }
                "self" => {}
                name => at.push(name.to_owned()),
            }
        }
        if let Some(top) = at.into_iter().next() {
            self.found.push((top, line));
        }
    }

    fn note_tree(&mut self, tree: &syn::UseTree, prefix: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.note_tree(&path.tree, prefix);
                prefix.pop();
            }
            syn::UseTree::Name(syn::UseName { ident })
            | syn::UseTree::Rename(syn::UseRename { ident, .. }) => {
                prefix.push(ident.to_string());
                self.note(prefix, ident.span().start().line);
                prefix.pop();
            }
            syn::UseTree::Glob(glob) => {
                prefix.push("*".to_owned());
                self.note(prefix, glob.star_token.spans[0].start().line);
                prefix.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.note_tree(item, prefix)),
        }
    }
}

impl<'a> Visit<'a> for Uses {
    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.note_tree(&item.tree, &mut Vec::new());
    }

    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        self.module.push(item.ident.to_string());
        syn::visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if parts.len() > 1 {
            self.note(&parts, path.segments[0].ident.span().start().line);
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'a syn::Visibility) {
        // `pub(super)` and `pub(in crate::x)` depend on nothing.
    }

    fn visit_macro(&mut self, mac: &'a syn::Macro) {
        // What a macro is given is not syntax yet: look for `crate::name` among its tokens.
        let mut tokens = Vec::new();
        flatten(mac.tokens.clone(), &mut tokens);
        for window in tokens.windows(4) {
            if window[0].0 == "crate" && window[1].0 == ":" && window[2].0 == ":" {
                self.note(&["crate".to_owned(), window[3].0.clone()], window[3].1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::source::Source;

    fn findings(path: &str, text: &str) -> usize {
        check(&Source::parse(path, text).unwrap()).len()
    }

    #[test]
    fn a_later_module_is_found_however_it_is_named() {
        let journal = "crates/kvdb/src/journal/writer.rs";
        assert_eq!(findings(journal, "use crate::db::Db;"), 1);
        assert_eq!(findings(journal, "use crate::{format::Record, run::Run};"), 1);
        assert_eq!(findings(journal, "use super::super::memtable;"), 1);
        assert_eq!(findings(journal, "fn f() { crate::iter::merge() }"), 1);
        assert_eq!(findings(journal, "fn f() { assert!(crate::version::ok()) }"), 1);
        assert_eq!(findings(journal, "use crate::Db;"), 1);
    }

    #[test]
    fn earlier_modules_and_tests_are_free() {
        let journal = "crates/kvdb/src/journal/writer.rs";
        assert_eq!(findings(journal, "use crate::format::Record; use super::reader::Reader;"), 0);
        assert_eq!(findings(journal, "#[cfg(test)] mod tests { use crate::db::Db; }"), 0);
        assert_eq!(findings(journal, "pub(crate) fn f() {} pub(super) fn g() { self::f() }"), 0);
        assert_eq!(findings("crates/kvdb/src/lib.rs", "pub use crate::db::Db;"), 0);
    }

    #[test]
    fn a_module_without_a_place_is_found() {
        assert_eq!(findings("crates/kvdb/src/helpers.rs", ""), 1);
    }
}
