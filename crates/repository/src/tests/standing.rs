//! Prunes and pushes that stand still, as those of a machine that sleeps do, while others go on.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::histories::UnderWay;
use super::service::{Request, Service};
use super::{Source, assert_whole, noise, repository};
use crate::error::RepositoryError;
use crate::policy::Policy;
use crate::repository::Repository;

/// A week, and more.
const LONG: i64 = 8 * 24;

/// Snapshots "one" and "again" of the same content, and "other" of other content, which is there.
fn source(repository: &Repository) -> Source {
    let source = Source::new(1);
    source.write("large", 0, &noise(1, 3 << 20));
    source.snapshot("one");
    source.write("small", 0, b"more");
    source.snapshot("again");
    source.write("large", 0, &noise(2, 3 << 20));
    source.snapshot("other");
    source.push(repository, "other").unwrap();
    source
}

/// As [`source`], with the snapshot "long", of which a push has more frames than these tests have days.
fn long_source(repository: &Repository) -> Source {
    let source = source(repository);
    source.write("larger", 0, &noise(3, 15 << 20));
    source.snapshot("long");
    source
}

/// A little more, for all clocks.
fn pass_a_day(service: &Service, source: &Source) {
    service.pass(25);
    source.clock.advance(Duration::from_hours(25));
}

fn prune(repository: &Repository) -> crate::Pruned {
    repository.prune(&Policy::default(), false, false).unwrap()
}

/// The content of "one" is there, and nothing refers to it.
fn leave_unused(repository: &Repository, source: &Source, service: &Service) {
    source.push(repository, "one").unwrap();
    repository.delete(repository.find(Some("one")).unwrap().id).unwrap();
    service.pass(LONG);
}

#[track_caller]
fn assert_sound(repository: &Repository) {
    let verified = repository.verify(true, &mut |_, _| {}).unwrap();
    assert!(verified.findings.is_empty(), "{:?}", verified.findings);
}

#[test]
fn a_prune_that_stands_still_takes_nothing_that_a_push_has_come_to_use() {
    let service = Service::new();
    let one = repository(&service);
    let source = source(&one);
    leave_unused(&one, &source, &service);
    std::thread::scope(|scope| {
        let ((go, goes), (end, ended)) = (channel(), channel());
        let (begin, begun) = channel();
        let (source, other) = (&source, Arc::clone(&service));
        scope.spawn(move || {
            let other = repository(&other);
            let push = UnderWay::begin(source, &other, "again").unwrap();
            begin.send(()).unwrap();
            goes.recv().unwrap();
            push.finish().unwrap();
            end.send(()).unwrap();
        });
        begun.recv().unwrap();
        service.pass(1);
        assert!(prune(&one).marked > 2);
        service.pass(1);
        // Behind the snapshot that the second look for them finds.
        let clock = Arc::clone(&service);
        service.meanwhile((Request::Get, "/snapshots/", 1), move || {
            go.send(()).unwrap();
            ended.recv().unwrap();
            clock.pass(25);
        });
        prune(&one);
    });
    assert!(service.is_over());
    assert_sound(&one);
    assert_whole(&one, &source, "again");
}

#[test]
fn what_was_marked_is_not_used_again_also_where_a_snapshot_refers_to_it() {
    let service = Service::new();
    let one = repository(&service);
    let source = source(&one);
    leave_unused(&one, &source, &service);
    // It began before the mark, and ends behind it.
    let push = UnderWay::begin(&source, &one, "again").unwrap();
    let marked = prune(&one).marked;
    assert!(marked > 2);
    push.finish().unwrap();
    for _ in 0..2 {
        service.pass(25);
        prune(&one);
        assert_whole(&one, &source, "again");
    }
    // Another one may look at it as it was before "again" came, and stand still.
    let pushed = source.push(&one, "one").unwrap();
    assert!(pushed.bytes_new > 3 << 20, "{pushed:?}");
    one.delete(one.find(Some("again")).unwrap().id).unwrap();
    assert!(prune(&one).removed > 2, "it goes with what referred to it");
    assert_sound(&one);
    assert_whole(&one, &source, "one");
}

