//! Which files are foreseen.

use super::*;

fn files(inodes: std::ops::Range<u64>, blocks: u64) -> Vec<ListedFile> {
    inodes.map(|inode| ListedFile { inode, blocks }).collect()
}

fn inodes(files: &[ListedFile]) -> Vec<u64> {
    files.iter().map(|file| file.inode).collect()
}

#[test]
fn files_that_are_read_as_listed_are_foreseen_up_to_the_lead() {
    let scans = Scans::default();
    assert_eq!(scans.listed(1, true, &files(100..200, LEAD_BLOCKS / 8)), [], "a listing alone says nothing");
    assert_eq!(scans.reads(1, 100), [], "nor does one file");
    assert_eq!(inodes(&scans.reads(1, 101)), (102..110).collect::<Vec<_>>(), "the lead");
    for inode in 102..105 {
        assert_eq!(scans.reads(1, inode), [], "half of it is left");
    }
    assert_eq!(inodes(&scans.reads(1, 105)), (110..114).collect::<Vec<_>>());
    assert_eq!(inodes(&scans.reads(1, 109)), (114..118).collect::<Vec<_>>(), "three were left out");
}

#[test]
fn a_listing_in_parts_is_one() {
    let scans = Scans::default();
    scans.listed(1, true, &files(100..101, 1));
    assert_eq!(scans.reads(1, 100), []);
    assert_eq!(inodes(&scans.listed(1, false, &files(101..103, 1))), [101, 102]);
    assert_eq!(scans.listed(2, false, &files(300..303, 1)), [], "its start is not known");
    scans.listed(1, true, &files(100..103, 1));
    assert_eq!(scans.reads(1, 100), [], "foreseen with the new listing");
}

#[test]
fn directories_on_the_way_of_a_scan_are_foreseen_when_they_are_listed() {
    let scans = Scans::default();
    scans.listed(1, true, &files(100..102, 1));
    assert_eq!(scans.listed(2, true, &files(200..202, 1)), [], "nothing was read yet");
    assert_eq!(scans.reads(2, 200), []);
    assert_eq!(inodes(&scans.listed(3, true, &files(300..302, 1))), [300, 301]);
    for directory in 4..4 + u64::from(UNREAD_MAX) - 1 {
        let listed = files(directory * 100..directory * 100 + 1, 1);
        assert_eq!(scans.listed(directory, true, &listed), listed);
    }
    assert_eq!(scans.listed(20, true, &files(2000..2001, 1)), [], "so many were not read");
}

#[test]
fn what_comes_after_a_subdirectory_is_foreseen_anew() {
    let scans = Scans::default();
    scans.listed(1, true, &files(100..106, 1));
    scans.reads(1, 100);
    assert_eq!(inodes(&scans.reads(1, 101)), [102, 103, 104, 105]);
    scans.listed(2, true, &files(200..202, 1));
    scans.reads(2, 200);
    assert_eq!(inodes(&scans.reads(1, 102)), [103, 104, 105]);
    assert_eq!(scans.reads(1, 103), []);
}

#[test]
fn reads_anywhere_foresee_nothing() {
    let scans = Scans::default();
    scans.listed(1, true, &files(100..2100, 1));
    assert_eq!(scans.reads(1, 900), [], "far behind");
    assert_eq!(scans.reads(1, 130), [], "one read is no scan");
    assert_eq!(scans.reads(1, 110), [], "against the order");
    assert_eq!(scans.reads(7, 130), [], "an unknown directory");
    assert_eq!(scans.reads(1, 131).len() as u64, LEAD_BLOCKS, "this follows the one before it");
}

#[test]
fn what_is_remembered_is_bounded() {
    let scans = Scans::default();
    for directory in 0..100 {
        scans.listed(directory, true, &files(0..10_000, 1));
    }
    let state = scans.state.lock();
    assert_eq!(state.scans.len(), SCANS_MAX);
    assert!(state.scans.iter().all(|scan| scan.files.len() == FILES_MAX));
}
