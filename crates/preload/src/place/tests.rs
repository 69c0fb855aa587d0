use super::{Place, from_here, sort};
use crate::state;

const OUTSIDE: Place<'static> = Place::Outside;

#[test]
fn absolute_path_is_below_only_behind_a_whole_prefix() {
    let at = |path: &'static str| sort(libc::AT_FDCWD, path.as_bytes(), b"/kvfs");
    assert_eq!(at("/kvfs"), Place::Below(b""));
    assert_eq!(at("/kvfs/"), Place::Below(b""));
    assert_eq!(at("/kvfs//a/../b"), Place::Below(b"a/../b"));
    assert_eq!(at("//kvfs/a"), Place::Below(b"a"));
    assert_eq!(at("/../kvfs/a"), Place::Below(b"a"));
    assert_eq!(at("/./kvfs/a"), Place::Below(b"a"));
    assert_eq!(at("/kvfs2/a"), OUTSIDE);
    assert_eq!(at("/kvf"), OUTSIDE);
    assert_eq!(at("/kvfs/../etc"), Place::Above(b"etc"));
    assert_eq!(at("/kvfs/.."), Place::Above(b""));
    assert_eq!(at("/kvfs/a/../../kvfs/b"), Place::Below(b"b"));
    assert_eq!(at("kvfs/a"), OUTSIDE);
    assert_eq!(at("/proc/self/fd/77"), OUTSIDE);
    state::mark(78);
    assert_eq!([at("/dev/fd/78"), at("/proc/self/fd/78/")], [Place::Descriptor(78); 2]);
    assert_eq!(at("/dev/fd/78//a/../b"), Place::At(78, b"a/../b"));
    assert_eq!(at("/dev/fd/78x"), OUTSIDE);
}

#[test]
fn deep_prefix_is_compared_by_components() {
    assert_eq!(sort(-100, b"/mnt//kv/a", b"/mnt/kv"), Place::Below(b"a"));
    assert_eq!(sort(-100, b"/mnt/a", b"/mnt/kv"), OUTSIDE);
}

#[test]
fn path_from_a_directory_outside_of_the_store_is_followed_upwards() {
    let from = |here: &str, path: &'static str| {
        from_here(here.as_bytes(), path.as_bytes(), b"/home/u/store").unwrap_or(OUTSIDE)
    };
    assert_eq!(from("/home/u/work", "../store/f"), Place::Below(b"f"));
    assert_eq!(from("/home/u/work", ".././store"), Place::Below(b""));
    assert_eq!(from("/home/u", "store//f"), Place::Below(b"f"));
    assert_eq!(from("/home", "u/./store/f"), Place::Below(b"f"));
    assert_eq!(from("/", "home/u/store/f"), Place::Below(b"f"));
    assert_eq!(from("/tmp", "../../../home/u/store/f"), Place::Below(b"f"));
    assert_eq!(from("/tmp", "../home/u/store/../x"), Place::Above(b"x"));
    assert_eq!(from("/home/u/work", "../store2/f"), OUTSIDE);
    assert_eq!(from("/home/us", "../u"), OUTSIDE);
    assert_eq!(from("/home/us", "store"), OUTSIDE);
    assert_eq!(from("/home/u/work", "..store/f"), OUTSIDE);
    assert_eq!(from("/home/u/store2", "store/f"), OUTSIDE);
}
