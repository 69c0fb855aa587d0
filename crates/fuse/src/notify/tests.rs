use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::pending::WaitBudget;
use super::queue::{Done, KernelLock, Queue};
use super::{Keep, Message, Notification, Outcome, call};

/// As many locks of a kind as senders may wait for.
const LOCKS_MAX: u64 = 31;

fn name(parent: u64, name: &'static str) -> Notification {
    Notification::InvalEntry { parent, name: Bytes::from_static(name.as_bytes()), expire_only: false }
}

fn pages(node: u64) -> Notification {
    Notification::InvalInode { node, offset: 0, len: 0 }
}

fn queue_of<const N: usize>(notifications: [Notification; N]) -> Queue {
    let mut queue = Queue::default();
    for notification in notifications {
        queue.push(notification, None);
    }
    queue
}

fn next(queue: &mut Queue) -> Option<Notification> {
    queue.next().map(|(notification, _)| notification)
}

impl Keep for Arc<()> {
    fn take_over(&mut self, before: Box<dyn Keep>) {
        drop(before);
    }
}

#[test]
fn one_sender_sends_in_the_order_of_submission() {
    let all = [name(1, "a"), pages(7), name(1, "b"), name(2, "c"), Notification::IncEpoch];
    let mut queue = queue_of(all.clone());
    for expected in all {
        let sent = next(&mut queue);
        assert_eq!(sent.as_ref(), Some(&expected));
        assert!(queue.release(expected.kernel_lock()).is_none());
    }
    assert_eq!(next(&mut queue), None);
}

#[test]
fn notifications_behind_a_held_directory_wait_and_all_others_go_on() {
    let mut queue = queue_of([name(1, "a"), name(1, "b"), name(2, "c"), pages(1)]);
    assert_eq!(next(&mut queue), Some(name(1, "a")));
    assert_eq!(next(&mut queue), Some(name(2, "c")));
    assert_eq!(next(&mut queue), Some(pages(1)));
    assert_eq!(next(&mut queue), None);
    assert!(!queue.has_more());
    let next_of_directory = queue.release(KernelLock::Directory(1)).map(|(notification, _)| notification);
    assert_eq!(next_of_directory, Some(name(1, "b")));
}

#[test]
fn equal_notifications_wait_as_one_and_call_all_back() {
    let mut queue = queue_of([]);
    for _ in 0..3 {
        queue.push(pages(1), Some(Box::new(|_| {})));
    }
    assert_eq!(queue.len(), 1);
    let (sent, callbacks) = queue.next().expect("one waits");
    assert_eq!((sent, callbacks.len()), (pages(1), 3));
    // It is being sent, and may be too early for what comes now.
    queue.push(pages(1), None);
    assert!(queue.next().is_none());
    assert!(queue.release(KernelLock::Pages(1)).is_some());
    assert!(queue.release(KernelLock::Pages(1)).is_none());
}

#[test]
fn equal_notifications_keep_what_the_last_one_keeps_until_it_was_carried_out() {
    let mut queue = queue_of([]);
    let keeping = |kept: &Arc<()>| Message::keeping(pages(1), Arc::clone(kept));
    let [first, second, third] = [(); 3].map(Arc::new);
    let is_kept = |kept: &Arc<()>| Arc::strong_count(kept) == 2;
    queue.push(keeping(&first), None);
    queue.push(pages(1), Some(Box::new(|_| {})));
    queue.push(keeping(&second), None);
    assert!(!is_kept(&first) && is_kept(&second));
    let (_, callbacks) = queue.next().expect("one waits");
    // It began before.
    queue.push(keeping(&third), None);
    call(callbacks, Outcome::Done);
    assert!(!is_kept(&second) && is_kept(&third));
    call(queue.take_all(), Outcome::Ended);
    assert!(!is_kept(&third));
}

#[test]
fn held_locks_of_a_kind_leave_senders_to_all_others_and_more_of_them_wait() {
    let mut queue = queue_of([]);
    for parent in 1..=LOCKS_MAX + 1 {
        queue.push(name(parent, "a"), None);
    }
    queue.push(pages(7), None);
    for parent in 1..=LOCKS_MAX {
        assert_eq!(next(&mut queue), Some(name(parent, "a")));
    }
    assert_eq!(next(&mut queue), Some(pages(7)));
    assert!(queue.release(KernelLock::Pages(7)).is_none());
    assert!(next(&mut queue).is_none() && !queue.has_more());
    queue.give_up_on(queue.begun());
    assert!(queue.is_stalled(KernelLock::Directory(1)) && queue.is_stalled(KernelLock::Directory(100)));
    assert!(!queue.is_stalled(KernelLock::Pages(7)));
    for node in 1..=LOCKS_MAX + 1 {
        queue.push(pages(node), None);
    }
    queue.push(Notification::IncEpoch, None);
    for node in 1..=LOCKS_MAX {
        assert_eq!(next(&mut queue), Some(pages(node)));
    }
    assert_eq!(next(&mut queue), Some(Notification::IncEpoch));
    assert!(next(&mut queue).is_none() && !queue.has_more());
    assert!(queue.release(KernelLock::Directory(1)).is_none());
    assert_eq!(next(&mut queue), Some(name(LOCKS_MAX + 1, "a")));
}

