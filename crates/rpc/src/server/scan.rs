//! Scans: pages of one moment, as fast as their reader takes them.
//!
//! Thread safety: each scan is a task of its own, with [`PAGES_IN_HAND`] at most. Invariants: the moment that
//! a scan shows is pinned for a bounded time; a scan that did not come to its end says so, however late its
//! reader hears of it; a scan and its pages count until the reader has them, also when the task has ended.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use kvfs_fs::FileSystem;
use kvfs_locks::{Mutex, class};
use kvfs_store::{Cursor, KeyRange};
use prost::Message;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio_stream::Stream;
use tonic::Status;

use super::Shared;
use super::body::GrowingHold;
use super::call::Call;
use super::failure::{Failure, of_store};
use super::keys::{check_doom, range_of};
use super::users::{Hold, ScanSlot};
use crate::proto;

/// Bytes of keys and values after which a page is full.
const PAGE_BYTES: usize = 64 << 10;

/// Entries after which a page is full.
const PAGE_ENTRIES: usize = 1000;

/// Pages that a scan has in memory: one that waits, one being encoded, and one in the connection's buffers.
const PAGES_IN_HAND: usize = 3;

/// How a scan has ended: nothing is wrong, or what is. Until then: it broke.
type Ending = Arc<Mutex<Option<Status>, class::RpcServerScanEnding>>;

/// The pages of a scan, and then why there are no more.
pub(super) struct Pages {
    pages: Receiver<proto::ScanPage>,
    ending: Ending,
}

impl Stream for Pages {
    type Item = Result<proto::ScanPage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.pages.poll_recv(context).map(|page| match page {
            Some(page) => Some(Ok(page)),
            None => self.ending.lock().take().map(Err),
        })
    }
}

/// A scan that goes on.
struct Scan {
    fs: Arc<FileSystem>,
    cursor: Box<dyn Cursor>,
    reverse: bool,
    /// Entries that may still come.
    left: u64,
}

impl Shared {
    /// Begins a scan; its pages come as they are taken.
    pub(super) async fn scan(
        self: &Arc<Self>,
        call: Call,
        request: proto::ScanRequest,
    ) -> Result<(Pages, GrowingHold), Status> {
        let slot = ScanSlot::try_take(&call.user).ok_or_else(|| {
            Status::resource_exhausted("too many scans are open; read some to their end, or drop them")
        })?;
        let (sender, receiver) = mpsc::channel(1);
        let reverse = request.reverse;
        let left = if request.limit == 0 { u64::MAX } else { request.limit };
        let bounds = KeyRange::prefix(&request.prefix).within(&range_of(request.range));
        let begun = self
            .settle(&call, move |shared, peer, caller| {
                let fs = shared.view_to_read(peer, request.txn, &request.snapshot)?;
                let found = shared.readable(peer, &fs, &request.keyspace)?;
                let Some(keyspace) = found.filter(|_| !bounds.is_empty()) else { return Ok(None) };
                let cursor = fs.keys().cursor(caller, keyspace, bounds.clone());
                let cursor = cursor.map_err(|error| Failure::of(&fs, error))?;
                Ok(Some(Scan { fs, cursor, reverse, left }))
            })
            .await?;
        let ending = Ending::default();
        let hold = Arc::new(Mutex::new(Hold::of_scan(slot)));
        if let Some(scan) = begun {
            *ending.lock() = Some(Status::internal("the scan broke off"));
            let (shared, ended, counted) = (Arc::clone(self), Arc::clone(&ending), Arc::clone(&hold));
            tokio::spawn(async move {
                let walked = shared.walk(&call, scan, &sender, &counted).await;
                drop(counted);
                // Before the sender goes, by which the reader learns of the end.
                *ended.lock() = walked.err();
                drop(sender);
            });
        }
        Ok((Pages { pages: receiver, ending }, hold))
    }

    /// To the end, or as far as time and reader allow.
    async fn walk(
        self: &Arc<Self>,
        call: &Call,
        scan: Scan,
        sender: &Sender<proto::ScanPage>,
        hold: &GrowingHold,
    ) -> Result<(), Status> {
        let time_max = self.options.limits.scan_time_max;
        let own = call.timeout.filter(|&own| own < time_max);
        let walked = tokio::time::timeout(own.unwrap_or(time_max), self.send(call, scan, sender, hold)).await;
        walked.unwrap_or_else(|_| match own {
            Some(_) => Err(Status::deadline_exceeded("the deadline of the scan is over")),
            None => Err(Status::aborted("the scan took too long: scan again from behind the last key")),
        })
    }

    /// Sends page after page. Ends well when the reader has gone.
    async fn send(
        self: &Arc<Self>,
        call: &Call,
        mut scan: Scan,
        sender: &Sender<proto::ScanPage>,
        hold: &GrowingHold,
    ) -> Result<(), Status> {
        let mut counted = 0;
        loop {
            let room = tokio::time::timeout(self.options.limits.stall_time_max, sender.reserve()).await;
            let room = room.map_err(|_| {
                Status::aborted(
                    "the scan waited too long for its reader: scan again from behind the last key",
                )
            })?;
            let Ok(room) = room else { return Ok(()) };
            let (page, rest) = self.run(call, move |_, _| scan.page()).await??;
            let wanted = PAGES_IN_HAND * page.encoded_len();
            if !hold.lock().try_grow(wanted.saturating_sub(counted)) {
                return Err(Status::resource_exhausted(
                    "too many bytes of answers and scans were not taken yet; take them first",
                ));
            }
            counted = counted.max(wanted);
            if !page.entries.is_empty() {
                room.send(page);
            }
            match rest {
                Some(rest) => scan = rest,
                None => return Ok(()),
            }
        }
    }
}

impl Scan {
    /// The next page, and the scan unless it was the last one.
    fn page(mut self) -> Result<(proto::ScanPage, Option<Self>), Status> {
        let (mut page, mut bytes) = (proto::ScanPage::default(), 0);
        while bytes < PAGE_BYTES && page.entries.len() < PAGE_ENTRIES && self.left > 0 {
            let moved = if self.reverse { self.cursor.prev() } else { self.cursor.next() };
            moved.map_err(|error| of_store(&error))?;
            let Some((key, value)) = self.cursor.entry() else {
                self.left = 0;
                break;
            };
            bytes += key.len() + value.len();
            page.entries.push(proto::KeyValue { key: key.to_vec().into(), value: value.clone() });
            self.left -= 1;
        }
        // A doom gives the locks back: what was read since is of no consistent view.
        match check_doom(&self.fs) {
            Err(Failure::Status(status)) => Err(status),
            _ if self.left == 0 => Ok((page, None)),
            _ => Ok((page, Some(self))),
        }
    }
}
