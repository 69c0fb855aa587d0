//! Requests that are not done at the first try: those that wait for a transaction, and those for which space
//! has to be made.
//!
//! Thread safety: a request belongs to one thread at a time. Invariant: no worker waits for another request,
//! nor while space is made: what may take long is done by a thread of the pool, if there is one to be had.

use std::sync::Arc;

use kvfs_fs::{Caller, FsError, Ticket};
use kvfs_socket::Share;
use rustix::io::Errno;

use super::background::{Background, Job};
use super::{Counted, Failure, Nature, Operation, Place, Shared};
use crate::dispatch::{Payload, Reply};

/// A request that is to be tried again.
pub(super) struct Pending<T: Payload + Counted + Send + 'static> {
    pub(super) shared: Arc<Shared>,
    pub(super) background: Arc<Background>,
    pub(super) reply: Reply<T>,
    pub(super) caller: Caller,
    pub(super) operation: Operation<T>,
    pub(super) nature: Nature,
    /// Of what may wait to be written.
    pub(super) held: Share,
}

/// Whether it may be done later.
pub(super) fn is_pending<T>(outcome: &Result<T, Failure>) -> bool {
    outcome.as_ref().is_err_and(|failure| ticket_of(failure).is_some() || failure.lacks_space())
}

fn ticket_of(failure: &Failure) -> Option<&Ticket> {
    match failure {
        Failure::Fs(FsError::Parked(ticket)) => Some(ticket),
        _ => None,
    }
}

impl<T: Payload + Counted + Send + 'static> Pending<T> {
    /// Goes on with what came of a try.
    pub(super) fn go_on(self, outcome: Result<T, Failure>) {
        match outcome {
            Err(failure) if failure.lacks_space() => self.make_space(failure),
            outcome => self.end(outcome),
        }
    }

    /// Answers, unless it waits for another party.
    fn end(self, outcome: Result<T, Failure>) {
        match outcome {
            Err(Failure::Fs(FsError::Parked(ticket))) => self.park(ticket),
            done => {
                let Self { shared, reply, operation, nature, held, .. } = self;
                drop((operation, held));
                shared.answer(reply, done, nature);
            }
        }
    }

    /// Sets it aside until its ticket is ready, and then tries again.
    fn park(self, ticket: Ticket) {
        let Self { shared, background, reply, caller, operation, nature, held } = self;
        let (given_up, ready) = (ticket.clone(), ticket.clone());
        let Ok(parked) = reply.park(move || given_up.cancel()) else {
            // It was interrupted, and has been answered.
            return ticket.cancel();
        };
        let caller = Caller { ticket: Some(ticket), ..caller };
        let place = place(&shared, &caller, nature);
        let retries = Arc::clone(&background.retries);
        ready.on_ready(Box::new(move || {
            let again = Box::new(move || {
                // Nothing to do when an interrupt was faster.
                let Some(reply) = parked.resume() else { return };
                let outcome = shared.attempt(&operation, &caller);
                Self { shared, background, reply, caller, operation, nature, held }.go_on(outcome);
                drop(place);
            });
            // Refused only after the end of the session, when no request waits for the answer.
            let _ = retries.submit(again);
        }));
    }

    /// Has space made by a thread of the pool, and tries again meanwhile. `failure`: what there is to say
    /// where this user has too much of that under way.
    fn make_space(self, failure: Failure) {
        let Some(share) = self.background.space_makers.take(self.caller.uid, 1) else {
            return self.end(Err(failure));
        };
        let pool = self.background.blocking_pool.clone();
        let place = place(&self.shared, &self.caller, self.nature);
        let job: Job = Box::new(move || {
            let outcome = self.shared.attempt_with_space(&self.operation, &self.caller);
            drop(share);
            self.end(outcome);
            drop(place);
        });
        if let Err(job) = pool.submit(job) {
            job();
        }
    }
}

/// The place of what holds pages locked inside the kernel among those that wait.
fn place(shared: &Shared, caller: &Caller, nature: Nature) -> Option<Place> {
    nature.writes.map(|node| shared.writers.wait(node, caller.pid, nature.is_writeback))
}

/// What a request is told that would keep too much of the daemon's memory while it waits.
pub(super) fn refuse<T: Payload>(reply: Reply<T>, failure: &Failure) {
    let Some(ticket) = ticket_of(failure) else { return reply.error(failure.errno()) };
    ticket.cancel();
    reply.error(Errno::NOLCK);
}
