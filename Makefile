# One door for everything; `make` alone lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# rustup's usual place, for shells that did not read its profile.
export PATH := $(PATH):$(HOME)/.cargo/bin

PREFIX  ?= /usr/local
# mount(8) looks for its helpers here and nowhere else.
SBINDIR ?= /usr/sbin
KVFS    := target/release/kvfs
# Pages of the manual and completions, written by the program itself.
SHARE   := target/release/share
UNIT    := $(PREFIX)/lib/systemd/system/kvfs@.service
# Both at once, so that what they share is compiled once.
BUILT   := --locked -p kvfs-cli -p kvfs-capi -p kvfs-preload --bins --lib
BUILD   := cargo build --release $(BUILT)

# The library: where cargo has put it, and where it goes.
LIBRARIES := target/release
LIBDIR    ?= $(PREFIX)/lib
VERSION   := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
MAJOR     := $(word 1,$(subst ., ,$(VERSION)))
MINOR     := $(word 2,$(subst ., ,$(VERSION)))

.PHONY: help run stop demo-dashboards build build-rocksdb build-leveldb build-engines build-cloud build-slatedb test test-engines test-beyond test-unit test-mount realwork fuzz torture bench-quick bench bench-aged profile bench-txn bench-papers bench-db bench-tiers bench-beyond lint lint-build advisories docs install install-files install-library-files uninstall uninstall-library deb clean setup

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## set up, build, mount a demonstration store and show it
	@scripts/setup.sh run
	@[ -x $(KVFS) ] || echo "building kvfs: about five minutes on two cores, this first time"
	@$(BUILD)
	@scripts/demo.sh

stop: ## unmount and remove the demonstration of `make run`
	@scripts/demo.sh --stop

demo-dashboards: build ## pictures of a store at work, of kvfs top, heat and stats, and metrics: target/dashboards
	@scripts/dashboards.sh

build: ## binary, libraries, manual, completions: target/release/kvfs, libkvfs.so, libkvfs.a, libkvfs_preload.so, share
	@$(BUILD)
	@rm -rf $(SHARE) && $(KVFS) pages $(SHARE)

build-rocksdb: ## the same binary with the engine RocksDB, which needs librocksdb-dev: target/rocksdb/release/kvfs
	@scripts/setup.sh rocksdb
	@cargo build --release --locked -p kvfs-cli --bin kvfs --features rocksdb --target-dir target/rocksdb

build-leveldb: ## the same binary with the engine LevelDB, which needs libleveldb-dev: target/leveldb/release/kvfs
	@scripts/setup.sh leveldb
	@cargo build --release --locked -p kvfs-cli --bin kvfs --features leveldb --target-dir target/leveldb

build-engines: ## the same binary with both: target/engines/release/kvfs
	@scripts/setup.sh engines
	@cargo build --release --locked -p kvfs-cli --bin kvfs --features rocksdb,leveldb --target-dir target/engines

build-cloud: ## the same binary with repositories in object storage: target/cloud/release/kvfs
	@cargo build --release --locked -p kvfs-cli --bin kvfs --features cloud --target-dir target/cloud

build-slatedb: ## the same binary with the engine SlateDB, for stores in object storage, and repositories there: target/slatedb/release/kvfs
	@cargo build --release --locked -p kvfs-cli --bin kvfs --features slatedb --target-dir target/slatedb

test-engines: ## engines other than kvdb: the contract of stores, pjdfstest and fsx on each, kill -9; needs librocksdb-dev, libleveldb-dev
	@scripts/setup.sh engines
	@scripts/engines.sh

test-beyond: ## stores in object storage: contract, faults of the network, outages, kill -9, take-over; BEYOND=long
	@scripts/setup.sh test
	@scripts/beyond.sh $(BEYOND)

test: ## everything CI runs: lint, unit tests, suites on a mount, docs, real work (short)
	@scripts/setup.sh test
	@scripts/test.sh

test-unit: ## unit, model, crash and tidy tests; no mount
	@scripts/test.sh unit

test-mount: ## pjdfstest, fsx, stress-ng and the life of a mount
	@scripts/setup.sh test
	@scripts/test.sh suites mount

realwork: build ## a kernel tree, a C project, git, SQLite, kill -9: the long form
	@scripts/setup.sh test
	@scripts/realwork.sh

fuzz: ## every fuzz target for a minute; FUZZ_SECONDS
	@scripts/setup.sh test
	@scripts/fuzz.sh $${FUZZ_SECONDS:-60}

torture: build ## transactions, the long form, in parts: beside other work, kill -9 1,000 times, ext4 beside it, fuzzing
	@scripts/setup.sh test
	@scripts/endurance.sh $(TORTURE)

BENCH_OUT   := target/bench-report
BENCH_FLOOR := target/release/examples/floor

