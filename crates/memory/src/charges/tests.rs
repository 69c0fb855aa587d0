use std::thread;

use super::*;

fn charges() -> Arc<Charges> {
    Charges::new(&["table", "cache"])
}

#[test]
fn charge_that_grows_and_shrinks_is_counted_by_pool_class_and_place() {
    let charges = charges();
    let (mut charge, line) = (charges.charge(1, 600), line!());
    let idle = charges.charge(1, 0);
    charge.grow(3000);
    charge.shrink(100);
    assert_eq!((charge.bytes(), charges.used(1), charges.used_total()), (3500, 3500, 3500));
    charge.resize(1000);
    assert_eq!(
        (charges.used(0), charges.used(1), charges.peak(1), charges.peak_total()),
        (0, 1000, 3600, 3600)
    );
    let class =
        |bytes_max, bytes, bytes_peak, count| ClassUse { bytes_max, bytes, bytes_peak, count, count_peak: 1 };
    assert_eq!(charges.classes(1), [class(1024, 1000, 1000, 1), class(4096, 0, 3600, 0)]);
    let live = charges.live();
    let [LiveCharges { pool: "cache", at: Some(at), bytes: 1000, bytes_peak: 3600, count: 1, .. }] = live[..]
    else {
        panic!("{live:?}")
    };
    assert_eq!((at.file(), at.line()), (file!(), line), "a charge of nothing is nowhere");
    drop((charge, idle));
    assert!(charges.live().is_empty() && charges.used_total() == 0 && charges.classes(0).is_empty());
}

#[test]
fn threads_that_grow_one_charge_leave_nothing_behind() {
    let charges = charges();
    let charge = charges.charge(0, 0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1000).for_each(|bytes| charge.grow(bytes)));
        }
    });
    assert_eq!(charges.used(0), 4 * 999 * 500);
    let counts = |charges: &Charges| charges.classes(0).iter().map(|class| class.count).sum::<u64>();
    assert_eq!((counts(&charges), charges.live()[0].count), (1, 1));
    charge.release();
    assert_eq!(charge.bytes(), 0);
    drop(charge);
    assert!(charges.classes(0).iter().all(|class| class.bytes == 0 && class.count == 0));
    assert_eq!((charges.used_total(), charges.live()), (0, Vec::new()));
}

#[test]
fn age_of_the_oldest_is_known_among_many_that_come_and_go() {
    const HOUR: u64 = 3600;
    let charges = charges();
    let (mut queue, mut kept) = (Vec::new(), None);
    for second in 0..10 * HOUR {
        charges.set_now(Duration::from_secs(second));
        let charge = charges.charge(0, 10);
        if second == HOUR {
            kept = Some(charge);
        } else {
            queue.push(charge);
        }
        if queue.len() > 100 {
            drop(queue.remove(0));
        }
    }
    let age_max = charges.live()[0].age_max.as_secs();
    let age = 9 * HOUR;
    assert!((age - 1..age + age / 2).contains(&age_max), "{age_max}");
    drop(kept);
    let age_max = charges.live()[0].age_max.as_secs();
    assert!((100..=200).contains(&age_max), "{age_max}");
}

#[test]
fn places_beyond_the_table_are_counted_together() {
    let sites = Sites::default();
    let places = || (0..SITES_MAX + 2).map(|_| &*Box::leak(Box::new(*Location::caller())));
    let numbers: Vec<_> = places().map(|at| sites.find(at)).collect();
    let others = numbers.iter().filter(|&&number| usize::from(number) == SITES_MAX).count();
    assert_eq!(others, 2);
    sites.get(SITES_MAX as u8).enter(0);
    assert!(sites.iter().any(|site| site.at().is_none() && site.count() == 1));
}
