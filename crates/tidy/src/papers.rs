//! Documents: promises name tests that exist, no path of one machine, licence and change log in place.

use std::collections::BTreeSet;
use std::path::Path;

use crate::Finding;

/// Documents that a user or a developer looks for.
pub const PRESENT: &[&str] = &[
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "Makefile",
    ".ci/run",
    "docs/ARCHITECTURE.md",
    "docs/FORMAT.md",
    "docs/SECURITY.md",
    "docs/SEMANTICS.md",
    "docs/STYLE.md",
];

/// Names of all functions that are `#[test]`s in `text`.
pub fn test_names(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("#[test]") {
            is_test = true;
        }
        // Attributes may stand between; in a macro such as proptest! the name follows in the same way.
        if let Some(rest) = line.strip_prefix("fn ").or_else(|| line.strip_prefix("pub fn ")) {
            if is_test {
                names.insert(rest.split(['(', '<']).next().unwrap_or_default().to_owned());
            }
            is_test = false;
        }
    }
    names
}

/// Documents whose tables are promises, with the tests of each in the last column.
pub const PROMISES: &[&str] = &["docs/SEMANTICS.md", "docs/SECURITY.md"];

/// Checks the document `path`: the last column of each table row of promises names, in backticks, tests out
/// of `tests`, or scripts and fuzz targets out of `files` (then a step may follow in plain words).
pub fn check_promises(path: &str, text: &str, tests: &BTreeSet<String>, files: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut promises = 0;
    for (at, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        let is_row = line.starts_with('|') && cells.len() >= 2;
        let Some(last) = cells.last().filter(|c| is_row && !c.starts_with("---") && **c != "Test") else {
            continue;
        };
        promises += 1;
        let named: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            findings.push(format!("{path}:{}: a promise without a test", at + 1));
        }
        for name in named {
            if !tests.contains(name) && !files.iter().any(|f| f == name) {
                findings.push(format!("{path}:{}: no test is called `{name}`", at + 1));
            }
        }
    }
    if promises == 0 {
        findings.push(format!("{path}: no promise in it"));
    }
    findings
}

/// Documents that lead through the code: each `path.rs` or `path.rs::function` in backticks has to exist.
pub const GUIDES: &[&str] = &["docs/ARCHITECTURE.md"];

/// Most files of one numbered list of functions: a reader follows it in one sitting.
const FILES_OF_PATH_MAX: usize = 15;

/// Checks the document `path`: every `path.rs` in backticks is the end of the name of one of `files` (`src`
/// left out), and with `::function` behind it `read` of such a file has that function. A numbered list names
/// at most 15 files.
pub fn check_guide(path: &str, text: &str, files: &[String], read: impl Fn(&str) -> String) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut of_list: BTreeSet<&str> = BTreeSet::new();
    for (at, line) in text.lines().enumerate() {
        if line.starts_with("1. ") {
            of_list.clear();
        }
        for word in line.split('`').skip(1).step_by(2) {
            let (file, function) =
                word.split_once("::").map_or((word, None), |(file, name)| (file, Some(name)));
            if Path::new(file).extension().is_none_or(|end| end != "rs") || file.contains(' ') {
                continue;
            }
            let of = |f: &&String| format!("/{}", f.replace("/src/", "/")).ends_with(&format!("/{file}"));
            let found: Vec<&String> = files.iter().filter(of).collect();
            if found.is_empty() {
                findings.push(format!("{path}:{}: no file is called `{file}`", at + 1));
                continue;
            }
            let Some(name) = function else { continue };
            let has =
                |text: &str| text.contains(&format!("fn {name}(")) || text.contains(&format!("fn {name}<"));
            if !found.iter().any(|f| has(&read(f))) {
                findings.push(format!("{path}:{}: `{file}` has no function `{name}`", at + 1));
            }
            of_list.insert(file);
            if of_list.len() == FILES_OF_PATH_MAX + 1 {
                findings
                    .push(format!("{path}:{}: a path through more than {FILES_OF_PATH_MAX} files", at + 1));
            }
        }
    }
    findings
}

/// Names of all steps of a suite: `step "NAME" command`, or by another word that ends in a step.
pub fn step_names(script: &str) -> Vec<String> {
    let name = |line: &str| {
        let at = ["step \"", "alone \""].iter().find_map(|word| Some((line.find(word)?, word.len())));
        let (start, len) = at.filter(|(start, _)| *start == 0 || line[..*start].ends_with(' '))?;
        Some(line[start + len..].split('"').next().unwrap_or_default().to_owned())
    };
    script.lines().filter_map(name).collect()
}

