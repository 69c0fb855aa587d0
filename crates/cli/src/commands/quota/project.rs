//! `kvfs quota project`: which trees belong to projects.
//!
//! As other properties, projects are set by a call on each path, so that transactions and branches mean for
//! them what they mean for content. From the top down: what is made or moved below a directory that has its
//! project gets it, or is refused, so that nothing is missed that others do meanwhile.

use std::path::Path;

use kvfs_fs::PROJECT_ATTRIBUTE;
use kvfs_store::progress::Unit;
use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use rustix::io::Errno;

use crate::args::{ProjectCommand, TableForm};
use crate::error::{CliError, Code, Result};
use crate::names::Table;
use crate::output::{print as say, printable_bytes, printable_path, with_bytes};
use crate::progress::Bar;
use crate::tree::walk;

/// Longest value of the attribute (bytes).
const VALUE_LEN_MAX: usize = 64;

/// Everything but the list, which the store makes.
pub(super) fn run(command: &ProjectCommand) -> Result<()> {
    match command {
        ProjectCommand::Set { path, project } => match Table::Projects.number(project)? {
            0 => Err(CliError::new(
                Code::Usage,
                "project 0 is none; `kvfs quota project clear` takes one away",
            )),
            id => give(path, id),
        },
        ProjectCommand::Clear { path } => give(path, 0),
        ProjectCommand::Get { paths } => paths.iter().try_for_each(|path| show(path, paths.len() > 1)),
        ProjectCommand::List { .. } => Ok(()),
    }
}

fn show(path: &Path, with_path: bool) -> Result<()> {
    let mut value = [0; VALUE_LEN_MAX];
    let len = lgetxattr(path, PROJECT_ATTRIBUTE, &mut value[..])
        .map_err(|error| explain("read the project of", path, error))?;
    let value = String::from_utf8_lossy(&value[..len]);
    if with_path { say(&format!("{}: {value}\n", printable_path(path))) } else { say(&format!("{value}\n")) }
}

/// Gives the project to `top` and all below it on the same mount.
fn give(top: &Path, id: u32) -> Result<()> {
    let bar = Bar::new("giving files to the project");
    let value = id.to_string();
    let mut done = 0;
    walk(top, &mut |found| {
        done += 1;
        bar.show("giving files to the project", Unit::Items, done, 0);
        match lsetxattr(found.at, PROJECT_ATTRIBUTE, value.as_bytes(), XattrFlags::empty()) {
            // Others work meanwhile.
            Err(Errno::NOENT) => Ok(false),
            set => set.map(|()| true).map_err(|error| explain("change the project of", found.path, error)),
        }
    })
}

/// The trees, as the store has found them.
pub(super) fn print(trees: &[(u32, Vec<u8>)], form: TableForm) -> Result<()> {
    if form.json {
        let line = |(id, path): &(u32, Vec<u8>)| {
            let value = serde_json::json!({ "id": id, "name": Table::Projects.name(*id) });
            with_bytes(value, "directory", Some(path))
        };
        return say(&format!("{}\n", serde_json::Value::Array(trees.iter().map(line).collect())));
    }
    let head = format!("{:>10}  {:16}  DIRECTORY\n", "PROJECT", "NAME");
    let line = |(id, path): &(u32, Vec<u8>)| {
        let name = if form.numeric { None } else { Table::Projects.name(*id) };
        format!("{id:>10}  {:16}  {}\n", name.as_deref().unwrap_or("-"), printable_bytes(path))
    };
    say(&(head + &trees.iter().map(line).collect::<String>()))
}

fn explain(what: &str, path: &Path, error: Errno) -> CliError {
    match error {
        Errno::OPNOTSUPP | Errno::NODATA => {
            let message = format!("{} has no project: is it on kvfs?", path.display());
            CliError::new(Code::NotMounted, message)
        }
        Errno::PERM => {
            CliError::new(Code::Denied, "only root and the store's owner give files to projects".to_owned())
        }
        error => CliError::io(what, path, &error.into()),
    }
}
