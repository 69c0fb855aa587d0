//! `.kvfs/txn`: links to the views of transactions; following one mounts the view.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_fs::{FileType, FsError};
use kvfs_fuse::bridge::{Folder, Item, Name};

use super::Told;

/// See the module.
#[derive(Debug)]
pub(super) struct OpenTransactions {
    pub(super) service: Told,
}

impl Folder for OpenTransactions {
    fn list(&self, uid: u32) -> Vec<Name> {
        let views = self.service.transactions().map(|transactions| transactions.views(uid));
        let name = |(id, _, _): (u64, u32, _)| Name {
            name: id.to_string().into_bytes().into(),
            kind: FileType::Symlink,
            place: id,
        };
        views.unwrap_or_default().into_iter().map(name).collect()
    }

    fn find(&self, uid: u32, name: &[u8]) -> Result<Option<Item>, FsError> {
        let Some(transactions) = self.service.transactions() else { return Ok(None) };
        let view = transactions.views(uid).into_iter().find(|(id, _, _)| id.to_string().as_bytes() == name);
        Ok(view.map(|(id, owner, path)| {
            let target = Bytes::from(OsString::from(path).into_vec());
            let service = self.service.clone();
            // In the name of the user that was shown the link.
            let prepare = move || service.mount_view(uid, id);
            Item::LinkOnDemand { target, uid: owner, prepare: Arc::new(prepare) }
        }))
    }
}
