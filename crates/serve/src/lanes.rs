//! Lanes of all connections: how many there may be, and which gives way to another one.
//!
//! Purpose: a process keeps the lanes that it has used, for as long as it lives, so most of them are idle.
//! Where there may be no more, one that was idle for a while ends, and its process gets another one with its
//! next call.
//!
//! Thread safety: one lock, held for a few instructions for each lane.
//!
//! Invariant: no lane ends here on which a call is under way.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvfs_lane::LaneEnd;
use kvfs_locks::{Condvar, Mutex, class};

use crate::shares::{Share, Shares, shares};

/// So long is waited for an idle lane to end, at most.
pub(crate) const END_TIME_MAX: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct Lanes {
    shares: Shares,
    own_uid: u32,
    /// Most of a user, but for the server's own.
    user_max: usize,
    end_time_max: Duration,
    all: Mutex<VecDeque<Lane>, class::ServeLanesAll>,
    /// One is gone.
    changed: Condvar,
}

struct Lane {
    uid: u32,
    end: LaneEnd,
    was_used: Arc<AtomicBool>,
}

/// Room for a lane, until it is dropped.
pub(crate) struct LaneRoom {
    lanes: Arc<Lanes>,
    share: Option<Share>,
    uid: u32,
    was_used: Arc<AtomicBool>,
}

impl Lanes {
    /// At most `max` of all users, on the server of user `own_uid`; an idle one that gives way is waited for
    /// so long.
    pub(crate) fn new(max: usize, own_uid: u32, end_time_max: Duration) -> Arc<Self> {
        let (all, changed) = (Mutex::default(), Condvar::new());
        Arc::new(Self {
            shares: shares(max, own_uid),
            own_uid,
            user_max: max / 2,
            end_time_max,
            all,
            changed,
        })
    }

    /// Room for one more of a user; `None`: there is none, and on all that would have to give way calls are
    /// under way, or what their clients said of that was not true.
    pub(crate) fn room(self: &Arc<Self>, uid: u32) -> Option<LaneRoom> {
        let mut all = self.all.lock();
        loop {
            if let Some(share) = self.shares.take(uid, 1) {
                let was_used = Arc::new(AtomicBool::new(true));
                return Some(LaneRoom { lanes: Arc::clone(self), share: Some(share), uid, was_used });
            }
            if !self.end_one(&mut all, uid) {
                return None;
            }
            // Its thread ends at once, but in a call that its client has called over.
            if self.changed.wait_for(&mut all, self.end_time_max).timed_out() {
                return None;
            }
        }
    }

    /// Ends one that was idle since it was looked at last, for one of the user `uid`: of all, or of those of
    /// that user, where it has as many as it may. False: there is none.
    fn end_one(&self, all: &mut VecDeque<Lane>, uid: u32) -> bool {
        let own_count = all.iter().filter(|lane| lane.uid == uid).count();
        let of_own_alone = uid != self.own_uid && own_count >= self.user_max;
        for _ in 0..2 * all.len() {
            let Some(lane) = all.pop_front() else { break };
            let may_end = !of_own_alone || lane.uid == uid;
            let is_over = may_end && !lane.was_used.swap(false, Ordering::Relaxed) && lane.end.end_idle();
            all.push_back(lane);
            if is_over {
                return true;
            }
        }
        false
    }
}

impl LaneRoom {
    /// The lane is there.
    pub(crate) fn fill(&self, end: LaneEnd) {
        let lane = Lane { uid: self.uid, end, was_used: Arc::clone(&self.was_used) };
        self.lanes.all.lock().push_back(lane);
    }

    /// A call comes over it.
    pub(crate) fn was_used(&self) {
        self.was_used.store(true, Ordering::Relaxed);
    }
}

impl Drop for LaneRoom {
    fn drop(&mut self) {
        let mut all = self.lanes.all.lock();
        all.retain(|lane| !Arc::ptr_eq(&lane.was_used, &self.was_used));
        self.share = None;
        drop(all);
        self.lanes.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use kvfs_lane::{ClientLane, ServerLane};

    use super::*;

    /// Longer than any machine is busy.
    const PATIENCE: Duration = Duration::from_mins(10);

    /// A lane of a user, with both ends.
    fn lane(lanes: &Arc<Lanes>, uid: u32) -> Option<(LaneRoom, ServerLane, ClientLane)> {
        let room = lanes.room(uid)?;
        let (server, end, memory) = ServerLane::create().expect("makes");
        room.fill(end);
        Some((room, server, ClientLane::attach(memory).expect("attaches")))
    }

    /// What a thread of the server does until a lane is over.
    fn serve((room, mut server, _): (LaneRoom, ServerLane, ClientLane)) {
        assert!(server.next(&mut Vec::new()).is_err());
        drop((server, room));
    }

    #[test]
    fn idle_lane_of_a_user_with_its_share_gives_way_and_none_of_another_user() {
        let lanes = Lanes::new(4, 0, PATIENCE);
        let mut other = lane(&lanes, 1002).expect("is free");
        let idle = lane(&lanes, 1001).expect("is free");
        let mut busy = lane(&lanes, 1001).expect("is free");
        assert!(busy.2.begin());
        std::thread::scope(|scope| {
            let served = scope.spawn(|| serve(idle));
            let mut next = lane(&lanes, 1001).expect("one was idle");
            served.join().expect("ends");
            assert!(next.2.begin());
            assert!(lane(&lanes, 1001).is_none(), "calls are under way on both");
            assert!(other.2.begin(), "it is there");
        });
    }

    /// Or a client that lies could hold up other ones for as long as it likes.
    #[test]
    fn lane_that_does_not_end_though_it_was_idle_holds_up_no_other_one_for_long() {
        let lanes = Lanes::new(1, 1000, Duration::ZERO);
        let _in_a_call = lane(&lanes, 1000).expect("is free");
        assert!(lane(&lanes, 1000).is_none());
    }

    #[test]
    fn lane_stays_until_the_answer_of_a_call_was_read() {
        let lanes = Lanes::new(1, 1000, PATIENCE);
        let (_room, mut server, mut client) = lane(&lanes, 1000).expect("is free");
        std::thread::scope(|scope| {
            let called = scope.spawn(move || {
                assert!(client.begin());
                let answer = client.call(0, || true).map(<[u8]>::to_vec);
                (client, answer)
            });
            server.next(&mut Vec::new()).expect("is called");
            assert!(!lanes.end_one(&mut lanes.all.lock(), 1000));
            server.answer(b"answer").expect("is there");
            assert!(!lanes.end_one(&mut lanes.all.lock(), 1000));
            let (mut client, answer) = called.join().expect("ends");
            assert_eq!(answer.expect("is there"), b"answer");
            client.finish();
            assert!(lanes.end_one(&mut lanes.all.lock(), 1000));
        });
    }

    #[test]
    fn lane_that_was_used_lately_stays_before_one_that_was_not() {
        let lanes = Lanes::new(4, 1000, PATIENCE);
        let mut held: VecDeque<_> =
            std::iter::repeat_with(|| lane(&lanes, 1000).expect("is free")).take(4).collect();
        assert!(lanes.end_one(&mut lanes.all.lock(), 1000), "all were looked at");
        let (room, server, _client) = held.pop_front().expect("four");
        drop((server, room));
        held[0].0.was_used();
        assert!(lanes.end_one(&mut lanes.all.lock(), 1000));
        assert!(held[0].2.begin() && !held[1].2.begin() && held[2].2.begin());
    }
}
