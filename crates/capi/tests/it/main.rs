//! The library as programs in C and C++ see it.

mod compile;
mod header;
mod installed;
mod programs;
mod served;