#[test]
fn names_behind_a_held_directory_alone_are_taken_out_when_they_are_too_many() {
    let mut queue = queue_of([name(1, "a")]);
    assert!(queue.next().is_some());
    queue.give_up_on(queue.begun());
    let (called, was_called) = std::sync::mpsc::channel();
    let told = |name| {
        let called = called.clone();
        Some(Box::new(move |outcome| called.send((name, outcome)).expect("is awaited")) as Done)
    };
    queue.push(name(1, "b"), told("b"));
    queue.push(pages(7), None);
    for free in ["c", "d", "e"] {
        queue.push(name(2, free), told(free));
    }
    assert!(queue.take_stalled_names(1).is_none(), "those of the other directory are soon told");
    queue.push(name(1, "f"), told("f"));
    let (directories, taken) = queue.take_stalled_names(1).expect("two wait");
    call(taken, Outcome::Ended);
    assert_eq!(directories, [1]);
    assert!(queue.has_names(1) && queue.has_names(2), "one is being told");
    let mut called: Vec<_> = was_called.try_iter().collect();
    called.sort_unstable_by_key(|(name, _)| *name);
    assert_eq!(called, [("b", Outcome::Ended), ("f", Outcome::Ended)]);
    assert!(queue.release(KernelLock::Directory(1)).is_none() && !queue.has_names(1));
    for left in [pages(7), name(2, "c")] {
        assert_eq!(next(&mut queue), Some(left));
    }
}

#[test]
fn names_of_all_directories_wait_behind_as_many_held_ones_as_senders_may_wait_for() {
    let mut queue = queue_of([]);
    for parent in 1..=LOCKS_MAX {
        queue.push(name(parent, "a"), None);
        assert!(queue.next().is_some());
    }
    for parent in 1..=LOCKS_MAX {
        queue.push(name(100 + parent, "a"), None);
    }
    assert!(queue.next().is_none());
    assert!(queue.take_stalled_names(1).is_none(), "callers wait for them");
    queue.give_up_on(queue.begun());
    queue.push(name(200, "a"), Some(Box::new(|_| {})));
    let taken = queue.take_stalled_names(1).map(|(directories, taken)| (directories.len(), taken.len()));
    assert_eq!(taken, Some((LOCKS_MAX as usize + 1, 1)));
    assert!(queue.len() == 0 && queue.release(KernelLock::Directory(1)).is_none() && !queue.has_more());
}

#[test]
fn callers_behind_what_is_given_up_on_are_answered_and_what_they_wait_for_is_sent_later() {
    let mut queue = queue_of([]);
    let (called, was_called) = std::sync::mpsc::channel();
    let told = |number: u64| {
        let called = called.clone();
        Some(Box::new(move |outcome| called.send((number, outcome)).expect("is awaited")) as Done)
    };
    for node in 1..=LOCKS_MAX {
        queue.push(pages(node), told(node));
        assert!(queue.next().is_some());
    }
    queue.push(Notification::Store { node: 1, offset: 0, data: Bytes::new() }, told(100));
    queue.push(pages(200), told(200));
    queue.push(pages(200), told(201));
    queue.push(name(1, "a"), told(300));
    assert_eq!(queue.next().map(|(first, _)| first), Some(name(1, "a")));
    call(queue.give_up_on(queue.begun() - 2), Outcome::Late);
    assert_eq!(was_called.try_iter().collect::<Vec<_>>(), [(100, Outcome::Late)], "one may be free soon");
    call(queue.give_up_on(queue.begun()), Outcome::Late);
    let mut late: Vec<_> = was_called.try_iter().collect();
    late.sort_unstable_by_key(|(number, _)| *number);
    assert_eq!(late, [(200, Outcome::Late), (201, Outcome::Late)]);
    assert!(queue.give_up_on(queue.begun()).is_empty() && queue.len() == 2);
    assert!(queue.release(KernelLock::Pages(1)).is_some_and(|(_, callbacks)| callbacks.is_empty()));
    assert!(queue.release(KernelLock::Pages(1)).is_none());
    assert_eq!(next(&mut queue), Some(pages(200)));
}

#[test]
fn name_that_no_caller_waits_for_any_more_counts_once() {
    let mut queue = queue_of([name(1, "a")]);
    assert!(queue.next().is_some());
    for _ in 0..3 {
        queue.push(name(1, "b"), Some(Box::new(|_| {})));
    }
    assert!(queue.next().is_none());
    assert_eq!(queue.give_up_on(queue.begun()).len(), 3);
    assert!(queue.take_stalled_names(1).is_none());
    assert!(queue.release(KernelLock::Directory(1)).is_some() && queue.has_names(1));
    assert!(queue.release(KernelLock::Directory(1)).is_none() && !queue.has_names(1));
}

#[test]
fn held_directories_that_are_met_in_many_parts_cost_one_budget() {
    let (wait_max, each) = (Duration::from_secs(3), Duration::from_micros(100));
    let mut budget = WaitBudget::new(wait_max);
    let mut waited = Duration::ZERO;
    for _ in 0..31 {
        let part = budget.for_part(4096);
        budget.spend(part, 4096);
        waited += part;
    }
    assert_eq!(waited, wait_max + each * 4096 * 31);
    // What goes quickly costs nothing of it.
    let mut budget = WaitBudget::new(wait_max);
    budget.spend(each * 4096, 4096);
    assert_eq!(budget.for_part(4096), wait_max + each * 4096);
}

#[test]
fn directory_is_given_up_when_it_has_itself_been_held_for_all_of_a_budget() {
    let (wait_max, period) = (Duration::from_secs(3), Duration::from_millis(50));
    let mut budget = WaitBudget::new(wait_max);
    for begun in 1..=60 {
        assert_eq!(budget.look(period, begun), 0, "none has been seen for so long");
    }
    for begun in 61..=1000 {
        assert_eq!(budget.look(period, begun), begun - 60);
    }
}
