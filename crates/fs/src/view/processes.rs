//! What the processes are called that change the main line while transactions are open, so that messages can
//! say it after they have ended.
//!
//! Thread safety: one short lock, not held while a name is asked for. Invariants: bounded; a process is asked
//! for its name at most once in [`FRESH_FOR`].

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use kvfs_locks::{Mutex, class};

use crate::FileSystem;

/// Number of processes of which one generation of names is.
const GENERATION_LEN: usize = 512;

/// How long a name holds: a number may be another process's later, or the process run another program.
const FRESH_FOR: Duration = Duration::from_millis(100);

/// Asks the system what a process is called.
type CommandOf = fn(u32) -> Option<String>;

#[derive(Default)]
struct Names {
    /// With the time at which it was asked for; `None`: it had none.
    new: HashMap<u32, (Duration, Option<String>)>,
    /// Those of before, which go when there are as many new ones.
    old: HashMap<u32, (Duration, Option<String>)>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Processes {
    /// `None`: nothing is asked.
    command_of: OnceLock<CommandOf>,
    names: Mutex<Names, class::FsViewProcessesNames>,
}

/// Lets messages say what processes on the main line are called: `command_of` is asked by their numbers,
/// seldom, and may read a file.
pub fn name_processes(fs: &FileSystem, command_of: fn(u32) -> Option<String>) {
    let _ = fs.shared.processes.command_of.set(command_of);
}

impl Processes {
    /// Process `pid` is about to change something, at time `now`.
    pub(super) fn see(&self, pid: u32, now: Duration) {
        let Some(command_of) = self.command_of.get().filter(|_| pid != 0) else { return };
        let is_known = |(asked_at, _): &(Duration, _)| now.saturating_sub(*asked_at) < FRESH_FOR;
        if self.names.lock().new.get(&pid).is_some_and(is_known) {
            return;
        }
        let command = command_of(pid).filter(|command| !command.is_empty());
        let mut names = self.names.lock();
        if names.new.len() >= GENERATION_LEN && !names.new.contains_key(&pid) {
            names.old = std::mem::take(&mut names.new);
        }
        names.new.insert(pid, (now, command));
    }

    /// What it was called when it changed something last.
    pub(super) fn command(&self, pid: u32) -> Option<String> {
        let names = self.names.lock();
        names.new.get(&pid).or_else(|| names.old.get(&pid))?.1.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn process_is_asked_for_its_name_once_in_a_while_and_names_are_bounded() {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let processes = Processes::default();
        processes.see(7, Duration::ZERO);
        assert_eq!(processes.command(7), None, "nothing is asked");
        let name = |pid| (pid != 8).then(|| format!("p{pid}.{}", ASKED.fetch_add(1, Ordering::Relaxed)));
        processes.command_of.set(name).expect("is not set");
        for _ in 0..3 {
            processes.see(7, Duration::ZERO);
        }
        assert_eq!(processes.command(7).as_deref(), Some("p7.0"));
        processes.see(7, FRESH_FOR);
        processes.see(8, FRESH_FOR);
        processes.see(0, FRESH_FOR);
        assert_eq!(processes.command(7).as_deref(), Some("p7.1"), "it may be another program by now");
        assert_eq!((processes.command(8), processes.command(0)), (None, None));
        for pid in 1000..3000 {
            processes.see(pid, FRESH_FOR);
        }
        let names = processes.names.lock();
        assert!(names.new.len() <= GENERATION_LEN && names.old.len() <= GENERATION_LEN);
        drop(names);
        assert!(processes.command(2999).is_some() && processes.command(7).is_none());
    }
}
