//! The five transactions (clauses 2.4 to 2.8) without keying and think times.
//!
//! Thread safety: a terminal belongs to one thread.

use super::random::{between, customer, item, last_name, text};
use super::{DISTRICTS, ITEMS};
use kvfs_bench::latencies::Latencies;
use kvfs_device::Rng;
use mysql::prelude::Queryable;
use mysql::{Conn, Params, Transaction, TxOpts, Value};
use std::time::Instant;

/// One of the five.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    NewOrder,
    Payment,
    OrderStatus,
    Delivery,
    StockLevel,
}

impl Kind {
    /// In the standard mix (clause 5.2.3).
    fn draw(rng: &mut Rng) -> Self {
        match rng.below(100) {
            0..45 => Self::NewOrder,
            45..88 => Self::Payment,
            88..92 => Self::OrderStatus,
            92..96 => Self::Delivery,
            _ => Self::StockLevel,
        }
    }
}

/// What terminals have done.
#[derive(Default)]
pub(crate) struct Tally {
    /// How long new orders took, those that were rolled back as the specification asks included.
    pub(crate) new_orders: Latencies,
    /// All that came to their end.
    pub(crate) transactions: u64,
    /// Begun anew for a deadlock or a lock that was waited for too long.
    pub(crate) conflicts: u64,
}

impl Tally {
    /// Adds another's.
    pub(crate) fn add(&mut self, other: Self) {
        self.new_orders.append(other.new_orders);
        self.transactions += other.transactions;
        self.conflicts += other.conflicts;
    }
}

/// A client at a warehouse.
pub(crate) struct Terminal {
    connection: Conn,
    rng: Rng,
    home: u32,
    warehouses: u32,
}

/// Whether a transaction is to be begun anew: a deadlock, or a lock that was waited for too long.
fn is_conflict(error: &mysql::Error) -> bool {
    matches!(error, mysql::Error::MySqlError(error) if matches!(error.code, 1205 | 1213))
}

impl Terminal {
    pub(crate) fn new(connection: Conn, number: u32, warehouses: u32, seed: u64) -> Self {
        let rng = Rng::new(seed.wrapping_mul(1000) + u64::from(number) + 1);
        Self { connection, rng, home: number % warehouses + 1, warehouses }
    }

    /// Does a transaction of the mix, anew as often as it takes.
    pub(crate) fn step(&mut self, tally: &mut Tally) -> mysql::Result<()> {
        let kind = Kind::draw(&mut self.rng);
        let start = Instant::now();
        loop {
            match self.once(kind) {
                Err(error) if is_conflict(&error) => tally.conflicts += 1,
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        tally.transactions += 1;
        if kind == Kind::NewOrder {
            tally.new_orders.add(start.elapsed());
        }
        Ok(())
    }

    fn once(&mut self, kind: Kind) -> mysql::Result<()> {
        let tx = self.connection.start_transaction(TxOpts::default())?;
        let mut work = Work { tx, rng: &mut self.rng, home: self.home, warehouses: self.warehouses };
        let is_done = match kind {
            Kind::NewOrder => work.new_order()?,
            Kind::Payment => work.payment()?,
            Kind::OrderStatus => work.order_status()?,
            Kind::Delivery => work.delivery()?,
            Kind::StockLevel => work.stock_level()?,
        };
        if is_done { work.tx.commit() } else { work.tx.rollback() }
    }
}

/// One transaction; each of the five returns whether it is to be committed.
struct Work<'a> {
    tx: Transaction<'a>,
    rng: &'a mut Rng,
    home: u32,
    warehouses: u32,
}

/// An order line that is wanted.
struct Line {
    supply: u32,
    item: u32,
    quantity: u32,
}

impl Work<'_> {
    fn other_warehouse(&mut self) -> u32 {
        let other = between(self.rng, 1, (self.warehouses - 1).max(1));
        if other >= self.home && self.warehouses > 1 { other + 1 } else { other }
    }

