//! The reference model: a store in a `BTreeMap`.
