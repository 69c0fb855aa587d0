//! `kvfs.h` is made of the exported functions, and stays as they are.

use std::fs;
use std::path::{Path, PathBuf};

use cbindgen::{Builder, Config};

/// In the order in which a reader wants them.
const SOURCES: &[&str] = &[
    "failure",
    "foreign",
    "store",
    "process",
    "files",
    "io",
    "names",
    "attributes",
    "xattrs",
    "locks",
    "mapping",
    "directory",
    "transactions",
    "keys",
    "snapshots",
];

/// To write the header that the sources make.
const RENEW: &str = "KVFS_RENEW_HEADER";

pub(crate) fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn path() -> PathBuf {
    crate_dir().join("include/kvfs.h")
}

fn made() -> String {
    let config = Config::from_file(crate_dir().join("cbindgen.toml")).expect("cbindgen.toml is one");
    let sources = SOURCES.iter().map(|name| crate_dir().join(format!("src/{name}.rs")));
    let builder = sources.fold(Builder::new().with_config(config), Builder::with_src);
    let mut header = Vec::new();
    builder.generate().expect("makes the header").write(&mut header);
    let header = String::from_utf8(header).expect("is text");
    // Pointers as C has them, and comments without the marks of Rust's.
    let header = header.replace('`', "").replace("* ,", "*,");
    header.lines().map(|line| tidied(line) + "\n").collect()
}

fn tidied(line: &str) -> String {
    let is_comment = line.trim_start().starts_with('*');
    let line = if is_comment { line.to_owned() } else { line.replace(" * ", " *") };
    line.trim_end().to_owned()
}

/// The functions that a header declares.
pub(crate) fn functions(header: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for line in header.lines().filter(|line| !line.trim_start().starts_with('*') && !line.starts_with("/*")) {
        for (at, _) in line.match_indices("kvfs_") {
            let name: String = line[at..].chars().take_while(|c| is_part(*c)).collect();
            let is_whole = !line[..at].ends_with(is_part);
            if is_whole && line[at + name.len()..].starts_with('(') && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

pub(crate) fn header() -> String {
    fs::read_to_string(path()).expect("include/kvfs.h is there")
}

#[test]
fn header_is_what_the_sources_make() {
    let made = made();
    if std::env::var_os(RENEW).is_some() {
        fs::write(path(), &made).expect("writes the header");
    }
    let hint =
        format!("include/kvfs.h is not what the sources make: {RENEW}=1 cargo test -p kvfs-capi header");
    assert!(fs::read_to_string(path()).is_ok_and(|kept| kept == made), "{hint}");
}

#[test]
fn header_declares_each_exported_function() {
    let mut exported = Vec::new();
    for source in SOURCES {
        let text = fs::read_to_string(crate_dir().join(format!("src/{source}.rs"))).expect("reads");
        let calls = text.split("pub extern \"C\" fn ").skip(1);
        exported.extend(calls.map(|rest| rest.split('(').next().unwrap_or_default().to_owned()));
    }
    let declared = functions(&header());
    let all: Vec<_> = fs::read_dir(crate_dir().join("src")).expect("lists").collect();
    assert!(exported.len() > 100 && !all.is_empty());
    for name in &exported {
        assert!(declared.contains(name), "{name} is not in the header");
    }
    for name in &declared {
        assert!(exported.contains(name), "{name} is in the header alone");
    }
}