# $(call bench_all,NAME,SIZES,RUNS): file systems, then engines, into one JSON file and one page.
define bench_all
	@scripts/setup.sh bench
	@cargo build --release --locked -p kvfs-fuse --example floor
	@status=0; \
	(cd bench && cargo run --release --locked --bin kvfs-bench -- --kvfs ../$(KVFS) --floor ../$(BENCH_FLOOR) \
		--sizes $(2) --runs $(3) --json ../$(BENCH_OUT)/$(1).json --plots ../$(BENCH_OUT)/$(1) $(BENCH)) || status=$$?; \
	(cd bench/engines && cargo run --release --locked -- --sizes $(2) --runs $(3) \
		--json ../../$(BENCH_OUT)/$(1).json --resume --plots ../../$(BENCH_OUT)/$(1) $(BENCH_ENGINES)) || status=$$?; \
	exit $$status
endef

bench-quick: build ## the whole table in small sizes, once: ten minutes; root
	$(call bench_all,quick,quick,1)

bench: build ## kvfs beside other file systems and engines, judged by its goals: hours; root, an idle machine
	$(call bench_all,full,full,3)

bench-aged: build ## kvfs and ext4, fresh and written over ten times at 85 % full; root, an idle machine
	@scripts/setup.sh bench
	@cd bench && cargo run --release --locked --bin kvfs-bench -- --kvfs ../$(KVFS) --sizes aged --runs 3 \
		--json ../$(BENCH_OUT)/aged.json --plots ../$(BENCH_OUT)/aged $(BENCH)

profile: ## a flame graph of every workload on kvfs: target/bench-report/profile; root
	@scripts/setup.sh bench
	@RUSTFLAGS="-C force-frame-pointers=yes" cargo build --release --locked --bin kvfs --target-dir target/profile
	@cd bench && cargo run --release --locked --bin kvfs-bench -- --kvfs ../target/profile/release/kvfs --targets kvfs \
		--sizes quick --runs 1 --flames ../$(BENCH_OUT)/profile $(BENCH)

bench-txn: build ## transactions: the engine and a mount, beside what the thesis measured; root, an idle machine
	@scripts/setup.sh test
	@cd bench && cargo run --release --locked --bin kvfs-bench-txn -- --kvfs ../$(KVFS) \
		--json ../target/bench-txn.json --plots ../target/bench-txn $(BENCH)

bench-papers: build ## what thesis and TableFS measured, the library and kvfs exec among it; a full store and an aged one: two hours; root, an idle machine
	@scripts/setup.sh bench
	@cd bench && status=0; \
	cargo run --release --locked --features engines --bin kvfs-bench-papers -- --kvfs ../$(KVFS) \
		--json ../$(BENCH_OUT)/papers.json $(BENCH) || status=$$?; \
	cargo run --release --locked --bin kvfs-bench -- --kvfs ../$(KVFS) --targets library,exec,exec-client,kvfs,ext4,xfs,btrfs \
		--only exec,library,tablefs,large --runs 5 --json ../$(BENCH_OUT)/library.json --plots ../$(BENCH_OUT)/library \
		$(BENCH_LIBRARY) || status=$$?; \
	exit $$status

bench-db: build ## databases on kvfs, ext4 and XFS, and killed with their file systems: an hour; root, an idle machine
	@scripts/setup.sh bench-db
	@cd bench && cargo run --release --locked --bin kvfs-bench-db -- --kvfs ../$(KVFS) \
		--json ../$(BENCH_OUT)/db.json --plots ../$(BENCH_OUT)/db $(BENCH)

bench-tiers: build ## kvfs on a fast and a slow device beside kvfs and ext4 on one of them; root, an idle machine
	@scripts/setup.sh bench
	@cd bench && cargo run --release --locked --bin kvfs-bench-tiers -- --kvfs ../$(KVFS) \
		--json ../$(BENCH_OUT)/tiers.json --plots ../$(BENCH_OUT)/tiers $(BENCH)

bench-beyond: build-slatedb ## stores in object storage 1 ms and 20 ms away, beside JuiceFS and bare requests: hours; root, Go, an idle machine
	@scripts/setup.sh bench-beyond
	@programs=$$(tests/suites/tools.sh versitygw juicefs) && cd bench && \
	cargo run --release --locked --features beyond --bin kvfs-bench-beyond -- --kvfs ../target/slatedb/release/kvfs \
		--programs "$$programs" --json ../$(BENCH_OUT)/beyond.json --plots ../$(BENCH_OUT)/beyond $(BENCH)

lint: ## rustfmt and clippy, no warning allowed
	@cargo fmt --all -- --check
	@cargo clippy --workspace --all-targets --locked --features kvfs-cli/slatedb -- -D warnings

lint-build: ## clippy of what `make build` builds, which has fewer features than the tests
	@cargo clippy $(BUILT) -- -D warnings

advisories: ## known weaknesses of the dependencies, from a database that is fetched; builds cargo-deny
	@PATH=$$(tests/suites/tools.sh cargo-deny):$$PATH cargo deny --log-level error check

docs: ## the API pages, no warning allowed
	@RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

