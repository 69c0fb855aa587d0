//! Pages of the manual, one for each command.
//!
//! Clap's own generator writes names, synopsis, options; what stands below the help of a command (examples,
//! exit codes, notes) is kept line by line here, because the generator would fill it into paragraphs.

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::args::Cli;
use crate::mount_helper;

/// One page.
pub(super) struct Page {
    /// As in `man kvfs-mount`.
    pub(super) name: String,
    pub(super) section: &'static str,
    pub(super) text: Vec<u8>,
}

/// All of them.
pub(super) fn pages() -> Vec<Page> {
    let mut pages = Vec::new();
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    collect(&program, &mut pages);
    pages.extend(mount_helper::commands().into_iter().map(|command| page(command, "8")));
    pages
}

/// The page of a built command, and of those below it.
fn collect(command: &Command, pages: &mut Vec<Page>) {
    if command.is_hide_set() {
        return;
    }
    pages.push(page(command.clone(), "1"));
    for below in command.get_subcommands() {
        collect(below, pages);
    }
}

fn page(command: Command, section: &'static str) -> Page {
    let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let synopsis = synopsis(&command, &name);
    let has_options = command.get_arguments().any(|arg| !arg.is_hide_set());
    let has_subcommands = command.get_subcommands().any(|below| !below.is_hide_set());
    let man =
        Man::new(command).section(section).source(concat!("kvfs ", env!("CARGO_PKG_VERSION"))).manual("kvfs");
    let mut text = Vec::new();
    // Writing into memory does not fail.
    let mut render = |part: fn(&Man, &mut dyn std::io::Write) -> std::io::Result<()>| {
        let _ = part(&man, &mut text);
    };
    render(Man::render_title);
    render(Man::render_name_section);
    render(|_, _| Ok(()));
    text.extend(format!(".SH SYNOPSIS\n{synopsis}\n").into_bytes());
    let mut render = |part: fn(&Man, &mut dyn std::io::Write) -> std::io::Result<()>| {
        let _ = part(&man, &mut text);
    };
    render(Man::render_description_section);
    if has_options {
        render(Man::render_options_section);
    }
    if has_subcommands {
        render(Man::render_subcommands_section);
    }
    text.extend(sections(&notes).into_bytes());
    if name != "kvfs" {
        text.extend(b".SH \"SEE ALSO\"\n\\fBkvfs\\fR(1)\n");
    }
    Page { name, section, text }
}

/// The command's line, with the names of values.
fn synopsis(command: &Command, name: &str) -> String {
    let bold = |text: &str| format!("\\fB{}\\fR", escape(text));
    let values = |argument: &clap::Arg| -> String {
        let names = argument.get_value_names().unwrap_or_default();
        let names: Vec<String> = names.iter().map(|name| format!("\\fI{}\\fR", escape(name))).collect();
        if names.is_empty() { String::new() } else { format!(" {}", names.join(" ")) }
    };
    let mut words = vec![bold(&name.replace('-', " "))];
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let takes = argument.get_action().takes_values();
        let many = argument.get_num_args().is_some_and(|count| count.max_values() > 1)
            || matches!(argument.get_action(), clap::ArgAction::Append);
        let dots = if many { "..." } else { "" };
        let word = match (argument.get_long(), argument.get_short()) {
            (Some("help" | "version"), _) => continue,
            (Some(long), _) if takes => format!("{}{}", bold(&format!("--{long}")), values(argument)),
            (Some(long), _) => bold(&format!("--{long}")),
            (None, Some(short)) if takes => format!("{}{}", bold(&format!("-{short}")), values(argument)),
            (None, Some(short)) => bold(&format!("-{short}")),
            (None, None) => values(argument).trim_start().to_owned(),
        };
        let word = if argument.is_required_set() { word } else { format!("[{word}]") };
        words.push(word + dots);
    }
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        words.push("\\fICOMMAND\\fR".to_owned());
    }
    words.join(" ")
}

/// Blocks between empty lines: one that begins with `Title:` becomes a section of that name, others are
/// notes.
fn sections(notes: &str) -> String {
    let mut text = String::new();
    let mut in_notes = false;
    for block in notes.split("\n\n").filter(|block| !block.trim().is_empty()) {
        let (first, rest) = block.split_once('\n').unwrap_or((block, ""));
        let title = first.strip_suffix(':').filter(|_| !rest.is_empty());
        let heading = match title {
            Some(title) => format!(".SH \"{}\"\n", escape(title).to_uppercase()),
            None if in_notes => ".sp\n".to_owned(),
            None => ".SH NOTES\n".to_owned(),
        };
        in_notes = title.is_none();
        text.push_str(&heading);
        let body = if in_notes { block } else { rest };
        text.push_str(".nf\n");
        for line in body.lines() {
            text.push_str(&escape(line));
            text.push('\n');
        }
        text.push_str(".fi\n");
    }
    text
}

/// A line as it is, whatever it begins with.
fn escape(line: &str) -> String {
    let escaped = line.replace('\\', "\\e").replace('-', "\\-");
    if escaped.starts_with(['.', '\'']) { format!("\\&{escaped}") } else { escaped }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_become_sections_line_by_line() {
        let text = sections(
            "Examples:\n  kvfs check a\n  .hidden\n\nPlain \\ words.\n\nMore.\n\nExit codes:\n  0 done",
        );
        assert_eq!(
            text,
            ".SH \"EXAMPLES\"\n.nf\n  kvfs check a\n  .hidden\n.fi\n.SH NOTES\n.nf\nPlain \\e words.\n.fi\n\
             .sp\n.nf\nMore.\n.fi\n.SH \"EXIT CODES\"\n.nf\n  0 done\n.fi\n"
        );
        assert_eq!(escape(".TH"), "\\&.TH");
    }

    #[test]
    fn synopsis_has_the_names_of_values() {
        let pages = pages();
        let text = |name: &str| {
            let page = pages.iter().find(|page| page.name == name).expect("is there");
            String::from_utf8_lossy(&page.text).into_owned()
        };
        let scan = text("kvfs-kv-scan");
        assert!(
            scan.contains("[\\fB\\-\\-limit\\fR \\fIN\\fR]") && scan.contains("\\fIKEYSPACE\\fR"),
            "{scan}"
        );
        let mount = text("kvfs-mount");
        assert!(
            mount.contains("[\\fB\\-o\\fR \\fIOPTIONS\\fR]") && mount.contains("\\fISTORE\\fR"),
            "{mount}"
        );
    }

    #[test]
    fn every_command_that_is_shown_has_a_page() {
        let pages = pages();
        let names: Vec<&str> = pages.iter().map(|page| page.name.as_str()).collect();
        for name in
            ["kvfs", "kvfs-mount", "kvfs-sync", "kvfs-txn-run", "kvfs-snapshot-send", "mount.fuse.kvfs"]
        {
            assert!(names.contains(&name), "{name}: {names:?}");
        }
        assert!(!names.contains(&"kvfs-txn-init") && !names.contains(&"kvfs-pages"));
        for page in &pages {
            let text = String::from_utf8_lossy(&page.text);
            assert!(text.contains(".TH") && text.contains(".SH NAME"), "{}", page.name);
            assert!(!text.contains("in\\-background"), "{}", page.name);
        }
    }
}
