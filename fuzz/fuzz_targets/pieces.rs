#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvfs_fuzz::pieces::run(data));
