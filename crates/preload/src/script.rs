//! The first line of a script: `#!` interpreter and at most one argument.
//!
//! Thread safety: pure. Invariant: as the kernel reads it: blanks around both parts are dropped, the argument
//! is one.

/// The interpreter, and its argument.
pub(crate) fn interpreter(head: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let line = head.strip_prefix(b"#!")?;
    let line = &line[..line.iter().position(|b| *b == b'\n' || *b == 0)?];
    let line = trim(line);
    let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
    let argument = trim(&line[end..]);
    (end > 0).then_some((&line[..end], (!argument.is_empty()).then_some(argument)))
}

fn trim(line: &[u8]) -> &[u8] {
    line.trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::interpreter;

    #[test]
    fn interpreter_has_at_most_one_argument() {
        assert_eq!(interpreter(b"#!/bin/sh\n"), Some((&b"/bin/sh"[..], None)));
        assert_eq!(
            interpreter(b"#! /usr/bin/env -S a b \nx"),
            Some((&b"/usr/bin/env"[..], Some(&b"-S a b"[..])))
        );
        assert_eq!(interpreter(b"#!\n"), None);
        assert_eq!(interpreter(b"\x7fELF"), None);
    }
}
