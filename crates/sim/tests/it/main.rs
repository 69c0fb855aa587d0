//! Simulations: engines beside the reference model, and the checkers beside broken stores.
#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

#[path = "../../../engines/transactions/tests/it/bare.rs"]
mod bare;
mod checker;
mod kvdb;
mod log_engine;
mod mutant;
mod sweeps;
mod transacted;
