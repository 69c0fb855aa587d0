//! What is of this engine alone. Its tests wait for clocks more than they compute: many of them may run at a
//! time, and all have this name.

mod clocks;
mod collecting;
mod failing;
mod faults;
mod files;
mod flaky;
mod following;
mod journal;
mod lasting;
mod misleading;
mod named;
mod on_slatedb;
mod outages;
mod reading_ahead;
mod segments;
mod stalls;
mod taking_over;

use super::*;
