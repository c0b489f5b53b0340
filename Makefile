# SPDX-License-Identifier: MIT
# Builds, runs and tests redis-lock. `make` without a target lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
MAKEFLAGS += --no-print-directory

# The port of `make run`.
PORT := 6379

# redis.conf and the tests expect the module there, so the user's own setting must not apply.
export CARGO_TARGET_DIR := $(CURDIR)/target

# The benchmarks of `make bench`. To run one of them: cargo bench --bench NAME.
BENCHES := instructions throughput handover sleeping contention latency replicas stalls cost memory scale sessions \
	neighbors peers

# `make install` writes below DESTDIR/PREFIX. Debian's redis-server may execute only files below /usr/lib.
PREFIX := /usr
DESTDIR :=
at = $(DESTDIR)$(PREFIX:/=)
modules = $(at)/lib/redis/modules

# The packages in `clients/` with a script in `tests/scripts/`, the slowest first. The Rust package belongs to this workspace.
CLIENTS := java go node python
PACKAGES := python node rust java go

# Further targets of `make dist-server`, `make dist` and `make dist-check`.
TARGETS := $(if $(ALL),x86_64-unknown-linux-musl aarch64-unknown-linux-gnu)

# Paths of a module and of a folder with lockrun and locktop. If set, these are installed without a build.
MODULE :=
TOOLS :=

.PHONY: help run setup servers clients ready test test-long test-all test-clients test-matrix sanitize fuzz mutants porcupine \
	soak evidence bench guard guard-record lint install install-module install-tools uninstall dist dist-check dist-server \
	test-targets page-test page-shots tools clean

help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s  %s\n", $$1, $$2 }' Makefile

run: ## Starts a server with locks on port 6379, or PORT=6380; installs missing programs
	@$(refuse_used_port)
	$(call install,rust cc libclang redis)
	cargo build --release
	$(refuse_used_port)
	mkdir -p data
	cli="redis-cli$(if $(own_data), -p $(PORT))"
	printf "%s\n" "" \
		"A server with locks starts on port $(PORT). In another terminal, try:" "" \
		"  $$cli LOCK.ACQUIRE order:42 alice EX 60   # alice holds the lock, for a minute at most" \
		"  $$cli LOCK.INFO order:42                  # shows the holder and its lease" \
		"  $$cli LOCK.ACQUIRE order:42 bob BLOCK 0   # bob waits for it" \
		"  $$cli LOCK.RELEASE order:42 alice         # in a third terminal: bob gets the lock" \
		"  $$cli LOCK.HELP" "" \
		"Ctrl-C ends the server. Its data is in ./data." ""
	exec redis-server ./redis.conf $(own_data)

setup: ## Installs the programs that the tests need
	@$(call install,rust cc libclang redis python tmux openssl network lintian)

servers: setup ## Downloads more servers into target/servers
	@sh tests/scripts/setup-servers.sh
	sh tests/scripts/setup-monitoring.sh

clients: ## Builds the clients in other languages for the tests: Redisson, and the examples
	@for what in venv java node go; do
		case $$what in
		venv) ($(call install,venv)) ;;
		java) ($(call install,java)) ;;
		node) ($(call install,node)) ;;
		go) ($(call install,go)) ;;
		esac || echo "SKIPPED: $$what cannot be installed" >&2
	done
	sh tests/scripts/setup-redisson.sh
	sh tests/scripts/setup-examples.sh
	for client in $(CLIENTS); do
		sh tests/scripts/client-$$client.sh build
	done

