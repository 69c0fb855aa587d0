//! Which user may do what, with peers as the kernel would name them.

use std::path::PathBuf;
use std::sync::Arc;

use kvfs_fs::{FileSystem, MkfsOptions, MountOptions};
use kvfs_store::clock::SystemClock;
use kvfs_store::model::ModelStore;
use tonic::Code;

use super::*;
use crate::server::apart::Apart;
use crate::server::syncer::Syncer;
use crate::server::users::Users;
use crate::server::{Limits, NoTransactions, Options};

fn shared(limits: Limits) -> Shared {
    let store: Arc<dyn kvfs_store::Store> = Arc::new(ModelStore::new());
    let clock = Arc::new(SystemClock::new());
    FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).unwrap();
    let fs = Arc::new(FileSystem::open(store, clock, MountOptions::default()).unwrap());
    let syncer = Syncer::start(|_| Ok(())).unwrap();
    let users = Users::new(&limits);
    let options = Options { masters: vec![0, 500], mount: PathBuf::new(), also: None, limits };
    let (apart, _) = Apart::new();
    Shared { fs, transactions: Arc::new(NoTransactions), syncer, users, options, apart }
}

fn peer(uid: u32, groups: &[u32]) -> Peer {
    Peer {
        connection: 1,
        uid,
        gid: groups[0],
        pid: 1,
        groups: groups.into(),
        is_master: uid == 0 || uid == 500,
    }
}

#[track_caller]
fn refused<T>(result: Result<T, Failure>) -> Code {
    match result {
        Err(Failure::Status(status)) => status.code(),
        Err(Failure::Parked(_)) => panic!("parked"),
        Ok(_) => panic!("allowed"),
    }
}

fn change(name: &str, mode: Option<u32>, uid: Option<u32>, gid: Option<u32>) -> proto::ChangeKeyspaceRequest {
    proto::ChangeKeyspaceRequest { name: name.to_owned(), mode, uid, gid }
}

#[test]
fn a_keyspace_belongs_to_its_creator_and_lets_in_whom_its_mode_says() {
    let shared = shared(Limits::default());
    let (owner, friend, other) = (peer(1, &[10, 11]), peer(2, &[20, 11]), peer(3, &[30]));
    let (root, master) = (peer(0, &[0]), peer(500, &[500]));
    assert!(
        shared.readable(&other, &shared.fs, "k").unwrap_or_else(|_| panic!()).is_none(),
        "nothing to refuse yet"
    );
    assert!(shared.writable(&owner, "k").is_ok());
    let may = |peer: &Peer| {
        [shared.readable(peer, &shared.fs, "k").is_ok(), shared.existing(peer, "k", Access::Write).is_ok()]
    };
    assert_eq!(
        [&owner, &friend, &other, &root, &master].map(may),
        [[true, true], [false, false], [false, false], [true, true], [true, true]]
    );
    assert_eq!(refused(shared.writable(&other, "k")), Code::PermissionDenied);

    // The owner opens it to one of its groups, and to others for reading.
    assert!(shared.change_keyspace(&owner, &change("k", Some(0o664), None, Some(11))).is_ok());
    assert_eq!([&owner, &friend, &other].map(may), [[true, true], [true, true], [true, false]]);
    // The first set of bits that fits is the one that counts.
    assert!(shared.change_keyspace(&owner, &change("k", Some(0o066), None, None)).is_ok());
    assert_eq!([&owner, &friend, &other].map(may), [[false, false], [true, true], [true, true]]);
    assert!(shared.change_keyspace(&owner, &change("k", Some(0o600), None, None)).is_ok());

    // No other user changes it, and even the owner cannot give it to another user, nor to groups of others.
    for (peer, asked) in [
        (&other, change("k", Some(0o666), None, None)),
        (&friend, change("k", None, Some(2), None)),
        (&owner, change("k", None, Some(3), None)),
        (&owner, change("k", None, None, Some(30))),
    ] {
        assert_eq!(refused(shared.change_keyspace(peer, &asked)), Code::PermissionDenied);
    }
    assert!(shared.change_keyspace(&master, &change("k", None, Some(3), None)).is_ok());
    assert_eq!([&owner, &other].map(may), [[false, false], [true, true]]);
    assert_eq!(
        refused(shared.change_keyspace(&other, &change("k", Some(0o777), None, None))),
        Code::InvalidArgument
    );
    assert_eq!(
        refused(shared.change_keyspace(&other, &change("x", Some(0o600), None, None))),
        Code::NotFound
    );
}

#[test]
fn lists_show_what_one_may_use() {
    let shared = shared(Limits::default());
    let (one, two) = (peer(1, &[10]), peer(2, &[20]));
    let create = |peer: &Peer, name: &str, mode| {
        let request = proto::CreateKeyspaceRequest { name: name.to_owned(), mode, exclusive: true };
        shared.create_keyspace(peer, &request)
    };
    assert!(
        create(&one, "mine", None).is_ok_and(|info| info.mode == 0o600 && info.uid == 1 && info.gid == 10)
    );
    assert!(create(&one, "open", Some(0o644)).is_ok() && create(&two, "yours", None).is_ok());
    assert_eq!(refused(create(&two, "mine", None)), Code::AlreadyExists);
    let names = |peer: &Peer| -> Vec<String> {
        let listed = shared.list_keyspaces(peer, "").unwrap_or_else(|_| panic!());
        listed.into_iter().map(|info| info.name).collect()
    };
    assert_eq!(names(&one), ["mine", "open"]);
    assert_eq!(names(&two), ["open", "yours"]);
    assert_eq!(names(&peer(0, &[0])), ["mine", "open", "yours"]);
}

#[test]
fn a_user_makes_a_bounded_number_of_keyspaces() {
    let shared = shared(Limits { keyspaces_per_user_max: 2, ..Limits::default() });
    let user = peer(1, &[10]);
    assert!(shared.writable(&user, "a").is_ok() && shared.writable(&user, "b").is_ok());
    assert_eq!(refused(shared.writable(&user, "c")), Code::ResourceExhausted);
    assert!(shared.writable(&user, "a").is_ok() && shared.writable(&peer(0, &[0]), "c").is_ok());
}
