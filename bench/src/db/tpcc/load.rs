//! Fills the tables (clause 4.3.3), many rows in a statement.
//!
//! Thread safety: belongs to one thread.

use super::random::{address, between, data, last_name_of, permutation, text};
use super::schema::TABLES;
use super::{CUSTOMERS, DISTRICTS, FIRST_NEW_ORDER, ITEMS};
use anyhow::Result;
use kvfs_bench::interrupt;
use kvfs_device::Rng;
use mysql::Conn;
use mysql::prelude::Queryable;
use std::fmt::Write;

/// Length of a statement (bytes) above which it is sent.
const STATEMENT_BYTES: usize = 256 << 10;

/// Rows of one table on their way.
struct Inserts<'a> {
    connection: &'a mut Conn,
    head: &'static str,
    sql: String,
}

impl<'a> Inserts<'a> {
    fn new(connection: &'a mut Conn, table: &'static str) -> Self {
        Self { connection, head: table, sql: String::new() }
    }

    /// Adds the literals of a row.
    fn add(&mut self, row: std::fmt::Arguments) -> Result<()> {
        if self.sql.is_empty() {
            // Writing to a string cannot fail, here and below.
            let _ = write!(self.sql, "INSERT INTO {} VALUES ", self.head);
        } else {
            self.sql.push(',');
        }
        let _ = write!(self.sql, "({row})");
        if self.sql.len() > STATEMENT_BYTES { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> Result<()> {
        if !self.sql.is_empty() {
            interrupt::check()?;
            self.connection.query_drop(&self.sql)?;
            self.sql.clear();
        }
        Ok(())
    }
}

/// Makes all tables, with so many warehouses.
pub(crate) fn load(connection: &mut Conn, warehouses: u32) -> Result<()> {
    for table in TABLES {
        connection.query_drop(table)?;
    }
    connection.query_drop("SET unique_checks = 0, foreign_key_checks = 0")?;
    let rng = &mut Rng::new(1);
    items(connection, rng)?;
    for warehouse in 1..=warehouses {
        eprintln!("  warehouse {warehouse} of {warehouses}");
        connection.query_drop(format!(
            "INSERT INTO warehouse VALUES ({warehouse},'{}',{},0.{:04},300000)",
            text(rng, 6, 10),
            address(rng),
            rng.below(2001)
        ))?;
        stock(connection, rng, warehouse)?;
        for district in 1..=DISTRICTS {
            connection.query_drop(format!(
                "INSERT INTO district VALUES ({warehouse},{district},'{}',{},0.{:04},30000,{})",
                text(rng, 6, 10),
                address(rng),
                rng.below(2001),
                CUSTOMERS + 1
            ))?;
            customers(connection, rng, warehouse, district)?;
            orders(connection, rng, warehouse, district)?;
        }
    }
    Ok(())
}

fn items(connection: &mut Conn, rng: &mut Rng) -> Result<()> {
    let mut rows = Inserts::new(connection, "item");
    for item in 1..=ITEMS {
        let (name, price) = (text(rng, 14, 24), f64::from(between(rng, 100, 10_000)) / 100.0);
        rows.add(format_args!("{item},{},'{name}',{price:.2},'{}'", between(rng, 1, 10_000), data(rng)))?;
    }
    rows.send()
}

fn stock(connection: &mut Conn, rng: &mut Rng, warehouse: u32) -> Result<()> {
    let mut rows = Inserts::new(connection, "stock");
    for item in 1..=ITEMS {
        let districts = (0..DISTRICTS).map(|_| format!("'{}'", text(rng, 24, 24))).collect::<Vec<_>>();
        let quantity = between(rng, 10, 100);
        rows.add(format_args!(
            "{warehouse},{item},{quantity},{},0,0,0,'{}'",
            districts.join(","),
            data(rng)
        ))?;
    }
    rows.send()
}

fn customers(connection: &mut Conn, rng: &mut Rng, warehouse: u32, district: u32) -> Result<()> {
    let mut rows = Inserts::new(connection, "customer");
    for customer in 1..=CUSTOMERS {
        let (first, last) = (text(rng, 8, 16), last_name_of(rng, customer));
        let credit = if rng.below(10) == 0 { "BC" } else { "GC" };
        let (discount, phone) = (rng.below(5001), rng.below(1_000_000_000));
        rows.add(format_args!(
            "{warehouse},{district},{customer},'{first}','OE','{last}',{},'{phone:016}',NOW(),'{credit}',50000,\
             0.{discount:04},-10,10,1,0,'{}'",
            address(rng),
            text(rng, 300, 500)
        ))?;
    }
    rows.send()?;
    let mut rows = Inserts::new(connection, "history");
    for customer in 1..=CUSTOMERS {
        let data = text(rng, 12, 24);
        rows.add(format_args!("{customer},{district},{warehouse},{district},{warehouse},NOW(),10,'{data}'"))?;
    }
    rows.send()
}

fn orders(connection: &mut Conn, rng: &mut Rng, warehouse: u32, district: u32) -> Result<()> {
    let lines: Vec<u32> = (0..CUSTOMERS).map(|_| between(rng, 5, 15)).collect();
    let customers = permutation(rng, CUSTOMERS);
    let mut rows = Inserts::new(connection, "orders");
    for (order, (customer, count)) in (1..).zip(customers.iter().zip(&lines)) {
        let carrier = if order < FIRST_NEW_ORDER { between(rng, 1, 10).to_string() } else { "NULL".into() };
        rows.add(format_args!("{warehouse},{district},{order},{customer},NOW(),{carrier},{count},1"))?;
    }
    rows.send()?;
    let mut rows = Inserts::new(connection, "order_line");
    for (order, count) in (1..).zip(&lines) {
        for number in 1..=*count {
            let (delivered, cents) =
                if order < FIRST_NEW_ORDER { ("NOW()", 0) } else { ("NULL", between(rng, 1, 999_999)) };
            let (item, info) = (between(rng, 1, ITEMS), text(rng, 24, 24));
            let amount = f64::from(cents) / 100.0;
            rows.add(format_args!(
                "{warehouse},{district},{order},{number},{item},{warehouse},{delivered},5,{amount:.2},'{info}'"
            ))?;
        }
    }
    rows.send()?;
    let mut rows = Inserts::new(connection, "new_orders");
    for order in FIRST_NEW_ORDER..=CUSTOMERS {
        rows.add(format_args!("{warehouse},{district},{order}"))?;
    }
    rows.send()
}
