//! Records of quotas: what can't be decoded goes, and what is counted is counted anew.

use bytes::Bytes;
use kvfs_store::{Batch, Keyspace};

use super::edit::Edit;
use crate::Result;
use crate::quota::{self, InvalidRecord};

pub(super) fn repair(edit: &mut Edit<'_>, keyspace: Option<Keyspace>) -> Result<()> {
    let Some(keyspace) = keyspace else { return Ok(()) };
    let mut is_miscounted = false;
    edit.for_each("reading quotas", keyspace, |edit, key, value| {
        let Some(invalid_record) = quota::invalid_record(key, value) else { return Ok(()) };
        match invalid_record {
            InvalidRecord::Limits(..) => edit.lost(invalid_record.to_string(), "set them again"),
            InvalidRecord::Since(..) => edit.fixed(invalid_record.to_string(), "they begin anew"),
            InvalidRecord::State | InvalidRecord::Usage(..) => {
                is_miscounted = true;
                edit.fixed(invalid_record.to_string(), "the next mount counts anew");
            }
        }
        edit.delete(keyspace, Bytes::copy_from_slice(key))
    })?;
    if is_miscounted && edit.has_quotas {
        let mut batch = Batch::new();
        quota::forget_count(&mut batch, keyspace);
        edit.txn.apply(batch)?;
    }
    Ok(())
}