    fn new_order(&mut self) -> mysql::Result<bool> {
        let (home, district) = (self.home, between(self.rng, 1, DISTRICTS));
        let customer = customer(self.rng);
        let mut lines = self.lines();
        let count = lines.len() as u32;
        let is_local = lines.iter().all(|line| line.supply == home);
        if self.rng.below(100) == 0 {
            // An item that there is not: the specification wants it rolled back.
            lines[count as usize - 1].item = ITEMS + 1;
        }
        // In one order in all transactions, so that they do not wait for each other in a circle.
        lines.sort_by_key(|line| (line.supply, line.item));
        let _: Option<(f64, String, String, f64)> = self.tx.exec_first(
            "SELECT c_discount, c_last, c_credit, w_tax FROM customer JOIN warehouse ON w_id = c_w_id \
             WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
            (home, district, customer),
        )?;
        let order: Option<(u32, f64)> = self.tx.exec_first(
            "SELECT d_next_o_id, d_tax FROM district WHERE d_w_id = ? AND d_id = ? FOR UPDATE",
            (home, district),
        )?;
        let Some((order, _tax)) = order else { return Ok(false) };
        self.tx.exec_drop(
            "UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = ? AND d_id = ?",
            (home, district),
        )?;
        self.tx.exec_drop(
            "INSERT INTO orders VALUES (?, ?, ?, ?, NOW(), NULL, ?, ?)",
            (home, district, order, customer, count, u32::from(is_local)),
        )?;
        self.tx.exec_drop("INSERT INTO new_orders VALUES (?, ?, ?)", (home, district, order))?;
        let mut values: Vec<Value> = Vec::new();
        for (number, line) in (1_u32..).zip(&lines) {
            let Some((amount, info)) = self.take_from_stock(line, district)? else { return Ok(false) };
            values.extend([home, district, order, number, line.item, line.supply].map(Value::from));
            values.extend([line.quantity.into(), amount.into(), info.into()]);
        }
        let rows = vec!["(?, ?, ?, ?, ?, ?, NULL, ?, ?, ?)"; lines.len()].join(",");
        self.tx.exec_drop(format!("INSERT INTO order_line VALUES {rows}"), Params::Positional(values))?;
        Ok(true)
    }

    /// 5 to 15 lines, 1 % of them from another warehouse.
    fn lines(&mut self) -> Vec<Line> {
        let count = between(self.rng, 5, 15);
        let line = |_| {
            let is_remote = self.rng.below(100) == 0;
            let supply = if is_remote { self.other_warehouse() } else { self.home };
            Line { supply, item: item(self.rng), quantity: between(self.rng, 1, 10) }
        };
        (0..count).map(line).collect()
    }

    /// Amount and district's information of a line; `None` when there is no such item.
    fn take_from_stock(&mut self, line: &Line, district: u32) -> mysql::Result<Option<(f64, String)>> {
        let found: Option<(f64, String, String)> =
            self.tx.exec_first("SELECT i_price, i_name, i_data FROM item WHERE i_id = ?", (line.item,))?;
        let Some((price, _name, _data)) = found else { return Ok(None) };
        let stock: Option<(u32, String, String)> = self.tx.exec_first(
            format!(
                "SELECT s_quantity, s_data, s_dist_{district:02} FROM stock WHERE s_w_id = ? AND s_i_id = ? FOR UPDATE"
            ),
            (line.supply, line.item),
        )?;
        let Some((in_stock, _data, info)) = stock else { return Ok(None) };
        let enough = in_stock >= line.quantity + 10;
        let left = if enough { in_stock - line.quantity } else { in_stock + 91 - line.quantity };
        self.tx.exec_drop(
            "UPDATE stock SET s_quantity = ?, s_ytd = s_ytd + ?, s_order_cnt = s_order_cnt + 1, \
             s_remote_cnt = s_remote_cnt + ? WHERE s_w_id = ? AND s_i_id = ?",
            (left, line.quantity, u32::from(line.supply != self.home), line.supply, line.item),
        )?;
        Ok(Some((f64::from(line.quantity) * price, info)))
    }

    /// A customer by number (40 %) or, the middle one, by last name (60 %).
    fn find_customer(&mut self, warehouse: u32, district: u32) -> mysql::Result<Option<u32>> {
        if self.rng.below(100) < 40 {
            return Ok(Some(customer(self.rng)));
        }
        let found: Vec<u32> = self.tx.exec(
            "SELECT c_id FROM customer WHERE c_w_id = ? AND c_d_id = ? AND c_last = ? ORDER BY c_first",
            (warehouse, district, last_name(self.rng)),
        )?;
        Ok(found.get(found.len().div_ceil(2).saturating_sub(1)).copied())
    }

