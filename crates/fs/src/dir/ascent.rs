//! Walking up from a directory to the root, where damage or a hostile stream may have made a circle.
//!
//! Thread safety: a plain value. Invariant: a walk that comes by a directory again ends with an error, within
//! three times the directories that it has seen; nothing is remembered of them (Brent's algorithm).

use crate::{FsError, Result};

/// One walk.
#[derive(Debug, Default)]
pub(crate) struct Ascent {
    mark: Option<u64>,
    steps: u64,
    steps_max: u64,
}

impl Ascent {
    /// Called with each directory of the walk.
    ///
    /// # Errors
    /// `Corrupt`: the directory is above itself.
    pub(crate) fn step(&mut self, directory: u64) -> Result<()> {
        if self.mark == Some(directory) {
            return Err(FsError::corrupt(
                format!("directory inode {directory}"),
                "it is inside of itself; `kvfs check --repair` brings it to lost+found",
            ));
        }
        if self.steps == self.steps_max {
            self.mark = Some(directory);
            self.steps_max = 2 * self.steps_max + 1;
            self.steps = 0;
        }
        self.steps += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walk_in_a_circle_of_any_length_ends() {
        for (tail, circle) in [(0, 1), (0, 2), (1, 1), (7, 3), (100, 1000), (1000, 7)] {
            let mut ascent = Ascent::default();
            let place = |step: u64| if step < tail { step } else { tail + (step - tail) % circle };
            let ended = (0..4 * (tail + circle) + 4).find(|&step| ascent.step(place(step)).is_err());
            assert!(ended.is_some_and(|step| step >= circle), "{tail} {circle} {ended:?}");
        }
        let mut ascent = Ascent::default();
        assert!((0..100_000).all(|directory| ascent.step(directory).is_ok()));
    }
}
