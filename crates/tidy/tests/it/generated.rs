//! The code that is generated from the protocol file is committed, so that a build needs no protobuf
//! compiler.

use std::path::{Path, PathBuf};

use kvfs_tidy::source;

/// Set it to write the file anew.
const REGENERATE: &str = "KVFS_REGENERATE";

fn generate(root: &Path) -> String {
    let out: PathBuf = std::env::temp_dir().join(format!("kvfs-tidy-generate-{}", std::process::id()));
    std::fs::create_dir_all(&out).expect("makes a directory");
    let proto = root.join("proto");
    let descriptors =
        protox::compile([proto.join("kvfs/v1/store.proto")], [proto]).expect("the protocol file is good");
    tonic_prost_build::configure()
        .build_transport(false)
        .bytes(".")
        .out_dir(&out)
        .compile_fds(descriptors)
        .expect("generates");
    let code = std::fs::read_to_string(out.join("kvfs.v1.rs")).expect("is generated");
    std::fs::remove_dir_all(&out).expect("cleans up");
    code
}

#[test]
fn the_generated_code_is_that_of_the_protocol_file() {
    let root = source::root().join("crates/rpc");
    let file = root.join("generated/kvfs.v1.rs");
    let code = generate(&root);
    if std::env::var_os(REGENERATE).is_some() {
        std::fs::write(&file, &code).unwrap();
    }
    let committed = std::fs::read_to_string(&file).unwrap();
    assert!(committed == code, "generate it anew: {REGENERATE}=1 cargo test -p kvfs-tidy generated");
}
