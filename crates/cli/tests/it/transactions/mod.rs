//! Many transactions, by processes of their own, on a real mount.

mod entrances;
mod histories;
mod leaks;
mod limits;
mod names;
mod pages;
mod signals;
mod sizes;
