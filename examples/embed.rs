//! The engine inside a program: a small index of words, kept in one file.
//!
//! `embed FILE [WORD]...` counts each word, in one transaction for all of them, and prints what the store
//! has.

use std::error::Error;

use kvfs_kvdb::Db;
use kvfs_store::{Batch, Durability, KeyRange, KeyspaceKind, Store, Transactions, TxnOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: embed FILE [WORD]...")?;
    let db = Db::builder().memory_bytes(64 << 20).capacity_bytes(1 << 30).open(&path)?;
    let words = db.open_keyspace("words", KeyspaceKind::Tuple, None)?;

    // All words are counted, or none is. Dropped before its commit, a transaction leaves nothing behind.
    let txn = db.begin(TxnOptions::default())?;
    for word in args {
        let count = match txn.get(words, word.as_bytes())? {
            Some(count) => std::str::from_utf8(&count)?.parse()?,
            None => 0_u64,
        };
        let mut batch = Batch::new();
        batch.put(words, word, (count + 1).to_string());
        txn.apply(batch)?;
    }
    txn.commit(Durability::Synced)?;

    // A cursor sees one moment, whatever is written meanwhile.
    let mut cursor = db.snapshot()?.cursor(words, KeyRange::all())?;
    cursor.first()?;
    while let Some((word, count)) = cursor.entry() {
        println!("{}\t{}", String::from_utf8_lossy(word), String::from_utf8_lossy(count));
        cursor.next()?;
    }
    db.close()?;
    Ok(())
}