#[test]
fn a_push_that_stands_still_with_its_last_object_leaves_no_snapshot_that_lacks_something() {
    let service = Service::new();
    let one = repository(&service);
    let source = source(&one);
    leave_unused(&one, &source, &service);
    let (other, clock) = (Arc::clone(&service), Arc::clone(&source.clock));
    service.meanwhile((Request::Put, "/snapshots/", 0), move || {
        let two = repository(&other);
        for hours in [1, 25] {
            other.pass(hours);
            clock.advance(Duration::from_secs(hours as u64 * 3600));
            prune(&two);
        }
    });
    let pushed = source.push(&one, "again");
    assert!(matches!(pushed, Err(RepositoryError::TooSlow)), "{pushed:?}");
    assert!(service.is_over());
    assert_sound(&one);
    assert!(one.find(Some("again")).is_err());
    source.push(&one, "again").unwrap();
    assert_whole(&one, &source, "again");
}

#[test]
fn push_that_withdraws_its_snapshot_leaves_the_one_of_another_push() {
    let service = Service::new();
    let one = repository(&service);
    let source = Arc::new(source(&one));
    leave_unused(&one, &source, &service);
    let (other, theirs) = (Arc::clone(&service), Arc::clone(&source));
    service.meanwhile((Request::Put, "/snapshots/", 0), move || {
        let two = repository(&other);
        for hours in [1, 25] {
            other.pass(hours);
            theirs.clock.advance(Duration::from_secs(hours as u64 * 3600));
            prune(&two);
        }
        // Behind the snapshot, in front of the look for what it needs.
        let clock = Arc::clone(&other);
        clock.meanwhile((Request::List, "/chunks", 0), move || {
            theirs.push(&repository(&other), "again").unwrap();
        });
    });
    let pushed = source.push(&one, "again");
    assert!(matches!(pushed, Err(RepositoryError::TooSlow)), "{pushed:?}");
    assert!(service.is_over());
    assert_whole(&one, &source, "again");
}

#[test]
fn a_push_that_takes_days_ends_though_it_is_pruned_daily() {
    let service = Service::new();
    let one = repository(&service);
    let source = source(&one);
    let (other, clock) = (Arc::clone(&service), Arc::clone(&source.clock));
    service.meanwhile((Request::Put, "/snapshots/", 0), move || {
        let two = repository(&other);
        for _ in 0..5 {
            other.pass(25);
            clock.advance(Duration::from_hours(25));
            let pruned = prune(&two);
            assert!(pruned.young > 2 && (pruned.marked, pruned.removed) == (0, 0), "{pruned:?}");
        }
    });
    source.push(&one, "again").unwrap();
    assert!(service.is_over());
    assert_whole(&one, &source, "again");
    assert_eq!(prune(&one), crate::Pruned::default());
}

#[test]
fn a_push_that_takes_weeks_ends_though_it_is_pruned_daily() {
    let service = Service::new();
    let one = repository(&service);
    let source = long_source(&one);
    let mut push = UnderWay::begin(&source, &one, "long").unwrap();
    for _ in 0..20 {
        assert!(push.step(), "more frames than days");
        pass_a_day(&service, &source);
        let pruned = prune(&one);
        assert_eq!((pruned.marked, pruned.removed), (0, 0), "{pruned:?}");
    }
    push.finish().unwrap();
    assert_whole(&one, &source, "long");
    assert_eq!(prune(&one), crate::Pruned::default());
    assert!(!service.names().iter().any(|name| name.as_ref().contains("/pushing/")));
}

#[test]
fn a_push_that_goes_on_from_a_killed_one_of_weeks_ends_though_it_is_pruned_daily() {
    let service = Service::new();
    let one = repository(&service);
    let source = long_source(&one);
    let mut killed = UnderWay::begin(&source, &one, "long").unwrap();
    for _ in 0..10 {
        assert!(killed.step(), "more frames than days");
        pass_a_day(&service, &source);
        prune(&one);
    }
    drop(killed);
    let mut push = UnderWay::begin(&source, &one, "long").unwrap();
    for _ in 0..5 {
        push.step();
        pass_a_day(&service, &source);
        let pruned = prune(&one);
        assert_eq!((pruned.marked, pruned.removed), (0, 0), "{pruned:?}");
    }
    push.finish().unwrap();
    assert_whole(&one, &source, "long");
    prune(&one);
    assert!(!service.names().iter().any(|name| name.as_ref().contains("/pushing/")));
}

