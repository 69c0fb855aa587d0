//! What fits a head and a screen: length of files, functions and lines of comments, and the header that says
//! what a file is for.

use syn::spanned::Spanned;
use syn::visit::Visit;

use crate::Finding;
use crate::source::Source;

/// Most lines of a production file, its header and inline tests included.
pub const FILE_LINES_MAX: usize = 600;

/// Most lines of a function, from its name to its closing brace.
pub const FUNCTION_LINES_MAX: usize = 90;

/// Most characters of a line that is a comment, as of code (`max_width` in `rustfmt.toml`).
pub const COMMENT_COLUMNS_MAX: usize = 110;

/// Checks the lines of a Rust file that are comments; rows of tables, and words that are longer, can't be
/// broken.
pub fn check_comments(path: &str, text: &str) -> Vec<Finding> {
    let too_wide = |line: &str| {
        let comment =
            line.trim_start().strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']).trim());
        comment.is_some_and(|comment| !comment.starts_with('|') && comment.contains(' '))
            && line.chars().count() > COMMENT_COLUMNS_MAX
    };
    let wide = (1..).zip(text.lines()).filter(|(_, line)| too_wide(line));
    wide.map(|(number, line)| {
        let columns = line.chars().count();
        format!("{path}:{number}: {columns} columns, at most {COMMENT_COLUMNS_MAX}: break the line")
    })
    .collect()
}

/// Checks one source.
pub fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines = source.text.lines().count();
    if lines > FILE_LINES_MAX {
        findings.push(format!("{}: {lines} lines, at most {FILE_LINES_MAX}: split it by role", source.path));
    }
    if !source.text.starts_with("//!") {
        findings.push(format!("{}:1: no `//!` header: purpose, thread safety, invariants", source.path));
    }
    let mut functions = Functions { source, findings };
    functions.visit_file(&source.file);
    functions.findings
}

struct Functions<'s> {
    source: &'s Source,
    findings: Vec<Finding>,
}

impl Functions<'_> {
    fn note(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let first = signature.span().start().line;
        let lines = body.span().end().line.saturating_sub(first) + 1;
        if lines > FUNCTION_LINES_MAX {
            self.findings.push(format!(
                "{}:{first}: `{}` has {lines} lines, at most {FUNCTION_LINES_MAX}: give its parts names",
                self.source.path, signature.ident
            ));
        }
    }
}

impl<'a> Visit<'a> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.note(&item.sig, &item.block);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.note(&item.sig, &item.block);
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.note(&item.sig, body);
        }
        syn::visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::{FILE_LINES_MAX, FUNCTION_LINES_MAX, check, check_comments};
    use crate::source::Source;

    fn findings(text: &str) -> usize {
        check(&Source::parse("crates/fs/src/x.rs", text).unwrap()).len()
    }

    #[test]
    fn long_files_and_functions_are_found() {
        assert_eq!(findings(&format!("//! X.\n{}", "\n".repeat(FILE_LINES_MAX))), 1);
        let body = "\n".repeat(FUNCTION_LINES_MAX);
        assert_eq!(findings(&format!("//! X.\nfn f() {{{body}}}\n")), 1);
        assert_eq!(findings(&format!("//! X.\nimpl X {{ fn f() {{{body}}} }}\n")), 1);
        assert_eq!(findings(&format!("//! X.\n#[cfg(test)]\nmod tests {{ fn f() {{{body}}} }}\n")), 0);
    }

    #[test]
    fn wide_comments_are_found() {
        let (words, word) = ("ä ".repeat(60), "ä".repeat(120));
        for (text, count) in [
            (format!("    /// {words}"), 1),
            (format!("//! {words}\n// {words}\n"), 2),
            (format!("/// | {words}"), 0),
            (format!("// {word}"), 0),
            (format!("/// {}", "ä ".repeat(52)), 0),
            (format!("let {word} = 1; // {words}"), 0),
        ] {
            assert_eq!(check_comments("a.rs", &text).len(), count, "{text}");
        }
    }

    #[test]
    fn a_missing_header_is_found() {
        assert_eq!(findings("fn f() {}\n"), 1);
        assert_eq!(findings("//! X.\nfn f() {}\n"), 0);
    }
}
