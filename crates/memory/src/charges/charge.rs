//! Memory that is charged for as long as a value lives.
//!
//! Thread safety: may be sent and shared. Any thread may let a charge grow; making it smaller needs it
//! exclusively, or at least that none lets it grow.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::Charges;
use super::site::Site;

/// Bytes charged to a pool of a [`Charges`] until this is dropped. Of no bytes it costs next to nothing, and
/// is counted nowhere.
#[derive(Debug)]
#[must_use = "what is charged is given back when this is dropped"]
pub struct Charge {
    charges: Arc<Charges>,
    bytes: AtomicU64,
    pool: u8,
    site: u8,
    /// Counts it while it is of some bytes.
    generation: AtomicU8,
}

impl Charge {
    #[inline]
    pub(super) fn new(
        charges: Arc<Charges>,
        pool: usize,
        at: &'static Location<'static>,
        bytes: u64,
    ) -> Self {
        let site = charges.pools[pool].sites.find(at);
        let generation = AtomicU8::new(0);
        let charge = Self { charges, bytes: AtomicU64::new(bytes), pool: pool as u8, site, generation };
        if bytes > 0 {
            charge.changed(0, bytes);
        }
        charge
    }

    /// Bytes charged.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Charges so many bytes more.
    #[inline]
    pub fn grow(&self, bytes: u64) {
        if bytes > 0 {
            let before = self.bytes.fetch_add(bytes, Ordering::AcqRel);
            self.changed(before, before + bytes);
        }
    }

    /// Gives so many bytes back.
    ///
    /// # Panics
    /// In debug builds: they were not charged.
    #[inline]
    pub fn shrink(&mut self, bytes: u64) {
        let before = *self.bytes.get_mut();
        debug_assert!(before >= bytes, "{bytes} of {before} bytes are given back");
        self.resize(before.saturating_sub(bytes));
    }

    /// Charges another number of bytes from now on.
    #[inline]
    pub fn resize(&mut self, bytes: u64) {
        let before = std::mem::replace(self.bytes.get_mut(), bytes);
        if before != bytes {
            self.changed(before, bytes);
        }
    }

    /// Gives everything back, although the value goes on. The caller makes sure that it does not grow
    /// meanwhile.
    #[inline]
    pub fn release(&self) {
        let before = self.bytes.swap(0, Ordering::AcqRel);
        if before > 0 {
            self.changed(before, 0);
        }
    }

    /// To be called once for each change, which is one: `before` is what another call had as `after`.
    #[inline]
    fn changed(&self, before: u64, after: u64) {
        let site = self.site();
        self.charges.resize(usize::from(self.pool), before, after);
        site.bytes().add(after.wrapping_sub(before).cast_signed());
        // The first growth is over before the charge shrinks: that takes it exclusively, or the caller's
        // word.
        if before == 0 {
            self.generation.store(site.enter(self.charges.now_ms()), Ordering::Relaxed);
        } else if after == 0 {
            site.leave(self.generation.load(Ordering::Relaxed));
        }
    }

    #[inline]
    fn site(&self) -> &Site {
        self.charges.pools[usize::from(self.pool)].sites.get(self.site)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.resize(0);
    }
}
