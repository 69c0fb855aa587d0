/work/main/bench/../target/bench/release/deps/terminal_size-f0526ecce3a52f2f.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/terminal_size-0.4.4/src/lib.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/terminal_size-0.4.4/src/unix.rs

/work/main/bench/../target/bench/release/deps/libterminal_size-f0526ecce3a52f2f.rlib: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/terminal_size-0.4.4/src/lib.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/terminal_size-0.4.4/src/unix.rs

/work/main/bench/../target/bench/release/deps/libterminal_size-f0526ecce3a52f2f.rmeta: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/terminal_size-0.4.4/src/lib.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/terminal_size-0.4.4/src/unix.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/terminal_size-0.4.4/src/lib.rs:
/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/terminal_size-0.4.4/src/unix.rs:
