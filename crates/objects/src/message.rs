//! What a service answers, for people.
//!
//! Thread safety: functions. Invariant: a message is one line, whatever the service has answered.

/// The message without the document that a service answers with: its code and message alone.
pub fn brief(text: &str) -> String {
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
