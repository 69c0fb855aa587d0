//! The outcomes for people, and as JSON.
//!
//! Thread safety: pure functions.

use anyhow::Result;
use kvfs_bench::goals::Bound;
use kvfs_bench::units::Unit;
use kvfs_kvdb::Policy;
use kvfs_store::Tier;
use serde_json::json;
use std::fmt::Write;

use crate::load::Load;
use crate::replay::{Costs, Outcome};

/// All outcomes of a load; where it has both classes, whether the goal of `tiered` is met.
pub(crate) fn text(load: &Load, outcomes: &[Outcome], costs: Costs, goal: Bound) -> String {
    let mut text = format!("{}\n", load.title());
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        text,
        "  {:>10} {:<8}{:>9}{:>9}{:>9}{:>12}{:>10}{:>9}",
        "cache", "policy", "hits", "fast", "slow", "wait", "of lru's", "replay"
    );
    let mut size_last = None;
    for outcome in outcomes {
        let size = Unit::Bytes.text(outcome.cache_bytes as f64);
        let size = if size_last == Some(outcome.cache_bytes) { String::new() } else { size };
        size_last = Some(outcome.cache_bytes);
        let ratio = ratio_to_lru(outcomes, outcome, costs);
        let _ = writeln!(
            text,
            "  {size:>10} {:<8}{:>9}{:>9}{:>9}{:>12}{:>10}{:>9}",
            outcome.policy.name(),
            Unit::Share.text(outcome.hit_rate()),
            Unit::Share.text(outcome.hit_rate_of(Tier::Fast)),
            Unit::Share.text(outcome.hit_rate_of(Tier::Slow)),
            format!("{:.4} ms", outcome.wait_ms(costs)),
            ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
            format!("{:.0} ns", outcome.ns),
        );
    }
    for policy in Policy::ALL {
        let Some(ratio) = mean_ratio(outcomes, policy, costs) else { continue };
        let _ = write!(text, "  {:<8} waits {ratio:.2} x what lru does, over all sizes", policy.name());
        if policy.name() == "tiered" && load.has_both_tiers() {
            let _ = write!(text, "  {}", goal.text(ratio, |limit| format!("{limit}")));
        }
        text.push('\n');
    }
    text.push('\n');
    text
}

/// A line for each outcome.
pub(crate) fn json(load: &Load, outcomes: &[Outcome], costs: Costs) -> Result<String> {
    let mut text = String::new();
    for outcome in outcomes {
        let line = json!({
            "load": load.name,
            "policy": outcome.policy.name(),
            "cache_bytes": outcome.cache_bytes,
            "hit_rate": outcome.hit_rate(),
            "hit_rate_fast": outcome.hit_rate_of(Tier::Fast),
            "hit_rate_slow": outcome.hit_rate_of(Tier::Slow),
            "wait_ms": outcome.wait_ms(costs),
            "replay_ns": outcome.ns,
        });
        writeln!(text, "{}", serde_json::to_string(&line)?)?;
    }
    Ok(text)
}

/// The wait of `outcome` divided by that of `lru` with the same size.
fn ratio_to_lru(outcomes: &[Outcome], outcome: &Outcome, costs: Costs) -> Option<f64> {
    let is_lru = |other: &&Outcome| other.policy == Policy::Lru && other.cache_bytes == outcome.cache_bytes;
    let lru = outcomes.iter().find(is_lru)?;
    Some(outcome.wait_ms(costs) / lru.wait_ms(costs)).filter(|ratio| ratio.is_finite() && *ratio > 0.0)
}

/// Geometric mean over the sizes.
fn mean_ratio(outcomes: &[Outcome], policy: Policy, costs: Costs) -> Option<f64> {
    let of_policy = outcomes.iter().filter(|outcome| outcome.policy == policy && policy != Policy::Lru);
    let logs: Vec<f64> =
        of_policy.filter_map(|outcome| ratio_to_lru(outcomes, outcome, costs)).map(f64::ln).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{Shape, Synthetic};

    #[test]
    fn table_has_a_line_for_each_outcome_and_compares_with_lru() {
        let load = Synthetic { shape: Shape::Zipf, blocks: 200, lookups: 3000, seed: 1 }.load();
        let costs = Costs { fast_ms: 0.1, slow_ms: 8.0 };
        let outcomes: Vec<_> =
            Policy::ALL.iter().map(|&policy| Outcome::of(&load, policy, 512 << 10)).collect();
        let text = text(&load, &outcomes, costs, Bound::AtMost(0.9));
        for policy in Policy::ALL {
            assert!(text.contains(&format!(" {} ", policy.name())), "{text}");
        }
        assert!(text.contains("1.00"), "lru is as long as itself: {text}");
        assert_eq!(mean_ratio(&outcomes, Policy::Lru, costs), None);
        let lines = json(&load, &outcomes, costs).expect("is valid");
        assert_eq!(lines.lines().count(), Policy::ALL.len());
        assert!(lines.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
    }
}
