//! What commands print: text, and bytes in JSON.
//!
//! Thread safety: plain functions. Invariant: where the reader of standard output has gone (`| head`), the
//! command ends without a word, whatever it was about to print.

/// As that of the standard library, but for a reader that has gone.
macro_rules! println {
    ($($text:tt)*) => { $crate::output::say(format_args!("{}\n", format_args!($($text)*))) };
}

/// As that of the standard library, but for a reader that has gone.
macro_rules! print {
    ($($text:tt)*) => { $crate::output::say(format_args!($($text)*)) };
}

/// As that of the standard library, but for a reader that has gone (`2>&1 | head`): what is said is lost
/// then, and the command goes on.
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::output::remark(format_args!($($text)*)) };
}

use std::borrow::Cow;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::Value;

use crate::error::{CliError, Code, Result};

/// Writes text to standard output.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| CliError::io("write", Path::new("standard output"), &error))
}

/// Writes to standard output, or ends the process as SIGPIPE would.
pub(crate) fn say(text: std::fmt::Arguments<'_>) {
    if let Err(error) = print(&text.to_string()) {
        if error.code != Code::ReaderGone {
            eprintln!("kvfs: {error}");
        }
        std::process::exit(i32::from(error.code as u8));
    }
}

/// Writes lines to standard error, if that is read. Names in them steer no terminal.
pub(crate) fn remark(text: std::fmt::Arguments<'_>) {
    let text =
        escaped(&text.to_string(), |c| c.is_control() && !matches!(c, '\n' | '\t')).into_owned() + "\n";
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// On one line: a name can neither steer a terminal nor look like several lines.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, char::is_control)
}

/// As [`printable`], of bytes.
pub(crate) fn printable_bytes(bytes: &[u8]) -> String {
    printable(&String::from_utf8_lossy(bytes)).into_owned()
}

/// As [`printable`], of a path.
pub(crate) fn printable_path(path: &Path) -> String {
    printable_bytes(path.as_os_str().as_bytes())
}

fn escaped(text: &str, is_meant: impl Fn(char) -> bool) -> Cow<'_, str> {
    if text.contains(&is_meant) {
        let escape = |c: char| if is_meant(c) { c.escape_default().to_string() } else { c.to_string() };
        return text.chars().map(escape).collect::<String>().into();
    }
    text.into()
}

/// Puts bytes into an object as [`put_bytes`] does.
pub(crate) fn with_bytes(mut value: Value, name: &str, bytes: Option<&[u8]>) -> Value {
    if let Value::Object(object) = &mut value {
        put_bytes(object, name, bytes);
    }
    value
}

/// Members of a JSON object.
pub(crate) type Object = serde_json::Map<String, Value>;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Puts bytes as text under `name`. Where they are no text, `name` has what can be shown of them, and all of
/// them are under `name` with the ending `_base64`.
pub(crate) fn put_bytes(object: &mut Object, name: &str, bytes: Option<&[u8]>) {
    let text = bytes.map(String::from_utf8_lossy);
    object.insert(name.to_owned(), text.as_deref().map_or(Value::Null, Value::from));
    if let Some(bytes) = bytes.filter(|bytes| std::str::from_utf8(bytes).is_err()) {
        object.insert(format!("{name}_base64"), base64(bytes).into());
    }
}

/// The bytes that [`put_bytes`] has put under `name`; `None`: none, or nothing that it puts.
pub(crate) fn get_bytes(object: &Value, name: &str) -> Option<Vec<u8>> {
    match object.get(format!("{name}_base64")) {
        Some(encoded) => from_base64(encoded.as_str()?),
        None => Some(object.get(name)?.as_str()?.as_bytes().to_vec()),
    }
}

/// As RFC 4648 has it, with padding.
pub(crate) fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().enumerate().fold(0_u32, |sum, (at, &byte)| sum | u32::from(byte) << (16 - 8 * at));
        for at in 0..4 {
            let digit = DIGITS[(group >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// `None`: it is no base64.
pub(crate) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').as_bytes();
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for chunk in digits.chunks(4) {
        let mut group = 0_u32;
        for (at, digit) in chunk.iter().enumerate() {
            let value = DIGITS.iter().position(|known| known == digit)?;
            group |= (value as u32) << (18 - 6 * at);
        }
        bytes.extend_from_slice(&group.to_be_bytes()[1..chunk.len()]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc_and_comes_back() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
            assert_eq!(from_base64(text).as_deref(), Some(bytes.as_bytes()));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(from_base64(&base64(&all)), Some(all));
        for bad in ["a", "Zg=", "Zg===", "Z!==", "===="] {
            assert_eq!(from_base64(bad), None, "{bad}");
        }
    }

    #[test]
    fn names_are_shown_on_one_line_and_steer_no_terminal() {
        assert_eq!(printable("a\n- etc \u{1b}[31m"), "a\\n- etc \\u{1b}[31m");
        assert!(matches!(printable("dé \\ \"x\""), Cow::Borrowed("dé \\ \"x\"")));
        assert_eq!(printable_bytes(b"\xff\r"), "\u{fffd}\\r");
    }

    #[test]
    fn bytes_that_are_no_text_keep_all_of_them_beside_it() {
        let mut object = Object::new();
        put_bytes(&mut object, "key", Some(b"text"));
        put_bytes(&mut object, "value", Some(b"\xff\0"));
        put_bytes(&mut object, "none", None);
        let object = Value::Object(object);
        assert_eq!(object["key"], "text");
        assert_eq!(object.get("key_base64"), None);
        assert_eq!(get_bytes(&object, "key").as_deref(), Some(&b"text"[..]));
        assert_eq!(get_bytes(&object, "value").as_deref(), Some(&b"\xff\0"[..]));
        assert_eq!(get_bytes(&object, "none"), None);
    }
}
