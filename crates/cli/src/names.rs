//! Names of users, groups and projects, for people.
//!
//! Thread safety: a name is looked up once in a process. Invariant: an id that has no name is shown as its
//! number.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use kvfs_locks::{Mutex, class};

use crate::error::{CliError, Code, Result};

/// A table of lines of fields between colons, of which the first is a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Table {
    /// passwd(5)
    Users,
    /// group(5)
    Groups,
    /// `/etc/projid`, as projid(5) of XFS describes it.
    Projects,
}

/// Names by table and id; `None`: it has none.
static KNOWN: Mutex<BTreeMap<(Table, u32), Option<String>>, class::CliNames> = Mutex::new(BTreeMap::new());

impl Table {
    /// What an entry stands for.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::Users => "user",
            Self::Groups => "group",
            Self::Projects => "project",
        }
    }

    fn database(self) -> &'static str {
        match self {
            Self::Users => "passwd",
            Self::Groups => "group",
            Self::Projects => "projid",
        }
    }

    /// Fields between the name and the number.
    fn skipped(self) -> usize {
        usize::from(self != Self::Projects)
    }

    /// The name of `id`, if it has one.
    pub(crate) fn name(self, id: u32) -> Option<String> {
        let mut known = KNOWN.lock();
        let look_up = || {
            find_name(&self.text(), id, self.skipped())
                .or_else(|| find_name(&self.ask(&id.to_string()), id, self.skipped()))
        };
        known.entry((self, id)).or_insert_with(look_up).clone()
    }

    /// What a table of people shows: the name, or the number where that is asked for or there is none.
    pub(crate) fn shown(self, id: u32, numeric: bool) -> String {
        let name = if numeric { None } else { self.name(id) };
        name.unwrap_or_else(|| id.to_string())
    }

    /// The number that a user means with `name`: a number itself, or that of the name.
    ///
    /// # Errors
    /// There is no such name.
    pub(crate) fn number(self, name: &str) -> Result<u32> {
        if let Ok(number) = name.parse() {
            return Ok(number);
        }
        let (what, path) = (self.what(), self.path());
        find_number(&self.text(), name, self.skipped())
            .or_else(|| find_number(&self.ask(name), name, self.skipped()))
            .ok_or_else(|| {
                CliError::new(Code::Usage, format!("no {what} \"{name}\" in {path}; give the number"))
            })
    }

    fn path(self) -> String {
        format!("/etc/{}", self.database())
    }

    fn text(self) -> String {
        std::fs::read_to_string(self.path()).unwrap_or_default()
    }

    /// Lines of other sources than the table, which the C library asks.
    fn ask(self, key: &str) -> String {
        if self == Self::Projects {
            return String::new();
        }
        let mut command = Command::new("getent");
        command.args([self.database(), key]).stdin(Stdio::null()).stderr(Stdio::null());
        let answer = command.output().ok().filter(|answer| answer.status.success());
        answer.map(|answer| String::from_utf8_lossy(&answer.stdout).into_owned()).unwrap_or_default()
    }
}

/// The name of a user.
pub(crate) fn user(uid: u32) -> String {
    Table::Users.shown(uid, false)
}

/// The name of a group.
pub(crate) fn group(gid: u32) -> String {
    Table::Groups.shown(gid, false)
}

fn find_number(table: &str, name: &str, skipped: usize) -> Option<u32> {
    let mut lines = table.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| (fields.next()? == name).then(|| fields.nth(skipped)?.trim().parse().ok())?)
}

fn find_name(table: &str, id: u32, skipped: usize) -> Option<String> {
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(skipped)?.trim().parse() == Ok(id) && !name.is_empty()).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_in_the_table_has_its_name_and_another_one_its_number() {
        let table = "root:x:0:0:root:/root:/bin/sh\nbad\nann:x:1000:100::/home/ann:/bin/sh\n";
        assert_eq!(find_name(table, 1000, 1).as_deref(), Some("ann"));
        assert_eq!(find_name(table, 100, 1), None);
        assert_eq!(find_number(table, "ann", 1), Some(1000));
        assert_eq!(find_number(table, "x", 1), None);
        let projects = "web:42\nlogs:7\n";
        assert_eq!(find_number(projects, "logs", 0), Some(7));
        assert_eq!(find_name(projects, 42, 0).as_deref(), Some("web"));
        assert_eq!((user(0), user(4_123_456_789)), ("root".to_owned(), "4123456789".to_owned()));
        assert_eq!(Table::Users.shown(0, true), "0");
        assert_eq!(Table::Projects.number("17").ok(), Some(17));
        assert!(Table::Users.number("no such user").is_err());
    }
}
