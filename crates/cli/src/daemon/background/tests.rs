use super::*;
use clap::Parser;

use crate::args::Cli;

#[test]
fn quiet_mount_is_told_to_mount_in_the_background() {
    for (words, expected) in [
        ("mount store dir", "mount --in-background store dir"),
        ("-q mount store dir", "-q mount --in-background store dir"),
        ("--quiet serve -o ro store", "--quiet serve --in-background -o ro store"),
    ] {
        let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        let found = in_background(&words);
        assert_eq!(found, expected.split(' ').map(OsString::from).collect::<Vec<_>>());
        let all = [OsString::from("kvfs")].into_iter().chain(found);
        assert!(Cli::try_parse_from(all).is_ok(), "{expected}");
    }
}
