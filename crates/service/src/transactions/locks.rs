//! Locks of the open transactions, for people.
//!
//! Thread safety: as [`Transactions`]. The lock manager has given its page away before anything is put into
//! words, and the registry is asked once for all views of a page.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvfs_fs::{FileSystem, LockInfo, LockNameBuf, LockPlace, Owner, Rival, WaiterInfo};

use super::Transactions;
use crate::caller::may_act_for;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::lines::{DoomLine, LockLine, LockLines, LockPlaceParts, PartyLine, WaiterLine};

/// Rows that are looked at for one page: with the longest paths they still fit a frame.
const PAGE_LEN_MAX: usize = 1000;

/// Longest name that is told (bytes).
const NAME_LEN_MAX: usize = 4096;

/// Bytes of names after which a page is cut.
const PAGE_BYTES_MAX: usize = 2 << 20;

type Views = BTreeMap<u64, Arc<FileSystem>>;

impl Transactions {
    /// One page of the locks that user `viewer` may see: those which a transaction of that user holds or
    /// waits for.
    ///
    /// # Errors
    /// `after` is no place in a list.
    pub fn locks(&self, viewer: u32, after: Option<LockPlaceParts>) -> Result<LockLines> {
        let is_first = after.is_none();
        let after = after.map(|parts| {
            LockPlace::from_parts(parts)
                .ok_or_else(|| ServiceError::new(ErrorKind::Usage, "this is no place in a list of locks"))
        });
        let page = self.main.fs.admission().page(after.transpose()?, PAGE_LEN_MAX);
        let views: Views = {
            let state = self.state.lock();
            state.open.iter().map(|(&id, entry)| (id, Arc::clone(&entry.view))).collect()
        };
        let mut lines = LockLines { next: page.next.map(LockPlace::to_parts), ..LockLines::default() };
        if is_first {
            lines.doomed = self.doomed(viewer, &views);
        }
        let mut bytes = 0;
        for (info, place) in page.locks.iter().zip(&page.places) {
            if !concerns(viewer, info) {
                continue;
            }
            let line = self.lock_line(info, &views);
            bytes += line.name.len() + line.waiters.iter().map(|waiter| waiter.name.len()).sum::<usize>();
            lines.locks.push(line);
            if bytes > PAGE_BYTES_MAX {
                lines.next = Some(place.to_parts());
                break;
            }
        }
        Ok(lines)
    }

    fn doomed(&self, viewer: u32, views: &Views) -> Vec<DoomLine> {
        let infos = self.main.fs.admission().transactions().into_iter();
        let lines = infos.filter(|info| may_act_for(viewer, info.owner.uid)).filter_map(|info| {
            let doom = info.doom?;
            let view = views.get(&info.id.0);
            let why = view.map_or_else(|| doom.to_string(), |view| view.lock_words().explain(&doom));
            Some(DoomLine { party: txn_party(info.id.0, &info.owner, true), why })
        });
        lines.collect()
    }

    fn lock_line(&self, info: &LockInfo, views: &Views) -> LockLine {
        let own = view_of(&info.holder, views).unwrap_or(&self.main.fs);
        let waiter = |waiter: &WaiterInfo| WaiterLine {
            waiter: party(&self.main.fs, &waiter.waiter, views),
            name: words(view_of(&waiter.waiter, views).unwrap_or(own), &waiter.name),
            mode: waiter.mode.to_string(),
            waited: waiter.waited,
        };
        LockLine {
            holder: party(&self.main.fs, &info.holder, views),
            name: words(own, &info.name),
            mode: info.mode.to_string(),
            age: info.age,
            waiters: info.waiters.iter().map(waiter).collect(),
            waiters_count: info.waiters_count as u64,
        }
    }
}

/// Whether a transaction of `viewer` has part in it.
fn concerns(viewer: u32, info: &LockInfo) -> bool {
    let is_of_viewer = |rival: &Rival| match rival {
        Rival::Txn { owner, .. } => may_act_for(viewer, owner.uid),
        Rival::Main { .. } => false,
    };
    is_of_viewer(&info.holder) || info.waiters.iter().any(|waiter| is_of_viewer(&waiter.waiter))
}

fn view_of<'v>(rival: &Rival, views: &'v Views) -> Option<&'v Arc<FileSystem>> {
    match rival {
        Rival::Txn { id, .. } => views.get(&id.0),
        Rival::Main { .. } => None,
    }
}

/// The name as this view knows it.
fn words(view: &FileSystem, name: &LockNameBuf) -> String {
    let mut words = view.lock_words().describe(name);
    if words.len() > NAME_LEN_MAX {
        words.truncate(words.floor_char_boundary(NAME_LEN_MAX));
        words.push('…');
    }
    words
}

fn party(main: &FileSystem, rival: &Rival, views: &Views) -> PartyLine {
    match rival {
        Rival::Txn { id, owner } => {
            let is_doomed =
                views.get(&id.0).is_some_and(|view| view.txn().is_some_and(|txn| txn.doom().is_some()));
            txn_party(id.0, owner, is_doomed)
        }
        Rival::Main { pid } => {
            let label = main.lock_words().command(*pid).unwrap_or_default();
            PartyLine { txn: None, uid: None, pid: *pid, label, is_doomed: false }
        }
    }
}

fn txn_party(id: u64, owner: &Owner, is_doomed: bool) -> PartyLine {
    PartyLine { txn: Some(id), uid: Some(owner.uid), pid: owner.pid, label: owner.name.clone(), is_doomed }
}
