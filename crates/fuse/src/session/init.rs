//! The INIT negotiation.

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{
    InHeader, InitIn, InitInExt, InitOut, KERNEL_MINOR_VERSION, KERNEL_MINOR_VERSION_MIN, KERNEL_VERSION,
    Opcode, flags::init as bit,
};

/// When listings carry attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Readdirplus {
    /// Never.
    Off,
    /// When the kernel sees that they are being used.
    #[default]
    Auto,
    /// Always.
    Always,
}

/// What is asked of the kernel. Features that it lacks are left out; see [`Negotiated`].
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a feature of its own")]
pub struct InitConfig {
    /// Largest WRITE (bytes); also the largest READ, in pages.
    pub write_bytes_max: u32,
    /// Largest read-ahead that the kernel may do (bytes); it can only be lowered here, see
    /// [`crate::mount::set_read_ahead`].
    pub readahead_bytes_max: u32,
    /// Requests that no program waits for (read-ahead, write-back, forgets), in flight at once.
    pub background_max: u16,
    /// Listings with attributes.
    pub readdirplus: Readdirplus,
    /// Lookups and listings in one directory at once.
    pub parallel_dirops: bool,
    /// Opens and closes of files without a message.
    pub no_open: bool,
    /// Opens and closes of directories without a message; the kernel then caches listings.
    pub no_opendir: bool,
    /// With `no_open`: files are made by MKNOD, which saves the RELEASE that a CREATE brings.
    pub no_create: bool,
    /// No message at close(2).
    pub no_flush: bool,
    /// `O_TRUNC` comes with the OPEN. Never together with `no_open`, where it would be lost.
    pub atomic_o_trunc: bool,
    /// Setuid and setgid bits are cleared by the file system, on request.
    pub handle_killpriv_v2: bool,
    /// Dirty pages stay in the kernel, which then owns size and times of files.
    pub writeback_cache: bool,
    /// Targets of symbolic links are cached.
    pub cache_symlinks: bool,
    /// Cached pages are dropped on notification only, not when a changed time is seen.
    pub explicit_inval_data: bool,
    /// Several READs of one file at once.
    pub async_read: bool,
    /// Direct I/O in several requests at once.
    pub async_dio: bool,
    /// The file system checks POSIX access-control lists (the kernel then enforces them).
    pub posix_acl: bool,
    /// The file system applies the umask itself.
    pub dont_mask: bool,
    /// fcntl(2) locks are passed on.
    pub posix_locks: bool,
    /// flock(2) locks are passed on.
    pub flock_locks: bool,
    /// The caller's matching supplementary group comes with requests that make something.
    pub create_supp_group: bool,
    /// File handles (`name_to_handle_at`, NFS) may be looked up by "." and "..", after the kernel has
    /// forgotten the node, too. Without it none are given out.
    pub export_support: bool,
    /// Requests by `io_uring`, where the kernel offers it and the system gives rings.
    pub io_uring: bool,
    /// Resolution of times (ns).
    pub time_granularity_ns: u32,
}

impl Default for InitConfig {
    fn default() -> Self {
        Self {
            write_bytes_max: 1 << 20,
            readahead_bytes_max: 1 << 20,
            background_max: 64,
            readdirplus: Readdirplus::Auto,
            parallel_dirops: true,
            no_open: false,
            no_opendir: false,
            no_create: false,
            no_flush: false,
            atomic_o_trunc: false,
            handle_killpriv_v2: true,
            writeback_cache: false,
            cache_symlinks: true,
            explicit_inval_data: true,
            async_read: true,
            async_dio: true,
            posix_acl: false,
            dont_mask: false,
            posix_locks: false,
            flock_locks: false,
            create_supp_group: false,
            export_support: false,
            io_uring: false,
            time_granularity_ns: 1,
        }
    }
}

impl InitConfig {
    fn wanted(&self) -> u64 {
        let plus = match self.readdirplus {
            Readdirplus::Off => 0,
            Readdirplus::Auto => bit::DO_READDIRPLUS | bit::READDIRPLUS_AUTO,
            Readdirplus::Always => bit::DO_READDIRPLUS,
        };
        let optional = [
            (self.parallel_dirops, bit::PARALLEL_DIROPS),
            (self.no_open, bit::NO_OPEN_SUPPORT),
            (self.no_opendir, bit::NO_OPENDIR_SUPPORT),
            (self.atomic_o_trunc && !self.no_open, bit::ATOMIC_O_TRUNC),
            (self.handle_killpriv_v2, bit::HANDLE_KILLPRIV_V2),
            (self.writeback_cache, bit::WRITEBACK_CACHE),
            (self.cache_symlinks, bit::CACHE_SYMLINKS),
            (self.explicit_inval_data, bit::EXPLICIT_INVAL_DATA),
            (!self.explicit_inval_data, bit::AUTO_INVAL_DATA),
            (self.async_read, bit::ASYNC_READ),
            (self.async_dio, bit::ASYNC_DIO),
            (self.posix_acl, bit::POSIX_ACL),
            (self.dont_mask, bit::DONT_MASK),
            (self.posix_locks, bit::POSIX_LOCKS),
            (self.flock_locks, bit::FLOCK_LOCKS),
            (self.create_supp_group, bit::CREATE_SUPP_GROUP),
            (self.export_support, bit::EXPORT_SUPPORT),
            (!self.export_support, bit::NO_EXPORT_SUPPORT),
            (self.io_uring, bit::OVER_IO_URING),
        ];
        let always = bit::BIG_WRITES | bit::MAX_PAGES | bit::ABORT_ERROR | bit::HAS_IOCTL_DIR | bit::INIT_EXT;
        let modern = bit::SETXATTR_EXT | bit::HAS_EXPIRE_ONLY;
        optional
            .iter()
            .filter(|(wanted, _)| *wanted)
            .fold(always | modern | plus, |all, (_, flag)| all | flag)
    }
}

