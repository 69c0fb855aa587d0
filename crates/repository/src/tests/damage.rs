//! Objects that are gone, damaged, or can't be read, and pushes that meet them.

use object_store::path::Path;

use super::histories::UnderWay;
use super::service::Service;
use super::{Source, assert_whole, noise, repository};
use crate::error::RepositoryError;
use crate::policy::Policy;
use crate::repository::Repository;

/// Snapshot "one", which is there, with one large file.
fn pushed(service: &std::sync::Arc<Service>) -> (Source, Repository) {
    let (source, repository) = (Source::new(1), repository(service));
    source.write("large", 0, &noise(1, 5 << 20));
    source.snapshot("one");
    source.push(&repository, "one").unwrap();
    (source, repository)
}

/// The longest object with that in its name.
fn object(service: &Service, part: &str) -> Path {
    let names = service.names().into_iter().filter(|name| name.as_ref().contains(part));
    names.max_by_key(|name| service.content(name).len()).unwrap()
}

fn findings(repository: &Repository) -> Vec<String> {
    repository.verify(true, &mut |_, _| {}).unwrap().findings
}

#[test]
fn an_object_that_cannot_be_read_is_damage_and_in_the_way_of_no_other_one() {
    let service = Service::new();
    let (source, repository) = pushed(&service);
    // A chunk: all others are looked at, and the next push does not rely on it.
    let chunk = object(&service, "/chunks/");
    service.make_unreadable(Some(chunk.clone()));
    let found = repository.verify(true, &mut |_, _| {}).unwrap();
    let [finding] = &found.findings[..] else { panic!("{:?}", found.findings) };
    let says = |text: &str| text.contains(chunk.filename().unwrap()) && text.contains("can't be read: ");
    assert!(says(finding) && finding.contains("\"one\"") && found.bytes_read > 1 << 20, "{found:?}");
    assert_eq!(repository.mark_damaged(&found).unwrap(), 1);
    source.write("small", 0, b"more");
    source.snapshot("two");
    source.push(&repository, "two").unwrap();
    assert_whole(&repository, &source, "two");
    // A manifest.
    let one = repository.find(Some("one")).unwrap().id;
    service.make_unreadable(Some(Path::from(format!("backups/one/snapshots/{one}"))));
    let listed = repository.snapshots().unwrap();
    assert_eq!((listed.snapshots.len(), listed.damaged.len()), (1, 1));
    assert_whole(&repository, &source, "two");
    let unknown = repository.find(Some("one"));
    assert!(matches!(unknown, Err(RepositoryError::NameUnknown { .. })), "{unknown:?}");
    assert!(unknown.unwrap_err().to_string().contains(&one.to_string()));
    // A mark.
    service.make_unreadable(Some(object(&service, "/marks/")));
    let pruned = repository.prune(&Policy::default(), false, false);
    assert!(matches!(pruned, Err(RepositoryError::DamagedMark { .. })), "{pruned:?}");
    repository.prune(&Policy::default(), true, false).unwrap();
    service.make_unreadable(None);
    source.push(&repository, "one").unwrap_err();
    assert!(findings(&repository).is_empty());
}

#[test]
fn a_service_out_of_reach_is_no_damage() {
    let service = Service::new();
    let (_source, repository) = pushed(&service);
    service.make_unreadable(Some(Path::from("")));
    let verified = repository.verify(true, &mut |_, _| {});
    assert!(matches!(verified, Err(RepositoryError::Objects { .. })), "{verified:?}");
}

#[test]
fn a_push_of_a_snapshot_that_is_not_whole_any_more_makes_it_whole() {
    let service = Service::new();
    let (source, repository) = pushed(&service);
    let again = || source.push(&repository, "one");
    assert!(matches!(again(), Err(RepositoryError::Present(_))));
    let chunk = object(&service, "/chunks/");
    let damage = |name: &Path| {
        let mut content = service.content(name);
        content[9] ^= 1;
        service.replace(name, Some(content));
    };
    let damages: [&dyn Fn(); 3] =
        [&|| damage(&object(&service, "/snapshots/")), &|| service.replace(&chunk, None), &|| {
            damage(&object(&service, "/chunks/"));
            let found = repository.verify(true, &mut |_, _| {}).unwrap();
            assert_eq!(repository.mark_damaged(&found).unwrap(), 1);
        }];
    for (number, damage) in damages.into_iter().enumerate() {
        damage();
        assert!(!findings(&repository).is_empty(), "{number}");
        assert!(again().unwrap().objects_new > 0, "{number}");
        assert!(findings(&repository).is_empty(), "{number}");
        assert_whole(&repository, &source, "one");
        assert!(matches!(again(), Err(RepositoryError::Present(_))), "{number}");
    }
}

#[test]
fn a_push_from_which_a_prune_has_taken_chunks_leaves_no_snapshot() {
    let service = Service::new();
    let (source, repository) = pushed(&service);
    source.write("larger", 0, &noise(2, 15 << 20));
    source.snapshot("two");
    let mut push = UnderWay::begin(&source, &repository, "two").unwrap();
    let chunks = || service.names().iter().filter(|name| name.as_ref().contains("/chunks/")).count();
    let before = chunks();
    while chunks() == before {
        assert!(push.step(), "its chunks are written meanwhile");
    }
    assert!(repository.prune(&Policy::default(), true, false).unwrap().removed > 0);
    assert!(matches!(push.finish(), Err(RepositoryError::TooSlow)));
    assert!(repository.find(Some("two")).is_err() && findings(&repository).is_empty());
    source.push(&repository, "two").unwrap();
    assert_whole(&repository, &source, "two");
}
