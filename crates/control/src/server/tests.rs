//! What passes on a connection, at both of its ends.

use std::io::Read;
use std::path::Path;

use kvfs_store::progress::Unit;

use super::*;
use crate::answer::tests::World;
use crate::client::{Client, Daemon};
use crate::protocol::read_frame;

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

#[test]
fn news_wait_for_no_client() {
    let (mut near, far) = UnixStream::pair().expect("a pair");
    far.set_write_timeout(Some(Duration::from_millis(1))).expect("is set");
    let mut filled = 0;
    while let Ok(taken) = send(&far, &[0; 4096], SendFlags::DONTWAIT) {
        filled += taken;
    }
    let news = News { due: Cell::new(Duration::ZERO), ..News::new(far.try_clone().expect("a descriptor")) };
    let step = Step { stage: "committing", unit: Unit::Items, done: 1, total: 2 };
    for _ in 0..2 {
        news.tell(step);
        news.due.set(Duration::ZERO);
    }
    // Left out, and not cut off: the answer can still come behind it.
    near.read_exact(&mut vec![0; filled]).expect("is there");
    news.tell(step);
    write_frame(&mut &far, &Response::Done).expect("is sent");
    for _ in 0..2 {
        let told: Option<Response> = read_frame(&mut near).expect("is read");
        assert!(matches!(told, Some(Response::Done | Response::Progress { .. })), "{told:?}");
    }
}