/// What was agreed with the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// Minor version that both sides speak.
    pub minor: u32,
    /// Bits of [`crate::abi::flags::init`] that both sides want.
    pub flags: u64,
    /// Largest WRITE (bytes).
    pub write_bytes_max: u32,
    /// Largest read-ahead (bytes).
    pub readahead_bytes_max: u32,
}

impl Negotiated {
    /// Whether all of `flags` are agreed on.
    pub fn has(&self, flags: u64) -> bool {
        self.flags & flags == flags
    }

    /// Whether requests come by rings.
    pub fn uses_io_uring(&self) -> bool {
        self.has(bit::OVER_IO_URING)
    }

    /// Largest READ or READDIR (bytes): no kernel asks for more than the pages that were agreed on.
    pub(crate) fn read_bytes_max(&self) -> u32 {
        self.write_bytes_max.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES_MAX)
    }
}

/// Outcome of one INIT request.
#[derive(Debug)]
pub(super) enum Handshake {
    /// Agreed; send this.
    Agreed(Negotiated, InitOut),
    /// The kernel speaks a newer major version: send this, it will ask again.
    OfferMajor(InitOut),
    /// No common version.
    TooOld {
        /// The kernel's version.
        major: u32,
        /// The kernel's version.
        minor: u32,
    },
}

/// Bytes of a page.
const PAGE_BYTES: u32 = 4096;
/// Of the kernels with the largest pages.
const PAGE_BYTES_MAX: u32 = 64 << 10;

/// Answers the INIT request `message`; returns its number, too.
pub(super) fn negotiate(message: &[u8], config: &InitConfig) -> Result<(u64, Handshake), Errno> {
    let (header, body) = InHeader::read_from_prefix(message).map_err(|_| Errno::PROTO)?;
    if Opcode::from_number(header.opcode) != Some(Opcode::Init) {
        return Err(Errno::PROTO);
    }
    let (init, rest) = InitIn::read_from_prefix(body).map_err(|_| Errno::PROTO)?;
    if init.major > KERNEL_VERSION {
        let out = InitOut { major: KERNEL_VERSION, minor: KERNEL_MINOR_VERSION, ..InitOut::default() };
        return Ok((header.unique, Handshake::OfferMajor(out)));
    }
    if init.major < KERNEL_VERSION || init.minor < KERNEL_MINOR_VERSION_MIN {
        return Ok((header.unique, Handshake::TooOld { major: init.major, minor: init.minor }));
    }
    let mut offered = u64::from(init.flags);
    if offered & bit::INIT_EXT != 0 {
        let (ext, _) = InitInExt::read_from_prefix(rest).map_err(|_| Errno::PROTO)?;
        offered |= u64::from(ext.flags2) << 32;
    }
    let mut flags = offered & config.wanted();
    if flags & bit::INIT_EXT == 0 {
        flags &= u64::from(u32::MAX);
    }
    let pages = config.write_bytes_max.div_ceil(PAGE_BYTES).clamp(1, u32::from(u16::MAX));
    let write_bytes_max = if flags & bit::MAX_PAGES != 0 {
        config.write_bytes_max.max(PAGE_BYTES)
    } else {
        config.write_bytes_max.clamp(PAGE_BYTES, 32 * PAGE_BYTES)
    };
    let negotiated = Negotiated {
        minor: init.minor.min(KERNEL_MINOR_VERSION),
        flags,
        write_bytes_max,
        readahead_bytes_max: config.readahead_bytes_max.min(init.max_readahead),
    };
    let out = InitOut {
        major: KERNEL_VERSION,
        minor: KERNEL_MINOR_VERSION,
        max_readahead: negotiated.readahead_bytes_max,
        flags: flags as u32,
        max_background: config.background_max,
        congestion_threshold: config.background_max / 4 * 3,
        max_write: write_bytes_max,
        time_gran: config.time_granularity_ns,
        max_pages: pages as u16,
        flags2: (flags >> 32) as u32,
        ..InitOut::default()
    };
    Ok((header.unique, Handshake::Agreed(negotiated, out)))
}

/// The bytes of an INIT answer.
pub(super) fn wire(out: &InitOut) -> &[u8] {
    out.as_bytes()
}

#[cfg(test)]
mod tests;
