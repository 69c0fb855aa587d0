//! Random values as the specification has them (clauses 2.1.6, 4.3.2, 4.3.3).
//!
//! Thread safety: plain functions over the caller's generator.

use super::{CUSTOMERS, ITEMS};
use kvfs_device::Rng;
use std::fmt::Write;

/// Of last names when the tables are filled.
const C_LAST_LOAD: u64 = 157;
/// Of last names in transactions: 66 more, which the specification allows.
const C_LAST_RUN: u64 = 223;
const C_CUSTOMER: u64 = 259;
const C_ITEM: u64 = 7911;

/// Both ends are drawn.
pub(super) fn between(rng: &mut Rng, low: u32, high: u32) -> u32 {
    rng.range(low.into(), u64::from(high) + 1) as u32
}

fn non_uniform(rng: &mut Rng, a: u64, c: u64, low: u64, high: u64) -> u64 {
    (((rng.below(a + 1) | rng.range(low, high + 1)) + c) % (high - low + 1)) + low
}

pub(super) fn customer(rng: &mut Rng) -> u32 {
    non_uniform(rng, 1023, C_CUSTOMER, 1, CUSTOMERS.into()) as u32
}

pub(super) fn item(rng: &mut Rng) -> u32 {
    non_uniform(rng, 8191, C_ITEM, 1, ITEMS.into()) as u32
}

/// A last name that a transaction looks for.
pub(super) fn last_name(rng: &mut Rng) -> String {
    name(non_uniform(rng, 255, C_LAST_RUN, 0, 999))
}

/// The last name of a customer of this number (from 1) when the tables are filled.
pub(super) fn last_name_of(rng: &mut Rng, customer: u32) -> String {
    if customer <= 1000 {
        name(u64::from(customer) - 1)
    } else {
        name(non_uniform(rng, 255, C_LAST_LOAD, 0, 999))
    }
}

fn name(number: u64) -> String {
    const SYLLABLES: [&str; 10] =
        ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];
    [number / 100, number / 10 % 10, number % 10].map(|digit| SYLLABLES[digit as usize]).concat()
}

/// Letters and digits, so many as are drawn.
pub(super) fn text(rng: &mut Rng, low: u32, high: u32) -> String {
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789ab";
    let len = between(rng, low, high) as usize;
    let mut text = String::with_capacity(len + 10);
    while text.len() < len {
        // Ten letters of six bits each.
        let mut bits = rng.below(1 << 60);
        for _ in 0..10 {
            text.push(char::from(LETTERS[(bits & 63) as usize]));
            bits >>= 6;
        }
    }
    text.truncate(len);
    text
}

/// As [`text`]; every tenth has ORIGINAL in it.
pub(super) fn data(rng: &mut Rng) -> String {
    let mut data = text(rng, 26, 50);
    if rng.below(10) == 0 {
        let place = rng.below(data.len() as u64 - 8 + 1) as usize;
        data.replace_range(place..place + 8, "ORIGINAL");
    }
    data
}

pub(super) fn zip(rng: &mut Rng) -> String {
    format!("{:04}11111", rng.below(10_000))
}

/// Streets, city, state and zip as SQL literals.
pub(super) fn address(rng: &mut Rng) -> String {
    let mut sql = String::new();
    for (low, high) in [(10, 20), (10, 20), (10, 20), (2, 2)] {
        // Writing to a string cannot fail.
        let _ = write!(sql, "'{}',", text(rng, low, high));
    }
    sql + &format!("'{}'", zip(rng))
}

/// The numbers from 1 on in random order.
pub(super) fn permutation(rng: &mut Rng, count: u32) -> Vec<u32> {
    let mut all: Vec<u32> = (1..=count).collect();
    for place in (1..all.len()).rev() {
        all.swap(place, rng.below(place as u64 + 1) as usize);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_within_the_bounds_of_the_specification() {
        let mut rng = Rng::new(7);
        for _ in 0..10_000 {
            assert!((1..=CUSTOMERS).contains(&customer(&mut rng)));
            assert!((1..=ITEMS).contains(&item(&mut rng)));
            assert!((26..=50).contains(&data(&mut rng).len()));
        }
        assert_eq!(name(371), "PRICALLYOUGHT");
        let mut all = permutation(&mut rng, 3000);
        all.sort_unstable();
        assert!(all.into_iter().eq(1..=3000));
    }
}
