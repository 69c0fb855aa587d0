//! Many transactions, by processes of their own, on a real mount.

mod histories;
mod leaks;
