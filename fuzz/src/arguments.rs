//! Command lines.

/// Parses the words of the input, one a line.
pub fn run(data: &[u8]) {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    let words = data.split(|byte| *byte == b'\n').take(32);
    let words =
        std::iter::once(OsString::from("kvfs")).chain(words.map(|word| OsString::from_vec(word.to_vec())));
    kvfs_cli::parse_only(words);
}
