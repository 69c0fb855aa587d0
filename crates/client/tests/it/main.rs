//! A process of a server, and one of this process, side by side.

mod same;
mod world;
