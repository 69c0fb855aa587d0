//! What an error of `SlateDB` or of object storage is to a store.
//!
//! Thread safety: functions. Invariant: a message is one line, whatever the service has answered.

use std::io;

use kvfs_store::StoreError;
use slatedb::{CloseReason, Error, ErrorKind};

/// Why a store that was fenced takes no more writes.
pub(crate) const TAKEN_OVER: &str =
    "another mount has taken this store over; what was not synced by then is lost to this one";

/// `what` was being done.
pub(crate) fn of_slatedb(what: &str, error: &Error) -> StoreError {
    match error.kind() {
        ErrorKind::Closed(CloseReason::Fenced) => StoreError::Failed { reason: TAKEN_OVER.into() },
        ErrorKind::Closed(CloseReason::Clean) => StoreError::Failed { reason: "it was closed".into() },
        ErrorKind::Data => StoreError::corrupt(format!("SlateDB, while {what}"), brief(&error.to_string())),
        _ => StoreError::io(format!("{what} (SlateDB)"), io::Error::other(brief(&error.to_string()))),
    }
}

/// `what` was being done with objects beside the database.
pub(crate) fn of_objects(what: impl Into<String>, error: &object_store::Error) -> StoreError {
    let kind = match error {
        object_store::Error::NotFound { .. } => io::ErrorKind::NotFound,
        object_store::Error::AlreadyExists { .. } => io::ErrorKind::AlreadyExists,
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            io::ErrorKind::PermissionDenied
        }
        _ => io::ErrorKind::Other,
    };
    StoreError::io(what, io::Error::new(kind, brief(&error.to_string())))
}

/// The message without the document that a service answers with: its code and message alone.
fn brief(text: &str) -> String {
    let within = |tag: &str| {
        let (_, from) = text.split_once(&format!("<{tag}>"))?;
        from.split_once(&format!("</{tag}>")).map(|(content, _)| content)
    };
    let begin = text.find("<?xml").or_else(|| text.find("<Error>")).unwrap_or(text.len());
    let answer = [within("Code"), within("Message")].into_iter().flatten().collect::<Vec<_>>().join(": ");
    let line = |text: &str| text.replace(|c: char| c.is_control(), " ");
    format!("{} {}", line(&text[..begin]).trim_end(), line(&answer)).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_with_what_the_service_says() {
        let text = "got 403 Forbidden: <?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code><Message>Not you\n</Message>\
             <HostId>x</HostId></Error>";
        assert_eq!(brief(text), "got 403 Forbidden: AccessDenied: Not you");
        assert_eq!(brief("plain\ntext"), "plain text");
        assert_eq!(brief("<Error><Code>A</Code></Error>"), "A");
    }
}
