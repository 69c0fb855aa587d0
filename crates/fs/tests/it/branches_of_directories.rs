//! Branches of one directory: what they show, what they reach, and what becomes of them when the directory is
//! moved or removed.

use kvfs_fs::{Area, DiffKind, Difference, FsError, NodeId, RenameMode, Selection};
use kvfs_store::{Isolation, StoreError};

use crate::branches::{act, act_all, at, finish, merge, merge_preferring, open, tree};
use crate::setup::{Random, Setup};
use crate::views::begin;

/// A branch of the directory at `path`.
fn branch_of(main: &Setup, name: &str, path: &str) -> Setup {
    main.fs.branches().create_of(name, 1000, path.as_bytes(), None).unwrap();
    open(main, name)
}

/// Kind and path of each line.
fn lines(view: &Setup) -> Vec<String> {
    let line = |line: Difference| {
        let sign = match line.kind {
            DiffKind::Added => '+',
            DiffKind::Removed => '-',
            DiffKind::Changed => '~',
            DiffKind::Renamed => '>',
        };
        let from = line.from.map(|from| format!("{} ", String::from_utf8(from).unwrap())).unwrap_or_default();
        format!("{sign} {from}{}", String::from_utf8(line.place).unwrap())
    };
    kvfs_fs::diff(&view.fs).unwrap().into_iter().map(line).collect()
}

#[test]
fn branch_of_a_directory_shows_it_as_its_root_and_changes_nothing_outside() {
    let main = Setup::new(1000);
    act_all(
        &main,
        "mkdir p; mkdir p/q; mkdir p/q/src; write p/q/src/a old; touch p/q/b; write p/out old; mkdir e",
    );
    let view = branch_of(&main, "try", "/p//./q/");
    let root = main.branches().get("try").unwrap().root.unwrap();
    assert_eq!((root.inode, &root.path[..]), (at(&main, "p/q").unwrap().0, &b"/p/q"[..]));
    assert_eq!(tree(&view), ["/b 644 0 1", "/src 755 1 2", "/src/a 644 900 1"]);
    assert_eq!(view.nodes().root(), NodeId(root.inode));
    act_all(&view, "write src/a new; mkdir new; mv src/a new/a; touch c; ln c new/c; rm b; chmod src 700");
    // The main line goes on, in the directory, too.
    act_all(&main, "write p/out newer; touch p/q/beside");
    let told = ["- /b", "+ /c", "+ /new", "> /src/a /new/a", "+ /new/c", "~ /src"];
    let mut found = lines(&view);
    found.sort_by(|a, b| a[2..].cmp(&b[2..]));
    assert!(told.iter().all(|line| found.iter().any(|other| other == line)), "{found:?}");
    assert!(!found.iter().any(|line| line.contains("/p/") || line.contains("outside")), "{found:?}");
    finish(&main, view, "try").unwrap();
    assert_eq!(
        tree(&main),
        [
            "/e 755 0 2",
            "/p 755 2 3",
            "/p/out 644 1500 1",
            "/p/q 755 4 4",
            "/p/q/beside 644 0 1",
            "/p/q/c 644 0 2",
            "/p/q/new 755 2 2",
            "/p/q/new/a 644 900 1",
            "/p/q/new/c 644 0 2",
            "/p/q/src 700 0 2",
        ]
    );
    main.assert_sound("merged");
}

#[test]
fn nothing_outside_of_the_directory_is_reached_from_a_branch_of_it() {
    let main = Setup::new(1000);
    act_all(
        &main,
        "mkdir p; mkdir p/q; mkdir p/q/r; touch p/q/f; touch secret; mkdir e; touch p/q/linked; ln p/q/linked e/linked",
    );
    let view = branch_of(&main, "try", "p/q");
    let (caller, root) = (view.caller.clone(), view.nodes().root());
    for name in [&b".."[..], b"."] {
        assert_eq!(view.lookup(&caller, root, name).unwrap().node, root, "there is no way up");
    }
    let dots: Vec<u64> = view
        .list(root, 9, false)
        .into_iter()
        .filter(|line| line.name.starts_with(b"."))
        .map(|line| line.inode)
        .collect();
    assert_eq!(dots, [root.0, root.0]);
    let below = view.lookup(&caller, root, b"r").unwrap().node;
    assert_eq!(view.lookup(&caller, below, b"..").unwrap().node, root);
    // By number, as a kernel could ask that remembers too much: only what was looked up is known.
    for path in ["", "p", "secret", "e"] {
        let node = at(&main, path).unwrap();
        assert!(matches!(view.getattr(&caller, node), Err(FsError::Stale(_))), "{path}");
        assert!(matches!(view.lookup(&caller, node, b"secret"), Err(FsError::Stale(_))), "{path}");
        let moved = view.rename(&caller, root, b"f", node, b"f", RenameMode::Replace);
        assert!(matches!(moved, Err(FsError::Stale(_))), "{path}");
        let swapped = view.rename(&caller, node, b"e", root, b"r", RenameMode::Exchange);
        assert!(matches!(swapped, Err(FsError::Stale(_))), "{path}");
        assert!(matches!(view.link(&caller, node, root, b"in"), Err(FsError::Stale(_))), "{path}");
    }
    // A file with another name outside is the same file; that name is not reached.
    act_all(&view, "write linked new; rm linked");
    finish(&main, view, "try").unwrap();
    assert_eq!(
        tree(&main),
        [
            "/e 755 1 2",
            "/e/linked 644 900 1",
            "/p 755 1 3",
            "/p/q 755 2 3",
            "/p/q/f 644 0 1",
            "/p/q/r 755 0 2",
            "/secret 644 0 1"
        ]
    );
    main.assert_sound("merged");
}

