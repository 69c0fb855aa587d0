//! Commits that change the size of files that others read at that moment, through the kernel.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kvfs_rpc::client::BeginOptions;
use kvfs_rpc::client::blocking::Store;

use crate::world::{World, can_mount};

/// Rewrites of each file.
const REWRITES: usize = 150;
const READERS: usize = 2;
const PAGE_BYTES: usize = 4096;
/// So many reads of a reader may be of no version. The kernel finds a page, and then takes the size: a
/// read(2) that loses the processor between the two while a commit takes place gets the old page with the new
/// size. That was seen in 1 of 6,000 commits; when the kernel had the sizes too early it was 1 in 10.
const TORN_MAX: usize = 3;

/// Version `number`: one letter, as often as no other version of that letter has it.
fn version(number: usize, length_max: usize) -> Vec<u8> {
    let letter = b'a' + (number % 26) as u8;
    vec![letter; 1 + number * 7919 % length_max]
}

/// Whether each page is of a version, and the end that of the last page's version, or of one that has nothing
/// beyond the pages before it. Within a page that is one version.
fn is_of_versions(read: &[u8], versions: &BTreeSet<Vec<u8>>) -> bool {
    let pages: Vec<&[u8]> = read.chunks(PAGE_BYTES).collect();
    let Some((last, others)) = pages.split_last() else { return false };
    let is_of = |page: &[u8], at: usize, ends: bool| {
        versions.iter().any(|version| {
            let rest = version.get(at * PAGE_BYTES..).unwrap_or_default();
            rest.starts_with(page) && (!ends || version.len() == read.len())
        })
    };
    // A read that had whole pages when the file became shorter than they are ends there.
    let ends_before = last.len() == PAGE_BYTES && versions.iter().any(|version| version.len() < read.len());
    others.iter().enumerate().all(|(at, page)| is_of(page, at, false))
        && is_of(last, others.len(), !ends_before)
}

#[test]
fn pages_of_versions_end_with_one_of_them_or_where_a_shorter_one_has_nothing() {
    let versions = BTreeSet::from([vec![b'a'; 3 * PAGE_BYTES + 5], vec![b'b'; PAGE_BYTES + 9]]);
    let pages = |letter: u8, count: usize| vec![letter; count * PAGE_BYTES];
    let is = |read: &[u8]| is_of_versions(read, &versions);
    assert!(
        is(&[pages(b'b', 1), vec![b'a'; 2 * PAGE_BYTES + 5]].concat()),
        "the end of the last page's version"
    );
    assert!(is(&pages(b'a', 2)), "whole pages, and the shorter version has nothing beyond them");
    assert!(!is(&pages(b'a', 1)), "every version goes on beyond the page");
    assert!(!is(&vec![b'a'; PAGE_BYTES + 9]), "the new content, cut at the old length");
    assert!(!is(&[pages(b'b', 1), vec![b'b'; 9], vec![0; 7]].concat()), "zeros that no version has");
}

/// Reads the file with one read(2) each time until `has_ended`. Returns what was of no version, and how many
/// versions were seen.
fn read_on(path: &Path, length_max: usize, reopens: bool, has_ended: &AtomicBool) -> (Vec<String>, usize) {
    let versions: BTreeSet<Vec<u8>> = (0..=REWRITES).map(|number| version(number, length_max)).collect();
    let (mut torn, mut seen, mut mixed) = (Vec::new(), BTreeSet::new(), 0);
    let mut file = File::open(path).unwrap();
    let mut buffer = vec![0; 1 << 20];
    while !has_ended.load(Ordering::Acquire) {
        if reopens {
            file = File::open(path).unwrap();
        }
        let len = file.read_at(&mut buffer, 0).unwrap();
        let read = &buffer[..len];
        if versions.contains(read) {
            seen.insert(len);
        } else if is_of_versions(read, &versions) {
            mixed += 1;
        } else {
            let (first, last) = (read.first(), read.last());
            torn.push(format!("{len} bytes from {first:?} to {last:?}"));
        }
    }
    eprintln!(
        "{} versions seen, {mixed} reads with pages of two, {} of none: {torn:?}",
        seen.len(),
        torn.len()
    );
    (torn, seen.len())
}

/// Rewrites a file in place by transactions, larger and smaller, while others read it whole.
fn rewrite_under_readers(client: &mut Store, dir: &str, length_max: usize) {
    let path = Path::new(dir).join(format!("file-{length_max}"));
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    fs::write(&path, version(0, length_max)).unwrap();
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|reader| {
                let (path, has_ended) = (&path, &has_ended);
                scope.spawn(move || read_on(path, length_max, reader % 2 == 1, has_ended))
            })
            .collect();
        for number in 1..=REWRITES {
            let mut txn = client.begin(BeginOptions { tied: true, ..BeginOptions::default() }).unwrap();
            fs::write(txn.path(&name).unwrap(), version(number, length_max)).unwrap();
            txn.commit().unwrap();
            // The commit is answered when nothing older can be read.
            assert_eq!(fs::read(&path).unwrap(), version(number, length_max), "{number}");
        }
        has_ended.store(true, Ordering::Release);
        for reader in readers {
            let (torn, seen) = reader.join().unwrap();
            assert!(torn.len() <= TORN_MAX, "of {REWRITES} rewrites of up to {length_max} bytes: {torn:?}");
            assert!(seen > REWRITES / 10, "{seen} versions seen");
        }
    });
}

#[test]
fn read_during_commit_that_changes_size_returns_a_whole_version() {
    if !can_mount("read_during_commit_that_changes_size_returns_a_whole_version") {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    let mut client = Store::connect(Path::new(&dir)).unwrap();
    client = client.map(kvfs_rpc::client::Client::asynchronous);
    // Within a page, and over several.
    for length_max in [4000, 60_000] {
        rewrite_under_readers(&mut client, &dir, length_max);
    }
}