/// Checks that the steps that the document `path` names behind a script are in it: separated by commas, each
/// the beginning of a step's name (which may have commas of its own). `steps` gives those of a script.
pub fn check_steps(path: &str, text: &str, steps: impl Fn(&str) -> Vec<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
        let parts: Vec<&str> = line.trim().trim_end_matches('|').split('`').collect();
        for pair in
            parts.windows(2).filter(|pair| Path::new(pair[0]).extension().is_some_and(|end| end == "sh"))
        {
            let Some(named) = pair[1].strip_prefix(": ") else { continue };
            let named = named.split([';', '|']).next().unwrap_or_default().trim().trim_end_matches(',');
            let (words, known): (Vec<&str>, _) = (named.split(", ").collect(), steps(pair[0]));
            let mut first = 0;
            while first < words.len() {
                let is_step =
                    |end: &usize| known.iter().any(|k| k.starts_with(&words[first..*end].join(", ")));
                let end = (first + 1..=words.len()).rev().find(is_step);
                if end.is_none() {
                    findings.push(format!("{path}:{}: no step \"{}\" in {}", at + 1, words[first], pair[0]));
                }
                first = end.unwrap_or(first + 1);
            }
        }
    }
    findings
}

/// Checks that `text` names no directory of a developer's machine.
pub fn check_machine_paths(path: &str, text: &str) -> Vec<Finding> {
    // In pieces, so that this file does not find itself.
    let paths = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];
    let mut findings = Vec::new();
    for (at, line) in text.lines().enumerate() {
        for machine_path in paths {
            let named = line.match_indices(machine_path).any(|(i, _)| {
                // Part of a longer path (`a/work/b`) or of a variable (`$x/work/`) is no absolute path.
                !line[..i].ends_with(|c: char| c.is_alphanumeric() || "_-.~}*/\"".contains(c))
            });
            if named {
                findings.push(format!("{path}:{}: a path of one machine: `{machine_path}`", at + 1));
            }
        }
    }
    findings
}

/// Checks that the change log has a section for what is coming or for `version`.
pub fn check_changelog(changelog: &str, version: &str) -> Vec<Finding> {
    let has =
        changelog.lines().any(|l| l.starts_with("## Unreleased") || l.starts_with(&format!("## {version}")));
    if has { Vec::new() } else { vec![format!("CHANGELOG.md: neither `## Unreleased` nor `## {version}`")] }
}

#[cfg(test)]
mod tests {
    use super::{
        check_changelog, check_guide, check_machine_paths, check_promises, check_steps, step_names,
        test_names,
    };

    #[test]
    fn a_promise_needs_a_test_that_exists() {
        let tests =
            test_names("#[test]\nfn holds() {}\nfn helper() {}\n  #[test]\n  #[cfg(x)]\n  fn too() {}\n");
        assert_eq!(tests.len(), 2);
        let files = ["scripts/realwork.sh".to_owned()];
        let head = "| Promise | Test |\n|---|---|\n";
        let check = |row: &str| check_promises("a.md", &format!("{head}{row}"), &tests, &files).len();
        assert_eq!(check("| a | `holds`, `too` |"), 0);
        assert_eq!(check("| a | `scripts/realwork.sh`: step kill -9 |"), 0);
        assert_eq!(check("| a | `helper` |"), 1);
        assert_eq!(check("| a | later |"), 1);
        assert_eq!(check(""), 1);
    }

    #[test]
    fn a_step_must_be_in_its_script() {
        let script =
            "step \"one, and more\" f\n[ -n \"$x\" ] || step \"two\" g\nalone \"three\" h\necho \"four\"\n";
        assert_eq!(step_names(script), ["one, and more", "two", "three"]);
        let check =
            |cell: &str| check_steps("a.md", &format!("| a | {cell} |"), |_| step_names(script)).len();
        assert_eq!(check("`a.sh`: one, and more, two, `test`, `b.sh`: three"), 0);
        assert_eq!(check("`a.sh`: one, two; and so on"), 0);
        assert_eq!(check("`a.sh`: four, two"), 1);
        assert_eq!(check("`a.sh`, `test`"), 0);
    }

    #[test]
    fn guide_names_files_and_functions_that_exist() {
        let files = ["crates/a/src/b/c.rs".to_owned()];
        let check = |text: &str| {
            check_guide("x.md", text, &files, |_| "pub fn go(&self) {}\nfn of<T>() {}".to_owned()).len()
        };
        assert_eq!(check("1. `a/b/c.rs::go` and `b/c.rs::of`, `c.rs`, `go`"), 0);
        assert_eq!(check("`a/b/c.rs::stop`"), 1);
        assert_eq!(check("`b/d.rs`, `a/c.rs`"), 2);
        let many: Vec<String> = (0..16).map(|n| format!("crates/{n}.rs")).collect();
        let list: Vec<String> = (0..16).map(|n| format!("{}. `{n}.rs::go`", n + 1)).collect();
        assert_eq!(check_guide("x.md", &list.join("\n"), &many, |_| "fn go()".to_owned()).len(), 1);
    }

    #[test]
    fn a_machine_path_is_found() {
        let path = concat!("cd /ro", "ot/x");
        assert_eq!(check_machine_paths("a", path).len(), 1);
        assert_eq!(check_machine_paths("a", concat!("cd $dir/wo", "rk/x a/ro", "ot/b")).len(), 0);
    }

    #[test]
    fn the_change_log_keeps_up() {
        assert!(check_changelog("# Changes\n## 0.1.0 (2026)\n", "0.1.0").is_empty());
        assert!(check_changelog("## Unreleased\n", "0.1.0").is_empty());
        assert_eq!(check_changelog("## 0.0.9\n", "0.1.0").len(), 1);
    }
}
