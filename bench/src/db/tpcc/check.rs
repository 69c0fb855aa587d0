//! The consistency conditions (clause 3.3.2) that hold at all times: all twelve but the eleventh, which is of
//! the first filling.
//!
//! Thread safety: constants and plain functions.

use anyhow::{Result, ensure};
use mysql::Conn;
use mysql::prelude::Queryable;

/// Number of the condition, and a query that counts what violates it.
const CONDITIONS: &[(u32, &str)] = &[
    (
        1,
        "SELECT COUNT(*) FROM warehouse WHERE w_ytd <> (SELECT SUM(d_ytd) FROM district WHERE d_w_id = w_id)",
    ),
    (
        2,
        "SELECT COUNT(*) FROM district WHERE d_next_o_id - 1 <> (SELECT MAX(o_id) FROM orders WHERE o_w_id = d_w_id \
         AND o_d_id = d_id) OR d_next_o_id - 1 <> (SELECT MAX(no_o_id) FROM new_orders WHERE no_w_id = d_w_id AND \
         no_d_id = d_id)",
    ),
    (
        3,
        "SELECT COUNT(*) FROM (SELECT MAX(no_o_id) - MIN(no_o_id) + 1 AS span, COUNT(*) AS found FROM new_orders \
         GROUP BY no_w_id, no_d_id) AS each_district WHERE span <> found",
    ),
    (
        4,
        "SELECT COUNT(*) FROM (SELECT o_w_id, o_d_id, SUM(o_ol_cnt) AS expected FROM orders GROUP BY o_w_id, o_d_id) \
         AS o JOIN (SELECT ol_w_id, ol_d_id, COUNT(*) AS found FROM order_line GROUP BY ol_w_id, ol_d_id) AS l ON \
         o_w_id = ol_w_id AND o_d_id = ol_d_id WHERE expected <> found",
    ),
    (
        5,
        "SELECT COUNT(*) FROM orders LEFT JOIN new_orders ON no_w_id = o_w_id AND no_d_id = o_d_id AND no_o_id = o_id \
         WHERE (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL)",
    ),
    (
        6,
        "SELECT COUNT(*) FROM orders LEFT JOIN (SELECT ol_w_id, ol_d_id, ol_o_id, COUNT(*) AS found FROM order_line \
         GROUP BY ol_w_id, ol_d_id, ol_o_id) AS l ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id \
         WHERE o_ol_cnt <> COALESCE(found, 0)",
    ),
    (
        7,
        "SELECT COUNT(*) FROM order_line JOIN orders ON o_w_id = ol_w_id AND o_d_id = ol_d_id AND o_id = ol_o_id \
         WHERE (ol_delivery_d IS NULL) <> (o_carrier_id IS NULL)",
    ),
    (
        8,
        "SELECT COUNT(*) FROM warehouse JOIN (SELECT h_w_id, SUM(h_amount) AS paid FROM history GROUP BY h_w_id) AS h \
         ON h_w_id = w_id WHERE w_ytd <> paid",
    ),
    (
        9,
        "SELECT COUNT(*) FROM district JOIN (SELECT h_w_id, h_d_id, SUM(h_amount) AS paid FROM history GROUP BY \
         h_w_id, h_d_id) AS h ON h_w_id = d_w_id AND h_d_id = d_id WHERE d_ytd <> paid",
    ),
    (
        10,
        "SELECT COUNT(*) FROM customer LEFT JOIN (SELECT o_w_id, o_d_id, o_c_id, SUM(ol_amount) AS bought FROM \
         orders JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id WHERE ol_delivery_d IS NOT \
         NULL GROUP BY o_w_id, o_d_id, o_c_id) AS b ON o_w_id = c_w_id AND o_d_id = c_d_id AND o_c_id = c_id LEFT \
         JOIN (SELECT h_c_w_id, h_c_d_id, h_c_id, SUM(h_amount) AS paid FROM history GROUP BY h_c_w_id, h_c_d_id, \
         h_c_id) AS h ON h_c_w_id = c_w_id AND h_c_d_id = c_d_id AND h_c_id = c_id WHERE c_balance <> \
         COALESCE(bought, 0) - COALESCE(paid, 0)",
    ),
    (
        12,
        "SELECT COUNT(*) FROM customer LEFT JOIN (SELECT o_w_id, o_d_id, o_c_id, SUM(ol_amount) AS bought FROM \
         orders JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id WHERE ol_delivery_d IS NOT \
         NULL GROUP BY o_w_id, o_d_id, o_c_id) AS b ON o_w_id = c_w_id AND o_d_id = c_d_id AND o_c_id = c_id WHERE \
         c_balance + c_ytd_payment <> COALESCE(bought, 0)",
    ),
];

/// Counts violations of each condition up to `last`.
pub(crate) fn check(connection: &mut Conn, last: u32) -> Result<()> {
    for (number, query) in CONDITIONS.iter().filter(|(number, _)| *number <= last) {
        let violations: Option<u64> = connection.query_first(*query)?;
        ensure!(violations == Some(0), "TPC-C's consistency condition {number}: {violations:?} violations");
    }
    Ok(())
}
