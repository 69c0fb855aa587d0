//! The Unix sockets of a store: how they are bound ([`BoundSocket`]) and reached ([`address`], [`public`],
//! [`locate`]), which process is at the other end, how descriptors pass, and what one user may take of what a
//! server has ([`Shares`]).
//!
//! Purpose: what the front ends with sockets (keys, commands) and their clients have in common. It knows no
//! protocol.
//!
//! Thread safety: plain functions and values. Invariants: no symbolic link that another user has put in the
//! way is followed; user, group and process are what the kernel says.

pub mod address;
mod bound;
mod connect;
mod descriptors;
pub mod locate;
mod peer_credentials;
mod peer_groups;
pub mod public;
mod shares;

pub use bound::BoundSocket;
pub use connect::connect;
pub use descriptors::{DESCRIPTORS_MAX, Descriptors, receive_descriptors, send_descriptors};
pub use peer_credentials::{PeerCredentials, peer_credentials};
pub use peer_groups::peer_groups;
pub use shares::{Exempt, Share, Shares};
