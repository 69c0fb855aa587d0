/work/main/bench/../target/bench/release/deps/kvfs_bench-0890a00f5471319f.d: src/main.rs src/host.rs src/image.rs src/interrupt.rs src/measure.rs src/memory.rs src/report.rs src/source.rs src/target.rs src/target/ext4.rs src/target/floor.rs src/target/fuse.rs src/target/kvfs.rs src/workload.rs

/work/main/bench/../target/bench/release/deps/kvfs_bench-0890a00f5471319f: src/main.rs src/host.rs src/image.rs src/interrupt.rs src/measure.rs src/memory.rs src/report.rs src/source.rs src/target.rs src/target/ext4.rs src/target/floor.rs src/target/fuse.rs src/target/kvfs.rs src/workload.rs

src/main.rs:
src/host.rs:
src/image.rs:
src/interrupt.rs:
src/measure.rs:
src/memory.rs:
src/report.rs:
src/source.rs:
src/target.rs:
src/target/ext4.rs:
src/target/floor.rs:
src/target/fuse.rs:
src/target/kvfs.rs:
src/workload.rs:

# env-dep:CARGO_PKG_NAME=kvfs-bench
# env-dep:CARGO_PKG_VERSION=0.1.0
