//! Names the shared library, so that programs find the one that they were linked with.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libkvfs.so.{major}");
    // What dependencies have for programs in C is not this library's.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
}
