use super::*;
use crate::format::PieceId;
use crate::version::RunId;

fn found(bytes: u64, bytes_hot: u64, count: u64) -> Found {
    let plan = MigrationPlan { bytes_to_fast: bytes, ..MigrationPlan::default() };
    let target = Target { keyspace: 1, run: RunId(1), piece: PieceId(1) };
    Found { target, plan, by_heat: ByHeat { bytes_cold: 0, bytes_hot, count } }
}

#[test]
fn what_spares_most_reads_for_what_is_moved_comes_first_and_takes_more_of_the_time() {
    const MIB: u64 = 1 << 20;
    let mut all = [found(MIB, 0, 0), found(4 * MIB, 4 * MIB, 40), found(MIB, MIB, 20), found(0, 0, 0)];
    all.sort_by_key(Found::order);
    assert_eq!(all.each_ref().map(|found| found.by_heat.count), [20, 40, 0, 0]);
    let shares = all.each_ref().map(Found::share_divisor);
    assert_eq!(shares, [SHARE_DIVISOR_HOT, SHARE_DIVISOR_HOT, SHARE_DIVISOR, SHARE_DIVISOR]);
}
