//! A place for a store: how it is reached, and the object that says that it has one.
//!
//! Thread safety: functions. Invariants: an object is made under the prefix only after the claim, which one
//! maker gets, also where the answer to it is lost; what is removed lies under a prefix that was empty before
//! it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use kvfs_objects::{ObjectPlace, Patience};
use kvfs_store::{Result, StoreError};
use object_store::path::Path;
use object_store::{Attribute, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use uuid::Uuid;

use crate::error::of_objects;

/// It lies beside the objects of `SlateDB`.
const CLAIM: &str = "kvfs-store";
const CLAIM_TEXT: &str = "kvfs-slatedb 1\n";

/// The attribute of it that names the store.
const MARK: Attribute = Attribute::Metadata(Cow::Borrowed("kvfsstore"));

/// How often it is made where it is not there though it was.
const TRIES_MAX: u32 = 3;

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

/// Claims the prefix for a new store, which has this UUID; `place`: `None` for a service of tests.
pub(crate) async fn make(
    place: Option<&ObjectPlace>,
    service: &dyn ObjectStore,
    prefix: &Path,
    uuid: [u8; 16],
) -> Result<()> {
    let at = place.map_or_else(|| service.to_string(), |place| place.url().to_owned());
    let failed = |error: &object_store::Error| of_objects(format!("making a store at {at}"), error);
    let mut objects = service.list(Some(prefix));
    let found = objects.try_next().await.map_err(|error| failed(&error))?;
    if let Some(found) = found {
        return Err(occupied(&at, &found.location));
    }
    let private = place.map_or(Ok(()), ObjectPlace::make_private);
    private.map_err(|error| StoreError::io(format!("making a store at {at}"), error))?;
    let claim = prefix.clone().join(CLAIM);
    let made = if place.is_some_and(ObjectPlace::is_local) {
        put_file(service, &claim).await
    } else {
        put(service, &claim, uuid).await
    };
    match made {
        Ok(true) => Ok(()),
        Ok(false) => Err(occupied(&at, &claim)),
        Err(error) => Err(failed(&error)),
    }
}

/// Makes the claim. Returns whether none was there. A file bears no mark, nor is an answer to it lost.
async fn put_file(service: &dyn ObjectStore, claim: &Path) -> object_store::Result<bool> {
    let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    match service.put_opts(claim, CLAIM_TEXT.into(), options).await {
        Ok(_) => Ok(true),
        Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Makes the claim, marked with the UUID of the store. Returns whether the one that is there is this one:
/// where no answer comes, or the client has asked again by itself, the answer does not tell.
async fn put(service: &dyn ObjectStore, claim: &Path, uuid: [u8; 16]) -> object_store::Result<bool> {
    let mark = Uuid::from_bytes(uuid).to_string();
    let mut tries_left = TRIES_MAX;
    loop {
        let attributes = [(MARK, mark.clone())].into_iter().collect();
        let options = PutOptions { mode: PutMode::Create, attributes, ..PutOptions::default() };
        let Err(error) = service.put_opts(claim, CLAIM_TEXT.into(), options).await else { return Ok(true) };
        tries_left -= 1;
        let look = GetOptions { head: true, ..GetOptions::default() };
        match service.get_opts(claim, look).await {
            Ok(found) => return Ok(found.attributes.get(&MARK).is_some_and(|found| found.as_ref() == mark)),
            Err(object_store::Error::NotFound { .. }) if tries_left > 0 => {}
            Err(_) => return Err(error),
        }
    }
}

fn occupied(at: &str, found: &Path) -> StoreError {
    let text = format!("there are objects already, such as {found}; a store needs a prefix of its own");
    let error = std::io::Error::new(std::io::ErrorKind::AlreadyExists, text);
    StoreError::io(format!("making a store at {at}"), error)
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