ready: setup # Downloads servers and clients during the cargo build.
	@log=$$(mktemp)
	trap 'rm -f "$$log"' EXIT
	$(MAKE) servers clients >"$$log" 2>&1 &
	failed=()
	python3 tests/scripts/run.py build || failed+=("the build")
	wait $$! || failed+=("servers or clients")
	cat "$$log"
	[ $${#failed[@]} = 0 ] || { echo "FAILED: $${failed[*]}" >&2; exit 1; }

test: ready ## Runs all tests on one Redis, some on one Valkey, and a client in each language
	@python3 tests/scripts/run.py short

test-long: ready ## Runs the other tests for every change
	@python3 tests/scripts/run.py long

test-all: ready ## Runs all tests on three servers, some on the newest servers, and all clients
	@failed=()
	python3 tests/scripts/run.py all || failed+=("the tests")
	cargo clippy --manifest-path clients/rust/bench/Cargo.toml -- -D warnings || failed+=("the lints of a benchmark")
	$(MAKE) test-clients || failed+=("the clients' own tests")
	[ $${#failed[@]} = 0 ] || { echo "FAILED: $${failed[*]}" >&2; exit 1; }

test-clients: ## Runs lints, type checks, tests, and other projects' tests of the packages in `clients/`
	@failed=()
	cargo build --release
	# They are idle most of the time, so three run at once. Each one's output stays in one piece.
	$(MAKE) --jobs 3 --output-sync --keep-going $(CLIENTS:%=test-client-%) || failed+=("one of $(CLIENTS)")
	# With the whole workspace, the packages have the features of the other tests, so nothing is built twice.
	cargo test --doc --workspace || failed+=(rust)
	python3 tests/scripts/first_use.py rust || failed+=("the first program of rust")
	[ $${#failed[@]} = 0 ] || { echo "FAILED: $${failed[*]}" >&2; exit 1; }

test-client-%:
	@echo "== clients/$*"
	sh tests/scripts/client-$*.sh || { echo "FAILED: clients/$*" >&2; exit 1; }

test-matrix: ready ## Runs all tests on every server of Debian; with REST=1 only those not in `make test-all`
	@python3 tests/scripts/run.py $(if $(REST),rest,every)

sanitize: servers clients ## Runs all tests on the installed Redis with AddressSanitizer and LeakSanitizer
	@$(call install,tls)
	python3 tests/scripts/sanitize.py

fuzz: ## Fuzzes the parts of the module that need no server, for SECONDS=60 each
	@$(call install,rust cc c++)
	SECONDS_EACH=$(or $(SECONDS),60) sh tests/scripts/fuzz.sh

mutants: ## Checks that the tests find the bugs of tests/mutants; WORDS=token selects some by name
	@$(call install,rust cc libclang redis)
	python3 tests/mutants/run.py $(WORDS)

porcupine: ## Checks histories of plain locks also with Porcupine, an independent linearizability checker
	@$(call install,rust cc libclang redis)
	($(call install,go)) || true
	python3 tests/scripts/porcupine.py

soak: setup servers ## Uses every feature on one server for SECONDS=900, and checks that nothing grows
	SOAK_SECONDS=$(or $(SECONDS),900) python3 tests/scripts/run.py all soak::nothing_grows::redis_7

evidence: ready ## Runs all checks of docs/evidence.md, with LONG=1 for many hours; WORDS=soak selects some by name
	@($(call install,go)) || true
	$(call install,c++ tls)
	python3 tests/scripts/evidence.py $(WORDS)

bench: ## Runs all benchmarks, and prints one table; QUICK=1 gives rough results in a few minutes
	@$(call install,rust cc libclang redis valgrind)
	for what in java go postgres strace; do
		case $$what in
		java) ($(call install,java)) ;;
		go) ($(call install,go)) ;;
		postgres) ($(call install,postgres)) ;;
		strace) ($(call install,strace)) ;;
		esac || echo "SKIPPED: $$what cannot be installed" >&2
	done
	sh tests/scripts/setup-servers.sh
	sh tests/scripts/setup-redisson.sh
	sh benches/peers/setup.sh
	cargo build --release
	failed=()
	for bench in $(BENCHES); do
		cargo bench --bench "$$bench" || failed+=("$$bench")
	done
	cargo bench --bench report
	[ $${#failed[@]} = 0 ] || { echo "FAILED: $${failed[*]}" >&2; exit 1; }

guard: ## Counts instructions, and fails if a path exceeds its count in benches/instructions.txt
	@$(call install,rust cc libclang redis valgrind)
	$(guard)

guard-record: ## Records the current counts for `make guard`
	@$(call install,rust cc libclang redis valgrind)
	$(guard) -- --record

# Only the servers are measured, so the driving program uses the profile of the tests, and is not built twice.
guard = cargo bench --profile dev --workspace --bench guard

lint: ## Checks format, clippy, pyflakes, documentation, English, licenses, versions, sizes, cycles; warnings are errors
	@sources=('*.rs' '*.py' '*.sh' '*.java' '*.go' '*.mjs' '*.ts' '*.c' '*.lua')
	unlicensed=$$(git ls-files -co --exclude-standard "$${sources[@]}" 2>/dev/null |
		while read -r file; do head -n 2 "$$file" | grep -q 'SPDX-License-Identifier: MIT' || echo "$$file"; done)
	[ -z "$$unlicensed" ] || { printf '%s\n' "Files without 'SPDX-License-Identifier: MIT':" "$$unlicensed" >&2; exit 1; }
	$(call install,rust cc libclang python pyflakes)
	git ls-files -co --exclude-standard '*.py' | xargs pyflakes3
	python3 tests/scripts/cycles.py
	python3 tests/scripts/english.py
	python3 tests/scripts/names.py
	python3 tests/scripts/version.py
	python3 tests/scripts/sizes.py
	python3 tests/mutants/run.py --check
	cargo fmt --all --check
	cargo fmt --check --manifest-path tests/protocol/Cargo.toml
	cargo clippy --workspace --all-targets -- -D warnings
	# The fuzzer includes sources of the module.
	cargo check --lib --no-default-features --manifest-path tests/fuzz/Cargo.toml --target-dir "$${CARGO_TARGET_DIR:-target}"
	# A module has no public items, so its documentation links to private ones.
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --workspace --no-deps --document-private-items

page-test page-shots: tools
	@$(call install,redis chromium)
	$(if $(MODULE),,cargo build --release --package redis-lock)
	timeout 300 python3 tests/scripts/page.py "$(or $(MODULE),target/release/libredis_lock.so)" \
		"$(or $(TOOLS),target/tools)/locktop" $(if $(filter page-shots,$@),docs/tools)

page-test: ## Tests the page of locktop in headless Chromium
page-shots: ## Tests the page, and takes the pictures of docs/tools

tools: ## Builds lockrun and locktop
	@if [ -z "$(TOOLS)" ]; then
		$(call install,rust cc)
		cargo build --profile tools --package redis-lock-tools
	fi

install: install-module install-tools ## Installs the module and the tools in /usr, or in DESTDIR=… and PREFIX=…

install-module:
	@if [ -z "$(MODULE)" ]; then
		$(call install,rust cc libclang)
		# `INFO lock` shows the time of the commit as the build.
		epoch=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || true)}
		# Some compilers refuse an empty value.
		[ -z "$$epoch" ] || export SOURCE_DATE_EPOCH=$$epoch
		cargo build --release --package redis-lock
	fi
	# Servers load only executable modules.
	install -D -m 755 "$(or $(MODULE),target/release/libredis_lock.so)" "$(modules)/redis-lock.so"
	install -d "$(at)/share/redis-lock"
	sed 's|@MODULES@|$(PREFIX:/=)/lib/redis/modules|' tools/packaging/redis-lock.conf >"$(at)/share/redis-lock/redis-lock.conf"

install-tools: tools
	@for tool in lockrun locktop; do
		built=$(or $(TOOLS),target/tools)/$$tool
		install -D -m 755 $$built "$(at)/bin/$$tool"
		install -d "$(at)/share/man/man1" "$(at)/share/bash-completion/completions" \
			"$(at)/share/fish/vendor_completions.d" "$(at)/share/zsh/vendor-completions"
		$$built --text man >"$(at)/share/man/man1/$$tool.1"
		$$built --text bash >"$(at)/share/bash-completion/completions/$$tool"
		$$built --text fish >"$(at)/share/fish/vendor_completions.d/$$tool.fish"
		$$built --text zsh >"$(at)/share/zsh/vendor-completions/_$$tool"
	done

uninstall: ## Removes the files of `make install` with the same DESTDIR and PREFIX
	rm -f "$(modules)/redis-lock.so" "$(at)"/bin/lock{run,top} "$(at)"/share/man/man1/lock{run,top}.1 \
		"$(at)"/share/bash-completion/completions/lock{run,top} "$(at)"/share/fish/vendor_completions.d/lock{run,top}.fish \
		"$(at)"/share/zsh/vendor-completions/_lock{run,top}
	rm -rf "$(at)/share/redis-lock"

dist: dist-server ## Builds all that is published in target/dist: `make dist-server`, and the packages in clients/
	@$(call install,venv java node go)
	for language in $(PACKAGES); do
		$(MAKE) package-$$language
	done
	cd target/dist/clients
	find . -type f -not -name SHA256SUMS -not -name '*.md5' -not -name '*.sha1' -not -name 'maven-metadata*' | LC_ALL=C sort |
		xargs sha256sum >SHA256SUMS

dist-server: ## Builds an archive and Debian packages of the server's parts; with ALL=1 also for musl and arm64
	@$(call install,rust cc libclang python $(if $(TARGETS),musl arm64))
	sh tools/packaging/dist.sh $(TARGETS)

dist-check: dist ## Builds all that is published, installs it on copies and in empty projects, and uses it
	@$(call install,redis lintian)
	export PREBUILT=1 REQUIRE_ALL_SERVERS=1
	sh tests/scripts/packages.sh
	# The servers of the next programs load the module of the package.
	unpacked=$$(mktemp -d)
	trap 'rm -rf "$$unpacked"' EXIT
	dpkg-deb --extract target/dist/redis-lock_*_"$$(dpkg --print-architecture)".deb "$$unpacked"
	export REDIS_LOCK_MODULE=$$unpacked/usr/lib/redis/modules/redis-lock.so
	for language in $(PACKAGES); do
		python3 tests/scripts/first_use.py $$language
	done
	python3 tests/scripts/adapters.py

test-targets: servers ## Tests the builds for musl and arm64, and that two builds are the same; WORDS=musl selects some
	@$(call install,rust cc libclang python musl arm64 qemu lintian)
	python3 tests/scripts/targets.py $(WORDS)

package-%: # Builds a package of clients/ in target/dist/clients
	@sh tools/packaging/client.sh $*

clean: ## Removes builds and downloads, but not ./data
	@cargo clean

# Runs before and after the build, which can take minutes.
define refuse_used_port
for address in 127.0.0.1 ::1; do
    if (: <"/dev/tcp/$$address/$(PORT)") 2>/dev/null; then
        echo "Port $(PORT) is in use by another program. Use another port: make run PORT=$$(($(PORT) + 1))" >&2
        exit 1
    fi
done
endef

# A server on another port uses its own files, so two servers do not write the same ones.
own_data = $(if $(filter-out 6379,$(PORT)), \
	--port $(PORT) --appenddirname aof-$(PORT) --dbfilename dump-$(PORT).rdb)

# Installs missing programs. Needs root and a network only if one is missing.
define install
missing=()
for need in $(1); do
    case $$need in
    rust)
        if ! command -v cargo >/dev/null; then
            echo "Cargo is missing: install Rust with rustup, and open a new terminal." >&2
            exit 1
        fi
        # Without certificates, cargo trusts no registry.
        compgen -G "/etc/ssl/certs/*" >/dev/null || missing+=(ca-certificates)
        ;;
    cc)
        echo "#include <stdlib.h>" | cc -E - &>/dev/null || missing+=(gcc libc6-dev)
        ;;
    c++)
        echo "#include <vector>" | c++ -x c++ -E - &>/dev/null || missing+=(g++)
        ;;
    libclang)
        # The search path of bindgen, which cannot use libclang-cpp.
        found=$$(shopt -s nullglob; echo /usr/{,local/}lib*/{,*/,*/*/}libclang{,-[0-9]*}.so)
        [ -n "$${LIBCLANG_PATH:-}$$found" ] || missing+=(libclang-dev)
        ;;
    redis)
        { command -v redis-server && command -v redis-cli; } >/dev/null || missing+=(redis-server)
        ;;
    python)
        { python3 -c "import redis" || /usr/bin/python3 -c "import redis"; } &>/dev/null ||
            missing+=(python3 python3-redis)
        ;;
    pyflakes)
        command -v pyflakes3 >/dev/null || missing+=(pyflakes3)
        ;;
    venv)
        # Debian has ensurepip in a separate package.
        python3 -c "import ensurepip" &>/dev/null || missing+=(python3-venv)
        ;;
    valgrind)
        command -v valgrind >/dev/null || missing+=(valgrind)
        ;;
    chromium)
        command -v chromium >/dev/null || missing+=(chromium)
        command -v pngquant >/dev/null || missing+=(pngquant)
        ;;
    tmux)
        command -v tmux >/dev/null || missing+=(tmux)
        ;;
    network)
        # Only root can use it.
        [ "$$(id -u)" != 0 ] || command -v ip >/dev/null || missing+=(iproute2)
        ;;
    tls)
        # The build of the server needs it.
        [ -e /usr/include/openssl/ssl.h ] || missing+=(libssl-dev)
        ;;
    musl)
        command -v musl-gcc >/dev/null || missing+=(musl-tools)
        ;;
    arm64)
        [ "$$(uname -m)" = aarch64 ] || command -v aarch64-linux-gnu-gcc >/dev/null ||
            missing+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
        ;;
    qemu)
        command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)
        ;;
    lintian)
        command -v lintian >/dev/null || missing+=(lintian)
        ;;
    openssl)
        command -v openssl >/dev/null || missing+=(openssl)
        ;;
    strace)
        command -v strace >/dev/null || missing+=(strace)
        ;;
    postgres)
        compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null || missing+=(postgresql)
        ;;
    java)
        { command -v java && command -v javac; } >/dev/null || missing+=(default-jdk-headless)
        command -v mvn >/dev/null || missing+=(maven)
        ;;
    node)
        command -v node >/dev/null || missing+=(nodejs)
        command -v npm >/dev/null || missing+=(npm)
        ;;
    go)
        command -v go >/dev/null || missing+=(golang-go)
        ;;
    esac
done
if [ $${#missing[@]} != 0 ]; then
    echo "Missing: $${missing[*]}"
    if ! command -v apt-get >/dev/null; then
        echo "This system is not Debian: install the equivalent packages, and try again." >&2
        exit 1
    elif [ "$$(id -u)" = 0 ]; then
        as_root=()
    elif command -v sudo >/dev/null; then
        as_root=(sudo)
    else
        echo "Neither root nor sudo is available: as root, run 'apt-get install $${missing[*]}', and try again." >&2
        exit 1
    fi
    "$${as_root[@]}" sh -euc '$(apt_install)' sh "$${missing[@]}"
fi
endef

# Debian starts a server on port 6379 when it installs redis-server, and at each boot. That server would block the port of
# `make run`, so it is disabled. Only the programs of postgresql are needed, so its server is disabled, too.
define apt_install
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
if [ ! -e $$policy ]; then
    trap "rm -f $$policy" EXIT
    trap "exit 1" HUP INT TERM
    printf "%s\n" "#!/bin/sh" "case \"\$$*\" in *redis-server* | *postgresql*) exit 101 ;; esac" >$$policy
    chmod 755 $$policy
fi
apt-get update || echo "apt-get update failed; continuing with the old package lists" >&2
apt-get install --yes --no-install-recommends -o DPkg::Lock::Timeout=300 "$$@"
case " $$* " in *" redis-server "*)
    update-rc.d redis-server disable
    # An existing policy may have allowed the start.
    service redis-server stop || true
esac
case " $$* " in *" postgresql "*)
    update-rc.d postgresql disable
    service postgresql stop || true
esac
endef
