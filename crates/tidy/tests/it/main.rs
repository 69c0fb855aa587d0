//! The rules of `kvfs_tidy`, applied to the repository.

mod generated;

use kvfs_tidy::source::{files, is_rust, production, read, root};
use kvfs_tidy::{
    Finding, calls, dependencies, layers, locks, modules, owners, papers, sizes, unsafety, words,
};

/// Fails with all findings, so that one run shows everything.
fn expect_none(findings: &[Finding]) {
    assert!(findings.is_empty(), "{} findings:\n{}\n", findings.len(), findings.join("\n"));
}

#[test]
fn dependencies_follow_the_layers() {
    let mut findings = Vec::new();
    for path in files().unwrap() {
        let name = match path.split('/').collect::<Vec<_>>()[..] {
            ["crates", name, "Cargo.toml"] => Some(name.to_owned()),
            ["crates", "engines", name, "Cargo.toml"] => Some(format!("engine-{name}")),
            _ => None,
        };
        if let Some(name) = name {
            findings.extend(layers::check(&name, &read(&path).unwrap()).unwrap());
        }
    }
    expect_none(&findings);
}

#[test]
fn dependencies_are_from_the_registry_and_of_allowed_licences() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut metadata = std::process::Command::new(cargo);
    metadata.args(["metadata", "--format-version=1", "--locked", "--all-features"]);
    // Others would be fetched, which no build here needs.
    metadata.arg(format!("--filter-platform={}-unknown-linux-gnu", std::env::consts::ARCH));
    let told = metadata.current_dir(root()).output().unwrap();
    assert!(told.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&told.stderr));
    let licences = dependencies::Licences::parse(&read("deny.toml").unwrap()).unwrap();
    expect_none(&dependencies::check(&String::from_utf8(told.stdout).unwrap(), &licences).unwrap());
}

#[test]
fn engine_modules_use_only_earlier_ones() {
    let sources = production().unwrap();
    let engine: Vec<_> = sources.iter().filter(|s| s.krate() == "kvdb").collect();
    assert!(!engine.is_empty(), "no source of the engine found: looking in the wrong place?");
    expect_none(&engine.into_iter().flat_map(modules::check).collect::<Vec<_>>());
}

#[test]
fn types_have_few_methods() {
    let sources = production().unwrap();
    let crates: std::collections::BTreeSet<_> =
        sources.iter().map(kvfs_tidy::source::Source::krate).collect();
    let of = |krate: &str| sources.iter().filter(|source| source.krate() == krate).collect::<Vec<_>>();
    expect_none(&crates.into_iter().flat_map(|krate| owners::check(krate, &of(krate))).collect::<Vec<_>>());
}

#[test]
fn files_and_functions_are_short_and_have_headers() {
    expect_none(&production().unwrap().iter().flat_map(sizes::check).collect::<Vec<_>>());
}

#[test]
fn comments_are_no_wider_than_code() {
    let written = |path: &&String| is_rust(path) && !path.starts_with("crates/rpc/generated/");
    let files = files().unwrap();
    let check = |path: &String| sizes::check_comments(path, &read(path).unwrap());
    expect_none(&files.iter().filter(written).flat_map(check).collect::<Vec<_>>());
}

#[test]
fn banned_calls_are_absent() {
    expect_none(&production().unwrap().iter().flat_map(calls::check).collect::<Vec<_>>());
}

#[test]
fn every_lock_has_a_class() {
    expect_none(&production().unwrap().iter().flat_map(locks::check).collect::<Vec<_>>());
}

#[test]
fn unsafe_code_is_confined_and_reasoned() {
    expect_none(&production().unwrap().iter().flat_map(unsafety::check).collect::<Vec<_>>());
}

#[test]
fn every_promise_has_its_test() {
    let files = files().unwrap();
    let tested =
        |f: &str| f.starts_with("fuzz/") || f.starts_with("crates/") && !f.starts_with("crates/tidy/");
    let rust = files.iter().filter(|f| tested(f) && is_rust(f));
    let tests = rust.flat_map(|f| papers::test_names(&read(f).unwrap())).collect();
    let steps = |script: &str| papers::step_names(&read(script).unwrap_or_default());
    for path in papers::PROMISES {
        let text = read(path).unwrap();
        expect_none(&papers::check_promises(path, &text, &tests, &files));
        expect_none(&papers::check_steps(path, &text, steps));
    }
}

#[test]
fn guides_name_files_and_functions_that_exist() {
    let files = files().unwrap();
    for path in papers::GUIDES {
        let text = read(path).unwrap();
        expect_none(&papers::check_guide(path, &text, &files, |file| read(file).unwrap_or_default()));
    }
}

#[test]
fn subjects_are_things_of_the_system() {
    let mut findings = Vec::new();
    for path in files().unwrap() {
        let is_document = std::path::Path::new(&path).extension().is_some_and(|ending| ending == "md");
        // The rule itself names what it finds.
        if (is_rust(&path) || is_document) && path != "crates/tidy/src/words.rs" {
            findings.extend(words::check(&path, &read(&path).unwrap()));
        }
    }
    expect_none(&findings);
}

#[test]
fn no_path_of_one_machine() {
    let mut findings = Vec::new();
    for path in files().unwrap() {
        // What is not text (pictures) names no path.
        if let Ok(text) = read(&path) {
            findings.extend(papers::check_machine_paths(&path, &text));
        }
    }
    expect_none(&findings);
}

#[test]
fn documents_are_in_place() {
    let files = files().unwrap();
    let missing: Vec<Finding> = papers::PRESENT
        .iter()
        .filter(|p| !files.iter().any(|f| f == *p))
        .map(|p| format!("{p} is missing"))
        .collect();
    expect_none(&missing);
    expect_none(&papers::check_changelog(&read("CHANGELOG.md").unwrap(), env!("CARGO_PKG_VERSION")));
}
