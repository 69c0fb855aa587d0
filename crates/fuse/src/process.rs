//! What the daemon asks of the kernel about processes: itself, so that it stays alive when memory is gone,
//! and those that it serves.
//!
//! A dirty page of a mapped file can only be freed by this process writing it. So the kernel must neither
//! make this process wait for such pages, nor choose it as the victim.

pub(crate) mod policy;

use std::{fs, io};

use rustix::process::{Resource, Rlimit};

/// Tells the kernel that this thread, and those it starts, serve the writing of dirty pages: their
/// allocations then don't wait for it. Call it before threads are started.
///
/// # Errors
/// Needs `CAP_SYS_RESOURCE`; without it, EPERM.
pub fn become_io_flusher() -> io::Result<()> {
    Ok(rustix::process::configure_io_flusher_behavior(true)?)
}

/// Makes the out-of-memory killer prefer others: `adjustment` is in −1000 (never) to 1000.
///
/// # Errors
/// Lowering the value needs `CAP_SYS_RESOURCE`.
pub fn adjust_oom_score(adjustment: i16) -> io::Result<()> {
    fs::write("/proc/self/oom_score_adj", adjustment.to_string())
}

/// Lets this process take as much of something as its hard limit allows.
///
/// # Errors
/// The kernel refuses.
pub fn raise_limit(resource: Resource) -> io::Result<()> {
    let limit = rustix::process::getrlimit(resource);
    Ok(rustix::process::setrlimit(resource, Rlimit { current: limit.maximum, ..limit })?)
}

/// The CPU on which a thread runs or ran last. O(1): what is read is of one thread, however many its process
/// has. `None`: it is gone, or this process may not know.
pub fn cpu_of_thread(tid: u32) -> Option<u32> {
    read_stat(&format!("/proc/{tid}/task/{tid}/stat"), |stat| field_of_stat(stat, 39)?.parse().ok())
}

/// Whether a thread of this process runs, or would if it had a CPU.
pub(crate) fn is_runnable(tid: i32) -> bool {
    let is_running = |stat: &str| field_of_stat(stat, 3).map(|state| state == "R");
    read_stat(&format!("/proc/self/task/{tid}/stat"), is_running).unwrap_or(false)
}

fn read_stat<T>(path: &str, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    let mut buf = [0; 1024];
    let len = io::Read::read(&mut fs::File::open(path).ok()?, &mut buf).ok()?;
    read(std::str::from_utf8(&buf[..len]).ok()?)
}

/// A field of proc(5)'s `stat`, from the third on. The program's name, in brackets, may hold anything, so it
/// is counted from its end.
fn field_of_stat(stat: &str, number: usize) -> Option<&str> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(number.checked_sub(3)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_for_another_has_slept() {
        let before = policy::sleeps_of_thread();
        assert_eq!(policy::sleeps_of_thread(), before, "asking is no sleep");
        let (to_other, asked) = std::sync::mpsc::sync_channel::<()>(0);
        let (answer, answered) = std::sync::mpsc::sync_channel(0);
        std::thread::scope(|scope| {
            scope.spawn(move || asked.into_iter().try_for_each(|()| answer.send(())));
            // One answer may be there already when it is looked for; not each of a hundred.
            for _ in 0..100 {
                to_other.send(()).expect("the other lives");
                answered.recv().expect("an answer");
            }
            drop(to_other);
        });
        assert!(policy::sleeps_of_thread() > before);
    }

    #[test]
    fn the_cpu_of_a_thread_is_found_whatever_its_name() {
        let fields: Vec<_> = (3..=52).map(|n| n.to_string()).collect();
        assert_eq!(field_of_stat(&format!("12 (a) b) {}\n", fields.join(" ")), 39), Some("39"));
        assert_eq!(field_of_stat("12 (short) S 1", 39), None);
        assert_eq!(field_of_stat("12 (short) S 1", 3), Some("S"));
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert!(cpu_of_thread(own).is_some());
        assert_eq!(cpu_of_thread(u32::MAX), None);
        assert!(is_runnable(own as i32) && !is_runnable(i32::MAX));
    }
}
