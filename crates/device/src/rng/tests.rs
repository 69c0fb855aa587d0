use super::Rng;

#[test]
fn known_sequence_never_changes() {
    // First outputs for seed 1234567 in the published reference implementation of SplitMix64.
    let mut rng = Rng::new(1_234_567);
    let drawn: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
    assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
}

#[test]
fn below_stays_in_bounds_and_reaches_every_value() {
    let mut rng = Rng::new(1);
    let mut seen = [0u32; 7];
    for _ in 0..7000 {
        seen[rng.index(7)] += 1;
    }
    assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "uneven: {seen:?}");
    assert_eq!(rng.below(0), 0);
    assert!((0..100).all(|_| (5..9).contains(&rng.range(5, 9))));
}

#[test]
fn shuffle_permutes_and_fill_covers_odd_lengths() {
    let mut rng = Rng::new(2);
    let mut items: Vec<u32> = (0..50).collect();
    rng.shuffle(&mut items);
    assert_ne!(items, (0..50).collect::<Vec<_>>());
    items.sort_unstable();
    assert_eq!(items, (0..50).collect::<Vec<_>>());

    let mut bytes = [0u8; 1001];
    rng.fill(&mut bytes);
    assert!(bytes[993..].iter().any(|&byte| byte != 0));
    assert_ne!(rng.fork().next_u64(), rng.clone().next_u64());
}
