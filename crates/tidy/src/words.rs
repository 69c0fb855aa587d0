//! The language of comments and documents: a thing of the system acts, not an unnamed person (docs/STYLE.md).

use crate::Finding;
use crate::source::is_rust;

/// Subjects that name nothing of the system.
const UNNAMED: &[&str] = &["somebody", "nobody", "anybody", "everybody", "whoever", "someone", "anyone"];

/// Checks the comments of a Rust file, or all of a document.
pub fn check(path: &str, text: &str) -> Vec<Finding> {
    let is_rust = is_rust(path);
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let prose = if is_rust { line.split_once("//").map_or("", |(_, comment)| comment) } else { line };
        if let Some(word) = words(prose).find(|word| UNNAMED.contains(&word.to_lowercase().as_str())) {
            findings.push(format!("{path}:{number}: \"{word}\": say which thing of the system it is"));
        }
    }
    findings
}

/// The words of a line that are not quoted as code.
fn words(prose: &str) -> impl Iterator<Item = &str> {
    let outside_code = prose.split('`').step_by(2);
    outside_code.flat_map(|text| text.split(|c: char| !c.is_alphanumeric() && c != '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unnamed_subjects_are_found_in_comments_and_documents_but_not_in_code() {
        let found = |path, text| check(path, text).len();
        assert_eq!(found("a.rs", "/// Nobody waits here.\nlet nobody = 65534; // the user `nobody`\n"), 1);
        assert_eq!(found("a.rs", "fn somebody() {} // whoever calls\n"), 1);
        assert_eq!(
            found("a.md", "Somebody reads.\n`su nobody` is quoted.\nnobody_is_doomed is a name.\n"),
            1
        );
    }
}
