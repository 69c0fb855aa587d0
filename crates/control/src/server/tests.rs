//! What passes on a connection, at both of its ends.

use std::path::Path;

use super::*;
use crate::answer::tests::World;
use crate::client::{Client, Daemon};

/// The command's end of a connection to a daemon, whose end `work` has with it.
fn connected<T>(world: World, work: impl FnOnce(&mut Client) -> T) -> T {
    let shared = Shared {
        handler: world.into_handler(),
        stopping: AtomicBool::new(false),
        shares: Arc::default(),
        next: AtomicU64::new(1),
        ending: Mutex::default(),
    };
    let (near, far) = UnixStream::pair().expect("a pair");
    let peer = Peer::of(1, &far).expect("is there");
    std::thread::scope(|scope| {
        let served = scope.spawn(|| serve(far, &peer, &shared));
        let greeted = Client::greet(Ok(near), Path::new("test"), |_| Box::new(|_, _, _, _| ()));
        let Ok(Daemon::Serving { mut client, .. }) = greeted else { panic!("{greeted:?}") };
        let done = work(&mut client);
        drop(client);
        served.join().expect("returns").expect("ends well");
        done
    })
}

#[test]
fn check_tells_all_findings_however_many() {
    let findings: Vec<String> = (0..150_000)
        .map(|number| {
            format!("piece {number}: a wrong checksum at byte 0 of its block, and a place that is not there")
        })
        .collect();
    let bytes: usize = findings.iter().map(String::len).sum();
    assert!(bytes > 8 << 20);
    let answer = connected(World::with_findings(&findings), |client| client.call(&Request::Check));
    let Ok(Response::Checked { findings: told, .. }) = answer else { panic!("{answer:?}") };
    assert!(told.iter().map(|finding| format!("{}: {}", finding.place, finding.detail)).eq(findings));
}

#[test]
fn refusal_of_a_daemon_is_told_apart_from_its_end() {
    let refused = connected(World::owned_by(0), |client| client.ask(&Request::End));
    assert!(matches!(refused, Ok(Err(error)) if error.kind() == ErrorKind::Usage));
    let (near, far) = UnixStream::pair().expect("a pair");
    let mut client = Client::on(near);
    std::thread::scope(|scope| {
        scope.spawn(move || read_request(&mut &far).expect("is asked"));
        let lost = client.ask(&Request::Check).expect_err("is not answered");
        assert_eq!(Client::lost(&lost).kind(), ErrorKind::NotMounted);
    });
    let paths = vec![vec![b'x'; 1 << 20]];
    let too_long = client.ask(&Request::RemoveTrees { paths });
    assert!(matches!(too_long, Ok(Err(error)) if error.kind() == ErrorKind::Usage));
}
