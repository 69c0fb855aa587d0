//! A server and its clients, each over a socket of its own.

mod calls;
mod ends;
mod hostile;
mod mapped;
mod world;
