//! Buckets, their sums, and what is told of them.

use kvfs_fs::operations::Target;
use kvfs_store::clock::ManualClock;

use super::*;
use crate::caller::Caller;
use crate::lines::TraceRequest;
use crate::testing::{World, assert_denied, stranger};

fn operation(kind: OperationKind, start: Duration) -> Operation<'static> {
    Operation {
        kind,
        start,
        uid: 5,
        pid: 0,
        txn: 0,
        errno: 0,
        bytes: 0,
        has_waited: false,
        target: Target::Path(b"/a"),
    }
}

#[test]
fn buckets_cover_all_times_and_are_a_sixteenth_wide() {
    assert_eq!((bucket_of(0), bucket_of(127), bucket_of(128)), (0, 0, 1));
    assert_eq!(bucket_start(0), 0);
    for index in 1..BUCKETS - 1 {
        let (start, end) = (bucket_start(index), bucket_start(index + 1));
        assert_eq!((bucket_of(start), bucket_of(end - 1)), (index, index));
        assert!(end > start && (end - start) * 16 <= start, "{index}: {start}..{end}");
    }
    let last = bucket_start(BUCKETS - 1);
    assert_eq!(last, 1 << 40, "about 18 minutes");
    assert_eq!(
        (bucket_of(last - 1), bucket_of(last), bucket_of(u64::MAX)),
        (BUCKETS - 2, BUCKETS - 1, BUCKETS - 1)
    );
}

/// Counts operations that took so long, by a clock that stands otherwise.
fn counted(times: impl IntoIterator<Item = u64>) -> OperationLine {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1)));
    let operations = Operations::with_clock(Arc::clone(&clock) as Arc<dyn Clock>);
    for nanos in times {
        let start = operations.now();
        clock.advance(Duration::from_nanos(nanos));
        operations.record(&operation(OperationKind::Read, start));
    }
    operations.lines().kinds.into_iter().next().unwrap_or_default()
}

#[test]
fn quantile_is_off_by_a_thirty_second_at_most() {
    // Five decades, each number once, in no order.
    let times: Vec<u64> = (0..10_000u64).map(|n| 150 + (n * 7919 % 10_000).pow(3) / 17).collect();
    let line = counted(times.iter().copied());
    let mut sorted = times;
    sorted.sort_unstable();
    for part in [0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0] {
        let rank = ((sorted.len() as f64 * part).ceil() as usize).max(1);
        let (exact, told) = (sorted[rank - 1] as f64, line.quantile(part).as_nanos() as f64);
        assert!((exact - told).abs() <= exact / 32.0 + 1.0, "{part}: {exact}, {told}");
    }
    assert_eq!(line.count(), 10_000);
    assert_eq!(line.nanos, sorted.iter().sum::<u64>());
    assert_eq!(line.longest().as_nanos() as u64, sorted[9_999]);
    assert_eq!(OperationLine::default().quantile(0.5), Duration::ZERO);
}

#[test]
fn times_beyond_the_buckets_are_counted_and_the_longest_is_told() {
    let hour = 3_600_000_000_000;
    let line = counted([hour, 1, 2 * hour]);
    assert_eq!(line.buckets, [(0, 1), (BUCKETS as u16 - 1, 2)]);
    assert_eq!((line.quantile(0.1), line.quantile(0.9)), (Duration::from_nanos(64), Duration::from_hours(2)));
    assert_eq!((line.count_below(128), line.count_below(1 << 40)), (1, 1));
}

#[test]
fn operations_of_all_threads_are_one_sum() {
    let operations = Operations::default();
    std::thread::scope(|scope| {
        for _ in 0..2 * SHARDS {
            scope.spawn(|| {
                for _ in 0..1000 {
                    let done = operation(OperationKind::Write, operations.now());
                    operations.record(&Operation { bytes: 10, errno: 28, ..done });
                }
            });
        }
    });
    let lines = operations.lines();
    let [line] = &lines.kinds[..] else { panic!("{lines:?}") };
    assert_eq!((&*line.kind, line.count()), ("write", 16_000));
    assert_eq!((line.errors, line.bytes), (16_000, 160_000));
    let nothing = line.since(line);
    assert_eq!((nothing.count(), nothing.errors, nothing.quantile(0.99)), (0, 0, Duration::ZERO));
    assert_eq!(line.since(&OperationLine::default()).count(), 16_000);
    let both = OperationLine::sum("both", [line, line]);
    assert_eq!((both.count(), both.bytes, both.longest()), (32_000, 320_000, line.longest()));
    assert_eq!(both.quantile(0.5), line.quantile(0.5));
}

#[test]
fn only_slow_operations_that_have_not_waited_are_heeded() {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1)));
    let operations = Arc::new(Operations::with_clock(Arc::clone(&clock) as Arc<dyn Clock>));
    let start = operations.now();
    clock.advance(Duration::from_secs(2));
    assert!(!operations.wants_target(start), "there is no reader");
    let log = SlowLog::start(&operations, Duration::from_secs(1)).expect("starts");
    assert!(operations.wants_target(start) && !operations.wants_target(operations.now()));
    drop(log);
    assert!(!operations.wants_target(start));
}

#[test]
fn trace_is_for_root_and_the_owner_and_ends_with_the_store() {
    let world = World::new(false);
    let (store, request) = (world.mounted(), TraceRequest::default());
    assert_denied(store.trace(&stranger(), &request), "only root and the store's owner trace operations");
    let error = world.unmounted().trace(&Caller::own(), &request).expect_err("is refused");
    assert_eq!(error.kind(), crate::ErrorKind::NotMounted);
    let operations = &world.operations;
    let reader = Caller::of_mount(Caller::own().uid, 4711);
    operations.record(&operation(OperationKind::Read, operations.now()));
    store.trace(&reader, &request).expect("begins");
    let error = Operation { errno: 2, bytes: 9, ..operation(OperationKind::Lookup, operations.now()) };
    operations.record(&Operation { target: Target::Inode { inode: 1, name: b"gone" }, ..error });
    operations.record(&Operation { target: Target::Inode { inode: 999, name: b"" }, ..error });
    operations.record(&Operation { target: Target::Key { keyspace: "tags", key: b"a" }, ..error });
    let page = operations.traced(reader.number).expect("goes on").0;
    let targets: Vec<_> = page.iter().map(|line| String::from_utf8_lossy(&line.target)).collect();
    assert_eq!(targets, ["/gone", "(inode 999)", "tags/a"]);
    assert_eq!((&*page[0].kind, page[0].errno, page[0].bytes, page[0].uid), ("lookup", 2, 9, 5));
    operations.end_readers();
    assert!(operations.traced(reader.number).is_none());
    operations.forget_reader(reader.number);
    assert!(!operations.wants_target(Duration::ZERO));
}
