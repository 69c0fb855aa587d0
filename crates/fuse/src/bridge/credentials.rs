//! What the kernel knows of a caller beyond the ids that come with its request, as proc(5) tells it.
//!
//! Purpose: of FALLOCATE and `COPY_FILE_RANGE` the kernel does not say whether the caller keeps set-id bits
//! (`CAP_FSETID`), and of no request in which groups the caller is. Both are decided here, and nowhere else;
//! asked only where a file has such bits.
//!
//! A thread whose credentials cannot be read, or whose ids are not those of its request, has no rights: it
//! may have ended, live in another PID namespace, or ask with the credentials of another process, as
//! overlayfs and NFS servers do. So a process that took the number of one that has ended lends it nothing
//! that its ids don't give.
//!
//! Thread safety: stateless.

use std::fs;

use kvfs_fs::{Caller, Credentials};

use crate::dispatch::RequestContext;

const CAP_CHOWN: u32 = 0;
const CAP_FOWNER: u32 = 3;
const CAP_FSETID: u32 = 4;
/// The first user namespace: capabilities count there alone, because the files are of the whole system.
const FIRST_USER_NAMESPACE: &str = "user:[4026531837]";

/// Threads that ask through the kernel.
#[derive(Debug)]
struct OfThreads;

pub(super) fn caller(cx: &RequestContext) -> Caller {
    let credentials: Option<&'static dyn Credentials> = Some(&OfThreads);
    Caller { uid: cx.uid, gid: cx.gid, pid: cx.pid, credentials, goes_by_names: true, ..Caller::default() }
}

impl Credentials for OfThreads {
    fn keeps_set_id(&self, caller: &Caller) -> bool {
        let capabilities = of_thread(caller).map_or(0, |found| found.capabilities);
        capabilities & 1 << CAP_FSETID != 0
            && fs::read_link(format!("/proc/{}/ns/user", caller.pid))
                .is_ok_and(|namespace| namespace.as_os_str() == FIRST_USER_NAMESPACE)
    }

    fn is_in_group(&self, caller: &Caller, gid: u32) -> bool {
        of_thread(caller).is_some_and(|found| found.groups.contains(&gid))
    }

    /// In whatever user namespace: the kernel has found that this one has the file's owner.
    fn acts_as_owner(&self, caller: &Caller) -> bool {
        let rights = 1 << CAP_CHOWN | 1 << CAP_FOWNER;
        of_thread(caller).is_some_and(|found| found.capabilities & rights != 0)
    }
}

/// All groups of a thread, as far as they are known.
pub(super) fn groups(caller: &Caller) -> Vec<u32> {
    let mut groups = of_thread(caller).map(|found| found.groups).unwrap_or_default();
    groups.push(caller.gid);
    groups
}

/// Of a thread.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    /// The ids by which it uses files.
    ids: (u32, u32),
    /// Supplementary groups.
    groups: Vec<u32>,
    /// Effective capabilities, one bit each.
    capabilities: u64,
}

fn of_thread(caller: &Caller) -> Option<Found> {
    if caller.pid == 0 {
        return None;
    }
    let status = fs::read_to_string(format!("/proc/{}/status", caller.pid)).ok()?;
    parse(&status).filter(|found| found.ids == (caller.uid, caller.gid))
}

/// Of proc(5)'s `status`. The fourth of each line of ids is for files.
fn parse(status: &str) -> Option<Found> {
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let id = |name| line(name)?.split_ascii_whitespace().nth(3)?.parse().ok();
    Some(Found {
        ids: (id("Uid:")?, id("Gid:")?),
        groups: line("Groups:")?
            .split_ascii_whitespace()
            .map(|group| group.parse().ok())
            .collect::<Option<_>>()?,
        capabilities: u64::from_str_radix(line("CapEff:")?.trim(), 16).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tGid:\nUmask:\t0022\nUid:\t1000\t1001\t1002\t1003\nGid:\t5\t6\t7\t8\n\
                          Groups:\t4 24 500 \nCapInh:\t0000000000000000\nCapEff:\t000001ffffffffff\n";

    #[test]
    fn status_of_a_thread_tells_ids_groups_and_capabilities() {
        let found = parse(STATUS).expect("is one");
        assert_eq!(found.ids, (1003, 8));
        assert_eq!(found.groups, [4, 24, 500]);
        assert_eq!(found.capabilities >> CAP_FSETID & 1, 1);
        let alone = parse(&STATUS.replace("4 24 500 ", "")).expect("is one");
        assert_eq!(alone.groups, []);
        for broken in ["Uid:", "Gid:\t5", "Groups:", "CapEff:"] {
            assert_eq!(parse(&STATUS.replace(broken, "x")), None);
        }
    }

    #[test]
    fn credentials_are_of_callers_whose_ids_fit() {
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let caller = Caller { uid, gid, pid: own, ..Caller::default() };
        assert!(of_thread(&caller).is_some());
        assert!(groups(&caller).contains(&gid));
        let strangers = [
            Caller { uid: uid + 1, ..caller.clone() },
            Caller { gid: gid + 1, ..caller.clone() },
            Caller { pid: 0, ..caller.clone() },
            Caller { pid: u32::MAX, ..caller },
        ];
        for stranger in strangers {
            assert_eq!(of_thread(&stranger), None);
            assert!(!OfThreads.keeps_set_id(&stranger) && !OfThreads.is_in_group(&stranger, gid));
            assert_eq!(groups(&stranger), [stranger.gid]);
        }
    }
}
