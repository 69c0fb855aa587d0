//! Letters of three by five pixels, for pictures without any other font.

/// Pixels of a letter, without the gap behind it.
pub(super) const WIDTH: usize = 3;
pub(super) const HEIGHT: usize = 5;

/// Lower case is as upper case, and what is not known a blank.
const LETTERS: &str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ.,:;%-_/+=";

/// Of each an octal digit for each row, from the top; in a digit the leftmost pixel is the highest bit.
const ROWS: [u16; LETTERS.len()] = [
    0o75557, 0o26227, 0o71747, 0o71717, 0o55711, 0o74717, 0o74757, 0o71111, 0o75757, 0o75717, 0o25755,
    0o65656, 0o34443, 0o65556, 0o74647, 0o74644, 0o34553, 0o55755, 0o72227, 0o11152, 0o55655, 0o44447,
    0o57755, 0o65555, 0o25552, 0o65644, 0o25573, 0o65655, 0o34216, 0o72222, 0o55557, 0o55552, 0o55775,
    0o55255, 0o55222, 0o71247, 0o00002, 0o00024, 0o02020, 0o02024, 0o51245, 0o00700, 0o00007, 0o11244,
    0o02720, 0o07070,
];

/// The pixels of a letter, `(x, y)`.
pub(super) fn pixels(letter: char) -> impl Iterator<Item = (usize, usize)> {
    let letter = letter.to_ascii_uppercase();
    let rows = LETTERS.find(letter).map_or(0, |place| ROWS[place]);
    let is_set = move |x: usize, y: usize| rows >> (3 * (HEIGHT - 1 - y) + (WIDTH - 1 - x)) & 1 == 1;
    (0..HEIGHT).flat_map(|y| (0..WIDTH).map(move |x| (x, y))).filter(move |&(x, y)| is_set(x, y))
}
