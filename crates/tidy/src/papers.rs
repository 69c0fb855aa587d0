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

/// Checks `docs/SEMANTICS.md`: the last column of each table row of promises names, in backticks, tests out of
/// `tests`, or scripts out of `files` (then a step may follow in plain words).
pub fn check_promises(semantics: &str, tests: &BTreeSet<String>, files: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut promises = 0;
    for (at, line) in semantics.lines().enumerate() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        let is_row = line.starts_with('|') && cells.len() >= 2;
        let Some(last) = cells.last().filter(|c| is_row && !c.starts_with("---") && **c != "Test") else {
            continue;
        };
        promises += 1;
        let named: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            findings.push(format!("docs/SEMANTICS.md:{}: a promise without a test", at + 1));
        }
        for name in named {
            if !tests.contains(name) && !files.iter().any(|f| f == name) {
                findings.push(format!("docs/SEMANTICS.md:{}: no test is called `{name}`", at + 1));
            }
        }
    }
    if promises == 0 {
        findings.push("docs/SEMANTICS.md: no promise in it".to_owned());
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

/// Checks that the steps that `docs/SEMANTICS.md` names behind a script are in it: separated by commas, each the
/// beginning of a step's name (which may have commas of its own). `steps` gives those of a script.
pub fn check_steps(semantics: &str, steps: impl Fn(&str) -> Vec<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in semantics.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
        let parts: Vec<&str> = line.trim().trim_end_matches('|').split('`').collect();
        for pair in
            parts.windows(2).filter(|pair| Path::new(pair[0]).extension().is_some_and(|end| end == "sh"))
        {
            let Some(text) = pair[1].strip_prefix(": ") else { continue };
            let text = text.split([';', '|']).next().unwrap_or_default().trim().trim_end_matches(',');
            let (words, known): (Vec<&str>, _) = (text.split(", ").collect(), steps(pair[0]));
            let mut first = 0;
            while first < words.len() {
                let is_step =
                    |end: &usize| known.iter().any(|k| k.starts_with(&words[first..*end].join(", ")));
                let end = (first + 1..=words.len()).rev().find(is_step);
                if end.is_none() {
                    findings.push(format!(
                        "docs/SEMANTICS.md:{}: no step \"{}\" in {}",
                        at + 1,
                        words[first],
                        pair[0]
                    ));
                }
                first = end.unwrap_or(first + 1);
            }
        }
    }
    findings
}

/// Checks that `text` names no directory of somebody's machine.
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
    use super::{check_changelog, check_machine_paths, check_promises, check_steps, step_names, test_names};

    #[test]
    fn a_promise_needs_a_test_that_exists() {
        let tests =
            test_names("#[test]\nfn holds() {}\nfn helper() {}\n  #[test]\n  #[cfg(x)]\n  fn too() {}\n");
        assert_eq!(tests.len(), 2);
        let files = ["scripts/realwork.sh".to_owned()];
        let head = "| Promise | Test |\n|---|---|\n";
        let check = |row: &str| check_promises(&format!("{head}{row}"), &tests, &files).len();
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
        let check = |cell: &str| check_steps(&format!("| a | {cell} |"), |_| step_names(script)).len();
        assert_eq!(check("`a.sh`: one, and more, two, `test`, `b.sh`: three"), 0);
        assert_eq!(check("`a.sh`: one, two; and so on"), 0);
        assert_eq!(check("`a.sh`: four, two"), 1);
        assert_eq!(check("`a.sh`, `test`"), 0);
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
