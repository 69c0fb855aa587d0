//! Rules of the source tree, as tests: what depends on what, how long things are, which calls are out.
//!
//! One module per rule; each has a function that takes sources and gives findings, so that the rule itself
//! can be tried on a snippet. `tests/it` applies them to the repository. No state, no threads.

pub mod calls;
pub mod dependencies;
pub mod layers;
pub mod locks;
pub mod modules;
pub mod owners;
pub mod papers;
pub mod sizes;
pub mod source;
pub mod unsafety;
pub mod words;

/// One breach of a rule: where, what, and what to do about it.
pub type Finding = String;