    fn payment(&mut self) -> mysql::Result<bool> {
        let (home, district) = (self.home, between(self.rng, 1, DISTRICTS));
        let amount = f64::from(between(self.rng, 100, 500_000)) / 100.0;
        let is_remote = self.warehouses > 1 && self.rng.below(100) < 15;
        let (of_warehouse, of_district) = if is_remote {
            (self.other_warehouse(), between(self.rng, 1, DISTRICTS))
        } else {
            (home, district)
        };
        self.tx.exec_drop("UPDATE warehouse SET w_ytd = w_ytd + ? WHERE w_id = ?", (amount, home))?;
        let _: Option<(String, String, String)> =
            self.tx.exec_first("SELECT w_name, w_city, w_zip FROM warehouse WHERE w_id = ?", (home,))?;
        self.tx.exec_drop(
            "UPDATE district SET d_ytd = d_ytd + ? WHERE d_w_id = ? AND d_id = ?",
            (amount, home, district),
        )?;
        let _: Option<(String, String, String)> = self.tx.exec_first(
            "SELECT d_name, d_city, d_zip FROM district WHERE d_w_id = ? AND d_id = ?",
            (home, district),
        )?;
        let Some(customer) = self.find_customer(of_warehouse, of_district)? else { return Ok(false) };
        let whom = (of_warehouse, of_district, customer);
        let found: Option<(String, String)> = self.tx.exec_first(
            "SELECT c_credit, c_data FROM customer WHERE c_w_id = ? AND c_d_id = ? AND c_id = ? FOR UPDATE",
            whom,
        )?;
        let Some((credit, mut data)) = found else { return Ok(false) };
        if credit == "BC" {
            data.insert_str(
                0,
                &format!("{customer},{of_district},{of_warehouse},{district},{home},{amount:.2}|"),
            );
            data.truncate(500);
        }
        self.tx.exec_drop(
            "UPDATE customer SET c_balance = c_balance - ?, c_ytd_payment = c_ytd_payment + ?, \
             c_payment_cnt = c_payment_cnt + 1, c_data = ? WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
            (amount, amount, data, of_warehouse, of_district, customer),
        )?;
        self.tx.exec_drop(
            "INSERT INTO history VALUES (?, ?, ?, ?, ?, NOW(), ?, ?)",
            (customer, of_district, of_warehouse, district, home, amount, text(self.rng, 12, 24)),
        )?;
        Ok(true)
    }

    fn order_status(&mut self) -> mysql::Result<bool> {
        let (home, district) = (self.home, between(self.rng, 1, DISTRICTS));
        let Some(customer) = self.find_customer(home, district)? else { return Ok(true) };
        let _: Option<(f64, String, String)> = self.tx.exec_first(
            "SELECT c_balance, c_first, c_last FROM customer WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
            (home, district, customer),
        )?;
        let order: Option<u32> = self.tx.exec_first(
            "SELECT o_id FROM orders WHERE o_w_id = ? AND o_d_id = ? AND o_c_id = ? ORDER BY o_id DESC LIMIT 1",
            (home, district, customer),
        )?;
        if let Some(order) = order {
            let _: Vec<(u32, u32, u32, f64)> = self.tx.exec(
                "SELECT ol_i_id, ol_supply_w_id, ol_quantity, ol_amount FROM order_line \
                 WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id = ?",
                (home, district, order),
            )?;
        }
        Ok(true)
    }

    /// Of the oldest order of each district.
    fn delivery(&mut self) -> mysql::Result<bool> {
        let (home, carrier) = (self.home, between(self.rng, 1, 10));
        for district in 1..=DISTRICTS {
            let oldest: Option<u32> = self.tx.exec_first(
                "SELECT no_o_id FROM new_orders WHERE no_w_id = ? AND no_d_id = ? ORDER BY no_o_id LIMIT 1 FOR UPDATE",
                (home, district),
            )?;
            let Some(order) = oldest else { continue };
            let which = (home, district, order);
            self.tx.exec_drop(
                "DELETE FROM new_orders WHERE no_w_id = ? AND no_d_id = ? AND no_o_id = ?",
                which,
            )?;
            self.tx.exec_drop(
                "UPDATE orders SET o_carrier_id = ? WHERE o_w_id = ? AND o_d_id = ? AND o_id = ?",
                (carrier, home, district, order),
            )?;
            self.tx.exec_drop(
                "UPDATE order_line SET ol_delivery_d = NOW() WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id = ?",
                which,
            )?;
            // By locking reads, which see what is newest and not what was when the transaction began.
            let customer: Option<u32> = self.tx.exec_first(
                "SELECT o_c_id FROM orders WHERE o_w_id = ? AND o_d_id = ? AND o_id = ? FOR UPDATE",
                which,
            )?;
            let amount: Option<f64> = self.tx.exec_first(
                "SELECT SUM(ol_amount) FROM order_line WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id = ? FOR UPDATE",
                which,
            )?;
            self.tx.exec_drop(
                "UPDATE customer SET c_balance = c_balance + ?, c_delivery_cnt = c_delivery_cnt + 1 \
                 WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
                (amount, home, district, customer),
            )?;
        }
        Ok(true)
    }

    fn stock_level(&mut self) -> mysql::Result<bool> {
        let (home, district) = (self.home, between(self.rng, 1, DISTRICTS));
        let threshold = between(self.rng, 10, 20);
        let next: Option<u32> = self
            .tx
            .exec_first("SELECT d_next_o_id FROM district WHERE d_w_id = ? AND d_id = ?", (home, district))?;
        let next = next.unwrap_or(1);
        let _: Option<u64> = self.tx.exec_first(
            "SELECT COUNT(DISTINCT s_i_id) FROM order_line JOIN stock ON s_w_id = ? AND s_i_id = ol_i_id \
             WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id >= ? AND ol_o_id < ? AND s_quantity < ?",
            (home, home, district, next.saturating_sub(20), next, threshold),
        )?;
        Ok(true)
    }
}
