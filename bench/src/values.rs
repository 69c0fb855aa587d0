//! Values that stand by themselves, as they are in a JSON file: what an experiment in parts has measured.
//!
//! Thread safety: plain values. Invariants: at most one entry for each part and run; a part has the same
//! title in all runs.

use crate::host::Machine;
use crate::json;
use crate::summary::Summary;
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// One value.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Value {
    /// Its name in tables and goals, `part.value`.
    pub key: String,
    /// In bytes, seconds, or a ratio.
    pub value: f64,
}

/// A part of an experiment, done once.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Part {
    /// Its name in options.
    pub name: String,
    /// With its sizes, for people.
    pub title: String,
    /// Counted from 0.
    pub run: u32,
    /// What its random choices follow from.
    pub seed: u64,
    /// How long all of it took.
    pub seconds: f64,
    /// What it measured.
    pub values: Vec<Value>,
    /// What else there is to tell, one line each.
    pub notes: Vec<String>,
}

/// The file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Values {
    /// One for each invocation that added something.
    pub machines: Vec<Machine>,
    /// All parts that were done.
    pub parts: Vec<Part>,
    #[serde(skip)]
    path: Option<PathBuf>,
}

impl Values {
    /// Values that are saved in `path`; with `is_resumed` those that are there are kept.
    pub fn open(path: Option<&Path>, is_resumed: bool) -> Result<Self> {
        let mut values = match path {
            Some(path) if is_resumed && path.exists() => json::load(path)?,
            _ => Self::default(),
        };
        values.path = path.map(Path::to_owned);
        Ok(values)
    }

    /// Writes the file, if there is one to write: whole or not at all.
    pub fn save(&self) -> Result<()> {
        self.path.as_ref().map_or(Ok(()), |path| json::save(path, self))
    }

    /// Whether this was measured.
    ///
    /// # Errors
    /// It was, with other sizes.
    pub fn holds(&self, name: &str, title: &str, run: u32) -> Result<bool> {
        let Some(part) = self.parts.iter().find(|part| part.name == name) else { return Ok(false) };
        ensure!(
            part.title == title,
            "the results hold {:?}, this would be {title:?}: take another file",
            part.title
        );
        Ok(self.parts.iter().any(|part| part.name == name && part.run == run))
    }

    /// Adds a part; one of the same run is replaced.
    pub fn add(&mut self, part: Part) {
        self.parts.retain(|known| known.name != part.name || known.run != part.run);
        self.parts.push(part);
    }

    /// A value in all runs that have it.
    pub fn summary(&self, key: &str) -> Option<Summary> {
        let values = self.parts.iter().flat_map(|part| &part.values).filter(|value| value.key == key);
        Summary::of(values.map(|value| value.value).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(run: u32, value: f64) -> Part {
        let values = vec![Value { key: "a.b".into(), value }];
        Part { name: "a".into(), title: "A, 1 GiB".into(), run, values, ..Part::default() }
    }

    #[test]
    fn part_that_is_repeated_replaces_that_of_its_run() {
        let mut values = Values::default();
        for (run, value) in [(0, 1.0), (1, 3.0), (0, 2.0)] {
            values.add(part(run, value));
        }
        let summary = values.summary("a.b").expect("measured");
        assert!((summary.min - 2.0).abs() < 1e-9 && (summary.max - 3.0).abs() < 1e-9);
        assert!(values.summary("a.c").is_none());
    }

    #[test]
    fn parts_that_are_there_are_not_measured_again_and_other_sizes_are_refused() {
        let mut values = Values::default();
        assert!(!values.holds("a", "A, 1 GiB", 0).expect("nothing there"));
        values.add(part(0, 1.0));
        assert!(values.holds("a", "A, 1 GiB", 0).expect("the same"));
        assert!(!values.holds("a", "A, 1 GiB", 1).expect("another run"));
        assert!(values.holds("a", "A, 2 GiB", 0).is_err());
    }
}
