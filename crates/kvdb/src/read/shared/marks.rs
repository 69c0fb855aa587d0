//! Which sectors are referred to, and which more than once.
//!
//! Thread safety: plain values.

use std::ops::Range;

/// Two bits for each sector of a window.
pub(super) struct Marks {
    window: Range<u64>,
    seen: Vec<u64>,
    repeated: Vec<u64>,
}

impl Marks {
    pub(super) fn of(window: Range<u64>) -> Self {
        let words = (window.end - window.start).div_ceil(64) as usize;
        Self { window, seen: vec![0; words], repeated: vec![0; words] }
    }

    /// What the marks of so many sectors take (bytes).
    pub(super) fn memory_bytes(sectors: u64) -> u64 {
        2 * sectors.div_ceil(64) * 8
    }

    /// One more reference to these, as far as they are in the window.
    pub(super) fn note(&mut self, sectors: &Range<u64>) {
        for (word, bits) in self.words(sectors) {
            self.repeated[word] |= self.seen[word] & bits;
            self.seen[word] |= bits;
        }
    }

    /// Whether anything of these is referred to more than once.
    pub(super) fn has_repeated(&self, sectors: &Range<u64>) -> bool {
        self.words(sectors).any(|(word, bits)| self.repeated[word] & bits != 0)
    }

    /// The words that have bits of these sectors, and which bits.
    fn words(&self, sectors: &Range<u64>) -> impl Iterator<Item = (usize, u64)> + use<> {
        let within = sectors.start.max(self.window.start)..sectors.end.min(self.window.end);
        let from = within.start.saturating_sub(self.window.start);
        let to = within.end.saturating_sub(self.window.start);
        let words = if from < to { from / 64..to.div_ceil(64) } else { 0..0 };
        words.map(move |word| {
            let low = from.max(word * 64) - word * 64;
            let high = to.min(word * 64 + 64) - word * 64;
            let below = if high == 64 { u64::MAX } else { (1 << high) - 1 };
            (word as usize, below & (u64::MAX << low))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_within_the_window_are_those_of_what_was_noted_twice() {
        let ranges = [(90, 130), (100, 101), (163, 164), (164, 300), (10, 90), (299, 400), (228, 229)];
        let mut marks = Marks::of(100..300);
        for (start, end) in ranges {
            marks.note(&(start..end));
        }
        for sector in 0..400 {
            let count = ranges.iter().filter(|&&(start, end)| (start..end).contains(&sector)).count();
            let expected = count > 1 && (100..300).contains(&sector);
            assert_eq!(marks.has_repeated(&(sector..sector + 1)), expected, "{sector}");
        }
        assert!(marks.has_repeated(&(0..101)) && marks.has_repeated(&(200..229)));
        assert!(!marks.has_repeated(&(101..228)) && !marks.has_repeated(&(150..150)));
        assert!(!marks.has_repeated(&(350..400)), "nothing is known of what lies elsewhere");
    }
}