#[test]
fn what_a_killed_push_of_weeks_has_left_goes() {
    let service = Service::new();
    let one = repository(&service);
    let source = long_source(&one);
    let chunks = || service.names().iter().filter(|name| name.as_ref().contains("/chunks/")).count();
    let before = chunks();
    let mut push = UnderWay::begin(&source, &one, "long").unwrap();
    for _ in 0..20 {
        push.step();
        pass_a_day(&service, &source);
    }
    // What is on its way is given up with the push.
    while chunks() == before {
        std::thread::yield_now();
    }
    drop(push);
    assert_eq!(prune(&one).marked, 0);
    service.pass(LONG);
    let marked = prune(&one).marked;
    assert!(marked > 0);
    service.pass(25);
    assert_eq!(prune(&one).removed, marked);
    let left = service.names();
    assert!(!left.iter().any(|name| ["/pushing/", "/marks/"].iter().any(|of| name.as_ref().contains(of))));
    assert_eq!(prune(&one), crate::Pruned::default());
    assert_sound(&one);
}

#[test]
fn what_nothing_needs_goes_though_a_push_is_killed_daily() {
    let service = Service::new();
    let one = repository(&service);
    let source = long_source(&one);
    source.push(&one, "one").unwrap();
    one.delete(one.find(Some("one")).unwrap().id).unwrap();
    let mut removed = 0;
    for _ in 0..45 {
        UnderWay::begin(&source, &one, "long").unwrap().step();
        pass_a_day(&service, &source);
        removed += prune(&one).removed;
    }
    assert!(removed > 2, "{removed}");
    source.push(&one, "long").unwrap();
    assert_sound(&one);
}

#[test]
fn a_snapshot_that_goes_while_it_is_verified_is_no_damage() {
    for skipped in 0..8 {
        let service = Service::new();
        let one = repository(&service);
        let source = source(&one);
        source.push(&one, "one").unwrap();
        let other = Arc::clone(&service);
        service.meanwhile((Request::Get, "/chunks/", skipped), move || {
            let two = repository(&other);
            two.delete(two.find(Some("one")).unwrap().id).unwrap();
            assert!(two.prune(&Policy::default(), true, false).unwrap().removed > 2);
        });
        let verified = one.verify(true, &mut |_, _| {}).unwrap();
        assert!(service.is_over());
        assert!(verified.findings.is_empty(), "{skipped}: {:?}", verified.findings);
    }
}

#[test]
fn a_push_ends_though_the_answer_to_an_object_of_its_own_is_lost() {
    for part in ["/pushing/", "/snapshots/"] {
        let service = Service::new();
        let one = repository(&service);
        let source = source(&one);
        service.lose_answer(part);
        assert!(source.push(&one, "again").unwrap().objects_new > 1, "{part}");
        assert!(!service.names().iter().any(|name| name.as_ref().contains("/pushing/")), "{part}");
        let again = source.push(&one, "again");
        assert!(matches!(again, Err(RepositoryError::Present(_))), "{again:?}");
        assert_whole(&one, &source, "again");
    }
}

#[test]
fn a_damaged_mark_is_named_and_goes_where_nothing_is_pushed() {
    let service = Service::new();
    let one = repository(&service);
    let source = source(&one);
    leave_unused(&one, &source, &service);
    assert!(prune(&one).marked > 2);
    let mark = service.names().into_iter().find(|name| name.as_ref().contains("/marks/")).unwrap();
    let mut content = service.content(&mark);
    content[0] ^= 1;
    service.replace(&mark, Some(content));
    let findings = one.verify(false, &mut |_, _| {}).unwrap().findings;
    let names_it = |text: &str| text.contains(mark.filename().unwrap()) && text.contains("prune --now");
    assert!(findings.len() == 1 && names_it(&findings[0]), "{findings:?}");
    let pushed = source.push(&one, "again").unwrap_err();
    let pruned = one.prune(&Policy::default(), false, false).unwrap_err();
    assert!(names_it(&pushed.to_string()) && names_it(&pruned.to_string()), "{pushed}; {pruned}");
    one.prune(&Policy::default(), true, true).unwrap();
    assert!(service.names().contains(&mark), "it was a dry run");
    assert!(one.prune(&Policy::default(), true, false).unwrap().removed > 2);
    assert!(!service.names().contains(&mark));
    assert_sound(&one);
    source.push(&one, "again").unwrap();
    assert_whole(&one, &source, "again");
    assert_whole(&one, &source, "other");
}