#[test]
fn branch_of_what_is_no_directory_is_refused_and_of_the_root_is_one_of_everything() {
    let main = Setup::new(1000);
    act_all(&main, "mkdir p; touch p/f");
    let create = |path: &str| main.fs.branches().create_of("try", 1000, path.as_bytes(), None);
    assert!(matches!(create("/none"), Err(FsError::NotFound)));
    assert!(matches!(create("/none/q"), Err(FsError::NotFound)));
    assert!(matches!(create("/p/f"), Err(FsError::NotDirectory)));
    assert!(matches!(create("/p/f/g"), Err(FsError::NotDirectory)));
    assert!(matches!(create("/p/../p"), Err(FsError::Invalid(_))));
    assert_eq!(main.branches().all(), [], "nothing is left of a refused one");
    assert_eq!(create("//").unwrap().root, None);
    assert!(matches!(create("/p"), Err(FsError::Exists)));
    let txn = begin(&main, Isolation::Snapshot);
    assert!(matches!(txn.branches().create_of("inner", 0, b"/p", None), Err(FsError::NotSupported(_))));
}

#[test]
fn branch_of_a_directory_that_was_moved_is_merged_where_it_is() {
    let main = Setup::new(1000);
    act_all(&main, "mkdir p; mkdir p/q; write p/q/a old; mkdir e");
    let view = branch_of(&main, "try", "/p/q");
    act_all(&view, "write a newer; touch b");
    act_all(&main, "mv p/q e/moved; rmdir p; mkdir p; mkdir p/q; touch p/q/other");
    assert_eq!(lines(&view), ["~ /a", "+ /b"]);
    let root = main.branches().get("try").unwrap().root.unwrap();
    assert_eq!(main.branches().place_now(&root).unwrap().as_deref(), Some(&b"/e/moved"[..]));
    finish(&main, view, "try").unwrap();
    let expected = [
        "/e 755 1 3",
        "/e/moved 755 2 2",
        "/e/moved/a 644 1500 1",
        "/e/moved/b 644 0 1",
        "/p 755 1 3",
        "/p/q 755 1 2",
        "/p/q/other 644 0 1",
    ];
    assert_eq!(tree(&main), expected);
    main.assert_sound("merged");
}

#[test]
fn branch_of_a_directory_that_was_removed_is_refused_by_a_merge_and_stays_usable() {
    for recreate in ["", "; mkdir p"] {
        let main = Setup::new(1000);
        act_all(&main, "mkdir p; mkdir p/q; write p/q/a old");
        let view = branch_of(&main, "try", "/p");
        act_all(&view, "write q/a new; touch b");
        act_all(&main, &format!("rm p/q/a; rmdir p/q; rmdir p{recreate}"));
        let now = tree(&main);
        let root = main.branches().get("try").unwrap().root.unwrap();
        assert_eq!(main.branches().place_now(&root).unwrap(), None);
        assert!(lines(&view).contains(&"+ /b".to_owned()), "{:?}", lines(&view));
        let gone = |merged: Result<(), FsError>| {
            let Err(FsError::DirectoryGone { path }) = merged else { panic!("{merged:?}") };
            assert_eq!(path, "/p");
        };
        gone(finish(&main, view, "try"));
        for selection in [Selection { force: vec![Area::All], ..Selection::default() }, Selection::default()]
        {
            gone(merge_preferring(&main, "try", &selection));
        }
        assert_eq!(tree(&main), now);
        let view = open(&main, "try");
        assert_eq!(tree(&view), ["/b 644 0 1", "/q 755 1 2", "/q/a 644 900 1"]);
        drop(view);
        main.branches().delete(&main.branch("try")).unwrap();
        assert_eq!(main.admission().transactions().len(), 0);
        main.assert_sound("refused");
    }
}

