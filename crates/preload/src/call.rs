//! A call of the program, its arguments sorted.
//!
//! Thread safety: a value that borrows from the program's memory.

use crate::place::Place;
use crate::sys::{Args, Number};

/// A call that may concern the store.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    /// Its number.
    pub(crate) nr: Number,
    /// Its arguments as the program passed them.
    pub(crate) args: &'a Args,
    /// Descriptors that may belong to the store, in the order of the arguments.
    pub(crate) fds: [Option<i32>; 2],
    /// Path arguments: the index of the pointer, and where it leads.
    pub(crate) paths: [Option<(usize, Place<'a>)>; 2],
}
