//! The library as `make install` puts it in place, found by pkg-config and by `cmake`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::compile::{libraries, run};
use crate::header::crate_dir;

fn repository() -> PathBuf {
    crate_dir().join("../..").canonicalize().expect("is there")
}

/// Installs to `prefix`, with `LIBDIR` beneath it.
fn make(target: &str, prefix: &Path, libdir: &str) {
    let mut make = Command::new("make");
    make.arg("-C").arg(repository()).args(["--no-print-directory", target]);
    make.arg(format!("PREFIX={}", prefix.display()));
    make.arg(format!("LIBDIR={}", prefix.join(libdir).display()));
    // Cargo's variables are about this test.
    make.arg(format!("LIBRARIES={}", libraries().display())).env_remove("MAKEFLAGS");
    run(&mut make);
}

/// One for all tests: the static library is large.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<tempfile::TempDir> = OnceLock::new();
    PREFIX
        .get_or_init(|| {
            let dir = tempfile::tempdir().expect("a directory");
            make("install-library-files", dir.path(), "lib/here");
            dir
        })
        .path()
}

/// What pkg-config says.
fn flags(question: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", prefix().join("lib/here/pkgconfig")).args(question).arg("kvfs");
    let said = String::from_utf8(run(&mut command).stdout).expect("prints text");
    said.split_whitespace().map(str::to_owned).collect()
}

/// Compiles as a user would.
fn compile(compiler: &[&str], source: &Path, program: &Path) {
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(program).arg(source);
    run(command.args(flags(&["--cflags", "--libs"])));
}

/// What a program prints.
fn start(program: &Path, arguments: &[&str], dir: &Path) -> String {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(dir).env("LD_LIBRARY_PATH", prefix().join("lib/here"));
    String::from_utf8(run(&mut command).stdout).expect("prints text")
}

#[test]
fn program_of_the_readme_compiles_and_runs() {
    let readme = fs::read_to_string(repository().join("README.md")).expect("reads");
    let program =
        readme.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).expect("has one in C");
    let dir = tempfile::tempdir().expect("a directory");
    let (source, compiled) = (dir.path().join("notes.c"), dir.path().join("notes"));
    fs::write(&source, program).expect("writes");
    compile(&["cc", "-std=gnu11"], &source, &compiled);
    assert_eq!(start(&compiled, &[], dir.path()), "");
    assert!(dir.path().join("notes.kvfs/device").exists());
    // Again, with the store that is there.
    start(&compiled, &[], dir.path());
}

#[test]
fn examples_compile_and_run() {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, compiler) in [("photo.c", &["cc", "-std=gnu11"]), ("photo.cpp", &["c++", "-std=c++17"])] {
        let compiled = dir.path().join(format!("{name}.out"));
        compile(compiler, &repository().join("examples").join(name), &compiled);
        let said = start(&compiled, &[&format!("{name}.store")], dir.path());
        assert!(said.contains("photo: absent   tags: absent\n"), "{said}");
        assert!(said.ends_with("photo: there   tags: cat, sofa\n"), "{said}");
    }
}

#[test]
fn cmake_finds_both_libraries() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = repository().join("examples/photo.c");
    let project = format!(
        "cmake_minimum_required(VERSION 3.13)\nproject(photo C)\nfind_package(kvfs {} REQUIRED)\n\
         foreach(kind kvfs kvfs_static)\n  add_executable(photo_${{kind}} {})\n\
         target_link_libraries(photo_${{kind}} kvfs::${{kind}})\nendforeach()\n",
        env!("CARGO_PKG_VERSION"),
        source.display()
    );
    fs::write(dir.path().join("CMakeLists.txt"), project).expect("writes");
    let mut cmake = Command::new("cmake");
    cmake.current_dir(dir.path()).args(["-S", ".", "-B", "build"]);
    run(cmake.arg(format!("-Dkvfs_DIR={}", prefix().join("lib/here/cmake/kvfs").display())));
    run(Command::new("cmake").current_dir(dir.path()).args(["--build", "build"]));
    for kind in ["kvfs", "kvfs_static"] {
        let said = start(&dir.path().join(format!("build/photo_{kind}")), &[kind], dir.path());
        assert!(said.ends_with("photo: there   tags: cat, sofa\n"), "{kind}: {said}");
    }
}

#[test]
fn what_is_installed_can_be_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = || {
        let found = run(Command::new("find").arg(dir.path()).args(["!", "-type", "d", "-printf", "%P\\n"]));
        let mut files: Vec<_> =
            String::from_utf8(found.stdout).expect("is text").lines().map(str::to_owned).collect();
        files.sort_unstable();
        files
    };
    make("install-library-files", dir.path(), "lib");
    let (version, major) = (env!("CARGO_PKG_VERSION"), env!("CARGO_PKG_VERSION_MAJOR"));
    let expected = [
        "include/kvfs.h".to_owned(),
        "include/kvfs.hpp".to_owned(),
        "lib/cmake/kvfs/kvfsConfig.cmake".to_owned(),
        "lib/cmake/kvfs/kvfsConfigVersion.cmake".to_owned(),
        "lib/libkvfs.a".to_owned(),
        "lib/libkvfs.so".to_owned(),
        format!("lib/libkvfs.so.{major}"),
        format!("lib/libkvfs.so.{version}"),
        "lib/pkgconfig/kvfs.pc".to_owned(),
    ];
    assert_eq!(files(), expected);
    make("uninstall-library", dir.path(), "lib");
    assert_eq!(files(), Vec::<String>::new());
}
