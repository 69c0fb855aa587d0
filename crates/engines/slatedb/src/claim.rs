//! A place for a store: how it is reached, and the object that says that it has one.
//!
//! Thread safety: functions. Invariants: an object is made under the prefix only after the claim, which one
//! maker gets; what is removed lies under a prefix that was empty before it.

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use kvfs_objects::{ObjectPlace, Patience};
use kvfs_store::{Result, StoreError};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};

use crate::error::of_objects;

/// It lies beside the objects of `SlateDB`.
const CLAIM: &str = "kvfs-store";
const CLAIM_TEXT: &str = "kvfs-slatedb 1\n";

/// So long a request for a claim may last, and one without an answer is made again: what is done before the
/// engine is at work is reported.
const TIME_MAX: Duration = Duration::from_secs(30);

/// No bound: requests of the database are observed, and end where that says.
const NO_END: Duration = Duration::from_hours(24);

/// The service, and the prefix there.
pub(crate) fn connect(place: &ObjectPlace) -> Result<(Arc<dyn ObjectStore>, Path)> {
    connect_for(place, TIME_MAX)
}

/// As [`connect`], for requests whose time is bounded by what makes them.
pub(crate) fn connect_observed(place: &ObjectPlace) -> Result<(Arc<dyn ObjectStore>, Path)> {
    connect_for(place, NO_END)
}

fn connect_for(place: &ObjectPlace, request_time_max: Duration) -> Result<(Arc<dyn ObjectStore>, Path)> {
    // The engine tries again by itself.
    let patience = Patience { request_time_max, retries_max: 2, age_max: TIME_MAX };
    place.connect(patience).map_err(|error| of_objects(format!("reaching {}", place.url()), &error))
}

/// Claims the prefix for a new store.
pub(crate) async fn make(place: &ObjectPlace, service: &dyn ObjectStore, prefix: &Path) -> Result<()> {
    let failed =
        |error: &object_store::Error| of_objects(format!("making a store at {}", place.url()), error);
    let mut objects = service.list(Some(prefix));
    let found = objects.try_next().await.map_err(|error| failed(&error))?;
    if let Some(found) = found {
        return Err(occupied(place, &found.location));
    }
    let private = place.make_private();
    private.map_err(|error| StoreError::io(format!("making a store at {}", place.url()), error))?;
    let claim = prefix.clone().join(CLAIM);
    let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    match service.put_opts(&claim, CLAIM_TEXT.into(), options).await {
        Ok(_) => Ok(()),
        Err(object_store::Error::AlreadyExists { .. }) => Err(occupied(place, &claim)),
        Err(error) => Err(failed(&error)),
    }
}

fn occupied(place: &ObjectPlace, found: &Path) -> StoreError {
    let text = format!("there are objects already, such as {found}; a store needs a prefix of its own");
    let error = std::io::Error::new(std::io::ErrorKind::AlreadyExists, text);
    StoreError::io(format!("making a store at {}", place.url()), error)
}

/// Whether a store was made there; that the service can be reached, too.
pub(crate) async fn check(place: &ObjectPlace, service: &dyn ObjectStore, prefix: &Path) -> Result<()> {
    let failed = |error: &object_store::Error| of_objects(format!("reaching {}", place.url()), error);
    let found = service.get(&prefix.clone().join(CLAIM)).await.map_err(|error| failed(&error))?;
    let text = found.bytes().await.map_err(|error| failed(&error))?;
    if text == CLAIM_TEXT {
        return Ok(());
    }
    let found = text.escape_ascii().to_string();
    Err(StoreError::corrupt(
        format!("{}/{CLAIM}", place.url()),
        format!("it says \"{found}\", which this kvfs does not know"),
    ))
}

/// Removes all objects under the prefix.
pub(crate) async fn remove_objects(
    place: &ObjectPlace,
    service: &dyn ObjectStore,
    prefix: &Path,
) -> Result<()> {
    let failed = |error: object_store::Error| of_objects(format!("removing {}", place.url()), &error);
    let mut objects = service.list(Some(prefix));
    while let Some(object) = objects.try_next().await.map_err(failed)? {
        service.delete(&object.location).await.map_err(failed)?;
    }
    Ok(())
}
