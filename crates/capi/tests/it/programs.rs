//! Programs in C and C++ that use every function.

use std::fs;

use crate::compile::{compile, run_program};
use crate::header::{crate_dir, functions, header};

#[test]
fn c_program_calls_every_function() {
    let source = crate_dir().join("tests/c/all.c");
    let text = fs::read_to_string(&source).expect("reads");
    for name in functions(&header()) {
        assert!(text.contains(&format!("{name}(")), "{name} is called nowhere in {}", source.display());
    }
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("all");
    compile("cc", "-std=c11", &source, &program);
    assert_eq!(run_program(&program, dir.path()), "all functions do what they should\n");
}

#[test]
fn cpp_program_uses_every_method() {
    let source = crate_dir().join("tests/cpp/all.cpp");
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("all");
    compile("c++", "-std=c++17", &source, &program);
    assert_eq!(run_program(&program, dir.path()), "all functions do what they should\n");
}
