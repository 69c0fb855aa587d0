//! What is made from the command line's own description: pages of the manual, completions for shells.
//!
//! [`write_all`] lays them out as below a `share` directory, which `make build` calls.

mod manual;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::args::{Cli, CompletionsArgs, PagesArgs};
use crate::error::{CliError, Result};

/// Where each shell looks below `share`, so that nothing must be set up.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/kvfs"),
    (Shell::Zsh, "zsh/site-functions/_kvfs"),
    (Shell::Fish, "fish/vendor_completions.d/kvfs.fish"),
];

/// `kvfs completions SHELL`: to standard output.
pub(crate) fn print_completions(args: &CompletionsArgs) -> Result<ExitCode> {
    let written = std::io::stdout().write_all(&completions(args.shell));
    written.map_err(|error| CliError::io("write", Path::new("standard output"), &error))?;
    Ok(ExitCode::SUCCESS)
}

/// `kvfs pages DIR`.
pub(crate) fn write_all(args: &PagesArgs) -> Result<ExitCode> {
    for (shell, path) in COMPLETIONS {
        write_below(&args.dir, path, &completions(shell))?;
    }
    for page in manual::pages() {
        let path = format!("man/man{0}/{1}.{0}", page.section, page.name);
        write_below(&args.dir, &path, &page.text)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn completions(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut shown(&Cli::command()), "kvfs", &mut text);
    text
}

/// The command as help shows it: the generators offer what is hidden, too. Names are kept to the end of the
/// process.
fn shown(command: &Command) -> Command {
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
    let below = command.get_subcommands().filter(|below| !below.is_hide_set()).map(shown);
    let mut copy = Command::new(&*command.get_name().to_owned().leak()).args(arguments).subcommands(below);
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        copy = copy.version(&*version.to_owned().leak());
    }
    copy
}

fn write_below(dir: &Path, path: &str, text: &[u8]) -> Result<()> {
    let path = dir.join(path);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(|error| CliError::io("make", parent, &error))?;
    }
    fs::write(&path, text).map_err(|error| CliError::io("write", &path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn completions_offer_nothing_that_is_hidden() {
        fn hidden(command: &Command, names: &mut Vec<String>) {
            let own = command.get_arguments().filter(|argument| argument.is_hide_set());
            names.extend(own.filter_map(|argument| argument.get_long().map(|long| format!("--{long}"))));
            for below in command.get_subcommands() {
                if below.is_hide_set() {
                    names.push(below.get_name().to_owned());
                }
                hidden(below, names);
            }
        }
        let mut names = Vec::new();
        hidden(&Cli::command(), &mut names);
        assert!(
            names.contains(&"--in-background".to_owned()) && names.contains(&"pages".to_owned()),
            "{names:?}"
        );
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = String::from_utf8(completions(shell)).expect("is text");
            assert!(text.contains("snapshot") && text.contains("committed"), "{shell}");
            for name in &names {
                // A word of a description may be called like a command.
                let offers = match name.strip_prefix("--") {
                    Some(_) => vec![format!(" {name} "), format!("{name}["), format!("-l {} ", &name[2..])],
                    None => vec![format!("__{name})"), format!("'{name}:"), format!("-a \"{name}\"")],
                };
                assert!(!offers.iter().any(|offer| text.contains(offer)), "{shell} offers {name}");
            }
        }
    }

    #[test]
    fn help_fits_80_columns_and_examples_are_not_wrapped() {
        fn check(command: &mut Command, path: &str) {
            let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for (form, help) in [("--help", command.render_long_help()), ("-h", command.render_help())] {
                let help = help.to_string();
                for line in help.lines() {
                    assert!(line.chars().count() <= 80, "{path} {form}: {line}");
                }
                for line in notes.lines() {
                    assert!(help.lines().any(|shown| shown == line), "{path} {form} wraps: {line}");
                }
            }
            let names: Vec<String> =
                command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
            for name in names {
                if let Some(below) = command.find_subcommand_mut(&name) {
                    check(below, &format!("{path} {name}"));
                }
            }
        }
        let mut program = Cli::command();
        program.build();
        check(&mut program, "kvfs");
        for mut command in crate::mount_helper::commands() {
            let name = command.get_name().to_owned();
            check(&mut command, &name);
        }
    }

    #[test]
    fn exit_codes_are_all_in_the_help() {
        let help = Cli::command().render_long_help().to_string();
        let (_, table) = help.split_once("Exit codes:\n").expect("a table");
        let told: Vec<u8> = table.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let all = Code::ALL.map(|code| code as u8);
        assert!(all.iter().all(|code| told.contains(code)), "{all:?}, told: {told:?}");
        assert!(told.iter().all(|code| *code == 0 || all.contains(code)), "{all:?}, told: {told:?}");
    }
}