#[test]
fn conflicts_of_a_branch_of_a_directory_have_its_paths_and_a_side_is_preferred_by_them() {
    let main = Setup::new(1000);
    act_all(&main, "mkdir p; mkdir p/q; write p/q/f a; write p/q/g a; write f a");
    let view = branch_of(&main, "try", "/p");
    act_all(&view, "write q/f bb; write q/g bb");
    main.clock.advance(std::time::Duration::from_secs(1));
    act_all(&main, "write p/q/f ccc; write p/q/g ccc; write f ccc");
    let refused = finish(&main, view, "try");
    let Err(FsError::MergeRefused { mut conflicts, more: 0 }) = refused else { panic!("{refused:?}") };
    conflicts.sort();
    let starts = |at: usize, start: &str| assert!(conflicts[at].starts_with(start), "{conflicts:?}");
    starts(0, "/q/f was changed outside");
    starts(1, "/q/g was changed outside");
    let part = Selection { force: vec![Area::path(b"/q/f")], ..Selection::default() };
    let refused = merge_preferring(&main, "try", &part);
    let Err(FsError::MergeRefused { conflicts, .. }) = refused else { panic!("{refused:?}") };
    assert!(conflicts.len() == 1 && conflicts[0].starts_with("/q/g was changed outside"), "{conflicts:?}");
    let both = Selection {
        force: vec![Area::path(b"/q/f")],
        keep: vec![Area::path(b"/q/g")],
        ..Selection::default()
    };
    merge_preferring(&main, "try", &both).unwrap();
    assert_eq!(
        tree(&main),
        ["/f 644 900 1", "/p 755 1 3", "/p/q 755 2 2", "/p/q/f 644 600 1", "/p/q/g 644 900 1"]
    );
    main.assert_sound("merged");
}

#[test]
fn branch_of_a_directory_is_gone_on_with_after_a_restart() {
    let mut main = Setup::new(1000);
    act_all(&main, "mkdir p; touch p/a; touch out");
    let view = branch_of(&main, "try", "/p");
    act(&view, "touch kept").unwrap();
    view.branches().checkpoint().unwrap();
    act(&view, "touch lost").unwrap();
    drop(view);
    main.reopen();
    let info = main.branches().get("try").unwrap();
    assert_eq!(info.root.map(|root| root.path).as_deref(), Some(&b"/p"[..]));
    let view = open(&main, "try");
    assert_eq!(tree(&view), ["/a 644 0 1", "/kept 644 0 1"]);
    let busy = main.fs.open_branch("try").map(drop).unwrap_err();
    assert!(matches!(busy, FsError::Store(error) if matches!(*error, StoreError::CheckpointOpen(_))));
    drop(view);
    merge(&main, "try").unwrap();
    assert_eq!(tree(&main), ["/out 644 0 1", "/p 755 2 2", "/p/a 644 0 1", "/p/kept 644 0 1"]);
    main.assert_sound("merged");
}

/// Commands at random: in a branch of a directory they do what they do in that directory of another file
/// system.
#[test]
fn random_work_in_a_branch_of_a_directory_does_what_it_does_there() {
    let names = ["a", "b", "c", "d", "a/x", "b/x", "c/y", "a/x/z"];
    for seed in 0..30 {
        let mut random = Random::new(seed);
        let (main, model) = (Setup::new(1000), Setup::new(1000));
        for setup in [&main, &model] {
            act_all(setup, "mkdir p; mkdir p/q; mkdir p/q/a; touch p/q/b; write p/q/c old; touch a; mkdir b");
        }
        let mut view = branch_of(&main, "try", "/p/q");
        for step in 0..60 {
            let mut name = || names[random.below(names.len() as u64) as usize];
            let (one, other) = (name(), name());
            let below = |path: &str| format!("p/q/{path}");
            let command =
                ["mkdir", "rmdir", "rm", "touch", "write", "chmod", "mv", "ln"][random.below(8) as usize];
            let line = |place: &dyn Fn(&str) -> String| match command {
                "mv" | "ln" => format!("{command} {} {}", place(one), place(other)),
                "chmod" => format!("{command} {} 7{}0", place(one), step % 7),
                "write" => format!("{command} {} {step}", place(one)),
                _ => format!("{command} {}", place(one)),
            };
            let inside = act(&view, &line(&str::to_owned)).map_err(|error| error.errno());
            let there = act(&model, &line(&below)).map_err(|error| error.errno());
            assert_eq!(inside, there, "seed {seed}, step {step}: {}", line(&below));
            if random.one_in(20) {
                view.branches().checkpoint().unwrap();
                drop(view);
                view = open(&main, "try");
            }
        }
        finish(&main, view, "try").unwrap();
        assert_eq!(tree(&main), tree(&model), "seed {seed}");
        main.assert_sound(&format!("seed {seed}"));
    }
}