install: build install-files install-library-files ## binary, mount.fuse.kvfs, manual, completions, systemd unit, library; PREFIX, SBINDIR, LIBDIR, DESTDIR
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig || true

install-files:
	@install -D -m 755 $(KVFS) $(DESTDIR)$(PREFIX)/bin/kvfs
	@install -D -m 644 $(LIBRARIES)/libkvfs_preload.so $(DESTDIR)$(PREFIX)/lib/kvfs/libkvfs_preload.so
	@mkdir -p $(DESTDIR)$(SBINDIR)
	@ln -sf $(PREFIX)/bin/kvfs $(DESTDIR)$(SBINDIR)/mount.fuse.kvfs
	@ln -sf $(PREFIX)/bin/kvfs $(DESTDIR)$(SBINDIR)/umount.fuse.kvfs
	@cd $(SHARE) && find . -type f -exec install -D -m 644 {} $(abspath $(DESTDIR)$(PREFIX))/share/{} \;
	@sed 's|@BINDIR@|$(PREFIX)/bin|' packaging/kvfs@.service.in | install -D -m 644 /dev/stdin $(DESTDIR)$(UNIT)

# $(call fill,FILE): one of packaging/, with what is known here put in.
fill = sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@MAJOR@|$(MAJOR)|' \
	-e 's|@MINOR@|$(MINOR)|' -e "s|@INCLUDE_FROM_LIB@|$$(realpath -m --relative-to=$(LIBDIR) $(PREFIX)/include)|" packaging/$(1)

install-library-files:
	@install -D -m 644 $(LIBRARIES)/libkvfs.so $(DESTDIR)$(LIBDIR)/libkvfs.so.$(VERSION)
	@ln -sf libkvfs.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libkvfs.so.$(MAJOR)
	@ln -sf libkvfs.so.$(MAJOR) $(DESTDIR)$(LIBDIR)/libkvfs.so
	@install -m 644 $(LIBRARIES)/libkvfs.a $(DESTDIR)$(LIBDIR)/libkvfs.a
	@install -D -m 644 -t $(DESTDIR)$(PREFIX)/include crates/capi/include/kvfs.h crates/capi/include/kvfs.hpp
	@$(call fill,kvfs.pc.in) | install -D -m 644 /dev/stdin $(DESTDIR)$(LIBDIR)/pkgconfig/kvfs.pc
	@$(call fill,kvfsConfig.cmake.in) | install -D -m 644 /dev/stdin $(DESTDIR)$(LIBDIR)/cmake/kvfs/kvfsConfig.cmake
	@$(call fill,kvfsConfigVersion.cmake.in) | install -D -m 644 /dev/stdin $(DESTDIR)$(LIBDIR)/cmake/kvfs/kvfsConfigVersion.cmake

uninstall-library:
	@rm -f $(DESTDIR)$(LIBDIR)/libkvfs.so $(DESTDIR)$(LIBDIR)/libkvfs.so.* $(DESTDIR)$(LIBDIR)/libkvfs.a \
		$(DESTDIR)$(PREFIX)/include/kvfs.h $(DESTDIR)$(PREFIX)/include/kvfs.hpp $(DESTDIR)$(LIBDIR)/pkgconfig/kvfs.pc \
		$(DESTDIR)$(LIBDIR)/cmake/kvfs/kvfsConfig.cmake $(DESTDIR)$(LIBDIR)/cmake/kvfs/kvfsConfigVersion.cmake
	@! [ -d $(DESTDIR)$(LIBDIR)/cmake/kvfs ] || rmdir --ignore-fail-on-non-empty $(DESTDIR)$(LIBDIR)/cmake/kvfs

uninstall: uninstall-library ## remove what `make install` has installed
	@rm -f $(DESTDIR)$(PREFIX)/lib/kvfs/libkvfs_preload.so $(DESTDIR)$(PREFIX)/bin/kvfs $(DESTDIR)$(SBINDIR)/mount.fuse.kvfs $(DESTDIR)$(SBINDIR)/umount.fuse.kvfs \
		$(DESTDIR)$(UNIT) $(DESTDIR)$(PREFIX)/share/man/man1/kvfs.1 $(DESTDIR)$(PREFIX)/share/man/man1/kvfs-*.1 \
		$(DESTDIR)$(PREFIX)/share/man/man8/{,u}mount.fuse.kvfs.8 \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/kvfs \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_kvfs $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/kvfs.fish
	@! [ -d $(DESTDIR)$(PREFIX)/lib/kvfs ] || rmdir --ignore-fail-on-non-empty $(DESTDIR)$(PREFIX)/lib/kvfs

deb: build ## packages for Debian and its relatives: target/{kvfs,libkvfs0,libkvfs-dev}_VERSION_ARCH.deb
	@packaging/deb.sh target

clean: ## remove the demonstration and everything built
	@scripts/demo.sh --stop
	@cargo clean

setup: ## install the system packages that are missing
	@scripts/setup.sh test
