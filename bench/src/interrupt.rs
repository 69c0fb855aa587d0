//! Ctrl-C and SIGTERM: noticed between operations, so that every guard still cleans up.
//!
//! Thread safety: one flag for the process.

use anyhow::{Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Turns the signals into a flag; a second one ends the program at once.
pub fn install() -> Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&INTERRUPTED))?;
        signal_hook::flag::register(signal, Arc::clone(&INTERRUPTED))?;
    }
    Ok(())
}

/// Whether a signal has arrived.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// An error once a signal has arrived.
pub fn check() -> Result<()> {
    if is_interrupted() {
        bail!("interrupted");
    }
    Ok(())
}
