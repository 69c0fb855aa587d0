//! What programs do with what they list.
//!
//! Purpose: a listing with nodes spares programs that look at each file, as `ls -l`, `du` and `rm -r` do, a
//! lookup each. Others go by names and kinds, as `find`, `ls` and shells do. For these, nodes are a third of
//! what a cold walk costs, here and in the kernel, which does not tell who is who. So at times one file of a
//! listing comes without its node: a program that looks at files looks it up. One that has listed some
//! directories, and in none of them looked at a file, gets no nodes of files any more until it looks at one.
//!
//! Thread safety: any thread; one lock, held for moments. Lookups take it only in directories of which files
//! came without nodes. Invariants: what is known here never changes an answer; memory is bounded by
//! [`PROGRAMS_MAX`].

use std::collections::VecDeque;

use kvfs_locks::{Mutex, class};

/// Programs that are remembered.
const PROGRAMS_MAX: usize = 16;
/// A program goes by names when it has looked at no file of so many directories, one after the other.
const UNSEEN_MAX: u32 = 8;
/// One that looks at files is not asked for so many directories.
const RESTS: u32 = 16;

#[derive(Debug)]
struct Habit {
    /// Id of the thread, as requests have it.
    pid: u32,
    /// Directories of which a file came without its node, since the program looked at one.
    unseen: u32,
    /// Directories to come with all nodes.
    rests: u32,
}

/// The habits of the programs that list directories of a view.
#[derive(Debug, Default)]
pub(crate) struct Habits {
    /// Least recently used first.
    habits: Mutex<VecDeque<Habit>, class::FsDirHabits>,
}

impl Habits {
    /// A program lists a directory, from its start or going on: so many files at most come without nodes.
    /// All have theirs where the program is not known (`pid` 0).
    pub(super) fn begin_listing(&self, pid: u32, is_start: bool) -> usize {
        if pid == 0 {
            return 0;
        }
        let mut habits = self.habits.lock();
        let known = habits.iter().rposition(|habit| habit.pid == pid).and_then(|at| habits.remove(at));
        let mut habit = known.unwrap_or(Habit { pid, unseen: 0, rests: 0 });
        let withheld = if habit.unseen >= UNSEEN_MAX {
            usize::MAX
        } else if !is_start {
            0
        } else if habit.rests > 0 {
            habit.rests -= 1;
            0
        } else {
            1
        };
        if habits.len() == PROGRAMS_MAX {
            habits.pop_front();
        }
        habits.push_back(habit);
        withheld
    }

    /// Files of a directory came without nodes.
    pub(super) fn note_withheld(&self, pid: u32) {
        self.change(pid, |habit| habit.unseen = habit.unseen.saturating_add(1));
    }

    /// One of the files that came without nodes in a listing of this program is looked up.
    pub(crate) fn note_seen(&self, pid: u32) {
        self.change(pid, |habit| (habit.unseen, habit.rests) = (0, RESTS));
    }

    fn change(&self, pid: u32, change: impl FnOnce(&mut Habit)) {
        let mut habits = self.habits.lock();
        if let Some(habit) = habits.iter_mut().rfind(|habit| habit.pid == pid) {
            change(habit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(habits: &Habits, pid: u32) -> usize {
        let withheld = habits.begin_listing(pid, true);
        if withheld > 0 {
            habits.note_withheld(pid);
        }
        withheld
    }

    #[test]
    fn nodes_of_files_go_to_programs_that_look_at_files() {
        let habits = Habits::default();
        let listed = |pid: u32, count: u32| (0..count).map(|_| list(&habits, pid)).collect::<Vec<_>>();
        assert_eq!(listed(0, 20), [0; 20], "not known");
        assert_eq!(listed(7, UNSEEN_MAX), [1; UNSEEN_MAX as usize], "asked");
        assert_eq!(habits.begin_listing(7, false), usize::MAX, "it goes by names");
        assert_eq!(listed(7, 20), [usize::MAX; 20]);
        assert_eq!(listed(8, 1), [1], "another one is asked for itself");
        assert_eq!(habits.begin_listing(8, false), 0, "once in a directory");

        habits.note_seen(7);
        assert_eq!(listed(7, RESTS), [0; RESTS as usize], "it looks at files");
        assert_eq!(listed(7, UNSEEN_MAX), [1; UNSEEN_MAX as usize], "asked again");
        assert_eq!(listed(7, 1), [usize::MAX]);
    }

    #[test]
    fn habits_of_the_last_programs_are_known() {
        let habits = Habits::default();
        for _ in 0..UNSEEN_MAX {
            list(&habits, 1);
        }
        for pid in 2..2 + PROGRAMS_MAX as u32 - 1 {
            assert_eq!(list(&habits, pid), 1);
        }
        assert_eq!(list(&habits, 1), usize::MAX);
        for pid in 2..2 + PROGRAMS_MAX as u32 {
            list(&habits, pid);
        }
        assert_eq!(list(&habits, 1), 1, "forgotten");
        assert_eq!(habits.habits.lock().len(), PROGRAMS_MAX);
    }
}
