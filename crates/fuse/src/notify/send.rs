//! The form in which the kernel takes notifications.

use std::io::IoSlice;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::{Notification, Notifier};
use crate::abi::flags::EXPIRE_ONLY;
use crate::abi::notify as wire;
use crate::dispatch::{ROOT_NODEID, send_parts};
use crate::transport::Delivery;

impl Notifier {
    /// What the kernel calls a node.
    fn nodeid(&self, node: u64) -> u64 {
        if node == self.shared.config.root { ROOT_NODEID } else { node }
    }

    pub(super) fn send(&self, notification: &Notification) -> Result<Delivery, Errno> {
        let code = notification.code();
        let send = |parts: &[IoSlice<'_>]| send_parts(&*self.shared.channel.transport, 0, code, parts);
        match notification {
            Notification::InvalInode { node, offset, len } => {
                let out = wire::InvalInodeOut { ino: self.nodeid(*node), off: *offset, len: *len };
                send(&[IoSlice::new(out.as_bytes())])
            }
            Notification::InvalEntry { parent, name, expire_only } => {
                let flags = if *expire_only && self.shared.expire_only { EXPIRE_ONLY } else { 0 };
                let out =
                    wire::InvalEntryOut { parent: self.nodeid(*parent), namelen: name.len() as u32, flags };
                send(&[IoSlice::new(out.as_bytes()), IoSlice::new(name), IoSlice::new(&[0])])
            }
            Notification::Delete { parent, child, name } => {
                let out = wire::DeleteOut {
                    parent: self.nodeid(*parent),
                    child: *child,
                    namelen: name.len() as u32,
                    padding: 0,
                };
                send(&[IoSlice::new(out.as_bytes()), IoSlice::new(name), IoSlice::new(&[0])])
            }
            Notification::Store { node, offset, data } => {
                let out =
                    wire::StoreOut { nodeid: *node, offset: *offset, size: data.len() as u32, padding: 0 };
                send(&[IoSlice::new(out.as_bytes()), IoSlice::new(data)])
            }
            Notification::Retrieve { unique, node, offset, size } => {
                let out = wire::RetrieveOut {
                    notify_unique: *unique,
                    nodeid: *node,
                    offset: *offset,
                    size: *size,
                    padding: 0,
                };
                send(&[IoSlice::new(out.as_bytes())])
            }
            Notification::Resend | Notification::IncEpoch => send(&[]),
            Notification::Prune { nodes } => {
                let out = wire::PruneOut { count: nodes.len() as u32, ..wire::PruneOut::default() };
                send(&[IoSlice::new(out.as_bytes()), IoSlice::new(nodes.as_bytes())])
            }
            Notification::PollWakeup { handle } => {
                send(&[IoSlice::new(wire::PollWakeupOut { kh: *handle }.as_bytes())])
            }
        }
    }
}
