//! One area at a time.
