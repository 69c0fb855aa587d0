//! What a repair came to, for people and machines.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::ExitCode;

use kvfs_fs::check::Problem;
use serde_json::json;

use crate::error::Code;

/// All that a repair found and did.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Damage of the device.
    pub(super) findings: Vec<String>,
    /// What was deleted lately may be there again.
    pub(super) is_uncertain: bool,
    pub(super) fixed: Vec<Problem>,
    pub(super) lost: Vec<Problem>,
    /// Lost changes that are not listed.
    pub(super) lost_more: u64,
    /// Named snapshots that may miss something, too.
    pub(super) snapshots: BTreeSet<String>,
    /// What could not be repaired.
    pub(super) left: Vec<String>,
}

impl Report {
    fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.fixed.is_empty() && self.lost.is_empty() && self.left.is_empty()
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        let code = if self.is_clean() {
            return ExitCode::SUCCESS;
        } else if !self.left.is_empty() {
            Code::Damaged
        } else if self.lost.is_empty() && !self.is_uncertain {
            Code::Repaired
        } else {
            Code::RepairedInPart
        };
        ExitCode::from(code as u8)
    }

    pub(super) fn as_text(&self, is_dry: bool) -> String {
        let mut text = String::new();
        let mut line = |head: &str, what: &dyn std::fmt::Display| {
            // Writing to a string never fails.
            let _ = writeln!(text, "{head}: {what}");
        };
        self.findings.iter().for_each(|finding| line("damaged", finding));
        self.fixed.iter().for_each(|fixed| line(if is_dry { "to put right" } else { "put right" }, fixed));
        let mut told = BTreeSet::new();
        let lost = self.lost.iter().filter(|lost| told.insert((&lost.place, &lost.detail)));
        lost.for_each(|lost| line("lost", lost));
        if self.lost_more > 0 {
            line("lost", &format!("{} more changes at the end of the journal", self.lost_more));
        }
        if self.is_uncertain {
            line("uncertain", &"what was deleted or overwritten lately may have come back");
        }
        if !self.snapshots.is_empty() {
            let names: Vec<&str> = self.snapshots.iter().map(String::as_str).collect();
            let names = names.join(", ");
            let what = "other stores and repositories know them no more: send them whole";
            line("snapshots", &format!("some of what is lost may be missing in {names}, too; {what}"));
        }
        self.left.iter().for_each(|left| line("still damaged", left));
        // What is damaged on the device shows in what is put right and what is lost; it counts there.
        let (damaged, fixed) = (self.findings.len(), self.fixed.len());
        let lost = self.lost.iter().map(|lost| (&lost.place, &lost.detail)).collect::<BTreeSet<_>>().len();
        let lost = lost as u64 + self.lost_more;
        let counted = format!("{damaged} damaged places, {fixed} things put right, {lost} lost");
        let verdict = match (self.is_clean(), is_dry) {
            (true, _) => "clean: nothing to repair".to_owned(),
            (false, true) => format!("a repair would find: {counted}"),
            (false, false) => format!("repaired: {counted}"),
        };
        let _ = writeln!(text, "{verdict}");
        text
    }

    pub(super) fn as_json(&self, is_dry: bool) -> String {
        let list = |problems: &[Problem]| -> Vec<serde_json::Value> {
            let mut told = BTreeSet::new();
            let once = problems.iter().filter(move |problem| told.insert((&problem.place, &problem.detail)));
            once.map(|p| json!({ "place": p.place, "detail": p.detail })).collect()
        };
        let value = json!({
            "clean": self.is_clean(),
            "dry_run": is_dry,
            "damaged": self.findings,
            "put_right": list(&self.fixed),
            "lost": list(&self.lost),
            "lost_unlisted": self.lost_more,
            "uncertain": self.is_uncertain,
            "snapshots": self.snapshots,
            "still_damaged": self.left,
        });
        format!("{value}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_counts_and_the_code_tells_whether_something_is_lost() {
        let mut report = Report::default();
        assert_eq!(report.as_text(false), "clean: nothing to repair\n");
        assert_eq!(report.exit_code(), ExitCode::SUCCESS);
        report.findings.push("piece 3: …".into());
        assert_eq!(report.exit_code(), ExitCode::from(11));
        let lost = || Problem { place: "/a".into(), detail: "bytes 0-4096 are lost".into() };
        // A loss that is found twice counts once.
        report.lost.extend([lost(), lost()]);
        assert_eq!(
            report.as_text(true),
            "damaged: piece 3: …\nlost: /a: bytes 0-4096 are lost\n\
             a repair would find: 1 damaged places, 0 things put right, 1 lost\n"
        );
        assert_eq!(report.exit_code(), ExitCode::from(12));
        report.left.push("still".into());
        assert_eq!(report.exit_code(), ExitCode::from(5));
    }
}
