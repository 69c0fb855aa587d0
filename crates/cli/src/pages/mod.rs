//! What is made from the command line's own description: pages of the manual, completions for shells.
//!
//! [`write_all`] lays them out as below a `share` directory, which `make build` calls.

mod manual;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
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
    let mut command = Cli::command();
    clap_complete::generate(shell, &mut command, "kvfs", &mut text);
    // The generators offer what is hidden, too.
    let mut shown = String::from_utf8_lossy(&text).into_owned();
    for long in hidden_switches(&command) {
        shown = shown.replace(&format!(" --{long} "), " ");
        let offers = [format!("--{long}["), format!("-l {long} ")];
        let lines = shown.lines().filter(|line| !offers.iter().any(|offer| line.contains(offer)));
        shown = lines.flat_map(|line| [line, "\n"]).collect();
    }
    shown.into_bytes()
}

/// The long names of switches that help doesn't show, of a command and those below it.
fn hidden_switches(command: &clap::Command) -> Vec<String> {
    let own = command.get_arguments().filter(|arg| arg.is_hide_set());
    let own = own.filter_map(|arg| arg.get_long().map(str::to_owned));
    own.chain(command.get_subcommands().flat_map(hidden_switches)).collect()
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

    /// They are taken out of the completions by name alone.
    #[test]
    fn no_switch_that_is_shown_has_the_name_of_a_hidden_one() {
        fn shown(command: &clap::Command, longs: &mut Vec<String>) {
            let own = command.get_arguments().filter(|arg| !arg.is_hide_set());
            longs.extend(own.filter_map(|arg| arg.get_long().map(str::to_owned)));
            command.get_subcommands().for_each(|below| shown(below, longs));
        }
        let command = Cli::command();
        let (hidden, mut longs) = (hidden_switches(&command), Vec::new());
        shown(&command, &mut longs);
        assert!(!hidden.is_empty() && longs.len() > hidden.len());
        assert!(hidden.iter().all(|long| !longs.contains(long)), "{hidden:?}");
    }
}
