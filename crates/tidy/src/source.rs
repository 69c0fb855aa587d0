//! Reading the tree: files, production code without its tests, and tokens with their lines.

use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::visit::Visit;

/// Crates that are tools of the developers: output and time are theirs to use.
pub const TOOLS: &[&str] = &["sim", "tidy", "bench"];

/// The root of the repository.
pub fn root() -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_dir.ancestors().nth(2).unwrap_or(crate_dir).to_path_buf()
}

/// A Rust file of production code, parsed, its `#[cfg(test)]` items left out.
pub struct Source {
    /// Path from the root of the repository, with `/`.
    pub path: String,
    /// The whole text, tests included.
    pub text: String,
    /// The syntax without test items.
    pub file: syn::File,
    /// Names of the modules in files of their own that are compiled for tests only.
    pub test_modules: Vec<String>,
}

impl Source {
    /// Parses `text`, known as `path`.
    ///
    /// # Errors
    /// The parser's message, with the path.
    pub fn parse(path: &str, text: &str) -> Result<Self, String> {
        let mut file = syn::parse_file(text).map_err(|e| format!("{path}:{}: {e}", e.span().start().line))?;
        let mut test_modules = Vec::new();
        file.items.retain(|item| {
            let is_test = is_test_item(item);
            if let syn::Item::Mod(syn::ItemMod { ident, content: None, .. }) = item
                && is_test
            {
                test_modules.push(ident.to_string());
            }
            !is_test
        });
        Ok(Self { path: path.to_owned(), text: text.to_owned(), file, test_modules })
    }

    /// The directory name of the crate: `kvdb` in `crates/kvdb/src/lib.rs`.
    pub fn krate(&self) -> &str {
        self.path.split('/').nth(1).unwrap_or_default()
    }

    /// The module that the file is: `["run", "reader"]` for `src/run/reader.rs`, empty for the crate root.
    pub fn module(&self) -> Vec<String> {
        let inside = self.path.split('/').skip(3);
        let mut parts: Vec<String> = inside.map(|p| p.trim_end_matches(".rs").to_owned()).collect();
        if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
            parts.pop();
        }
        parts
    }

    /// All tokens of the production code, flat, each with its line (from 1).
    pub fn tokens(&self) -> Vec<(String, usize)> {
        let mut out = Vec::new();
        flatten(self.file.to_token_stream(), &mut out);
        out
    }
}

fn is_test_item(item: &syn::Item) -> bool {
    struct Attributes(bool);
    impl<'a> Visit<'a> for Attributes {
        fn visit_attribute(&mut self, attribute: &'a syn::Attribute) {
            let text = attribute.meta.to_token_stream().to_string();
            self.0 |= text == "cfg (test)" || text.starts_with("cfg (all (test") || text == "test";
        }
        fn visit_block(&mut self, _: &'a syn::Block) {}
        fn visit_impl_item(&mut self, _: &'a syn::ImplItem) {}
        fn visit_trait_item(&mut self, _: &'a syn::TraitItem) {}
        fn visit_fields(&mut self, _: &'a syn::Fields) {}
        fn visit_variant(&mut self, _: &'a syn::Variant) {}
    }
    let mut seen = Attributes(false);
    match item {
        syn::Item::Mod(module) => module.attrs.iter().for_each(|a| seen.visit_attribute(a)),
        other => seen.visit_item(other),
    }
    seen.0
}

/// Appends the tokens of `stream`, groups opened up into their delimiters.
pub fn flatten(stream: TokenStream, out: &mut Vec<(String, usize)>) {
    for token in stream {
        let line = token.span().start().line;
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    proc_macro2::Delimiter::Parenthesis => ("(", ")"),
                    proc_macro2::Delimiter::Brace => ("{", "}"),
                    proc_macro2::Delimiter::Bracket => ("[", "]"),
                    proc_macro2::Delimiter::None => ("", ""),
                };
                out.push((open.to_owned(), line));
                flatten(group.stream(), out);
                out.push((close.to_owned(), group.span_close().start().line));
            }
            other => out.push((other.to_string(), line)),
        }
    }
}

/// Whether a file is Rust, by its name.
pub fn is_rust(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|e| e == "rs")
}

/// Whether a file holds tests only, by its name or its directory.
fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// Every production source of every crate, parsed.
///
/// # Errors
/// A file that cannot be read or parsed.
pub fn production() -> Result<Vec<Source>, String> {
    let mut sources = Vec::new();
    for path in files()? {
        let in_src = path.starts_with("crates/") && path.split('/').nth(2) == Some("src");
        if in_src && is_rust(&path) && !is_test_file(&path) {
            sources.push(Source::parse(&path, &read(&path)?)?);
        }
    }
    let mut for_tests = Vec::new();
    for source in &sources {
        for name in &source.test_modules {
            let mut module = source.module();
            module.push(name.clone());
            for_tests.push((source.krate().to_owned(), module));
        }
    }
    sources.retain(|s| {
        !for_tests.iter().any(|(krate, module)| s.krate() == krate && s.module().starts_with(module))
    });
    Ok(sources)
}

/// The text of a file, by its path from the root.
///
/// # Errors
/// A file that cannot be read, or is not text.
pub fn read(path: &str) -> Result<String, String> {
    std::fs::read_to_string(root().join(path)).map_err(|e| format!("{path}: {e}"))
}

/// Paths of all files of the repository from its root, sorted, without what builds leave behind.
///
/// # Errors
/// A directory that cannot be read.
pub fn files() -> Result<Vec<String>, String> {
    let root = root();
    let mut out = Vec::new();
    let mut dirs = vec![root.clone()];
    while let Some(dir) = dirs.pop() {
        let entries = std::fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        for entry in entries {
            let path = entry.map_err(|e| e.to_string())?.path();
            let name = path.strip_prefix(&root).unwrap_or(&path).to_string_lossy().into_owned();
            if path.is_dir() {
                // The fuzz targets and the benchmarks build beside their own manifests.
                if name != ".git" && path.file_name().is_none_or(|last| last != "target") {
                    dirs.push(path);
                }
            } else if name != ".git" {
                out.push(name);
            }
        }
    }
    out.sort();
    Ok(out)
}
