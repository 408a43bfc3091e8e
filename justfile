# `just` alone lists the recipes. CI runs only `just ci`.

_default:
    @just --list --unsorted

# Test the core in memory: takes seconds, needs no server and few dependencies
quick:
    cargo test --no-default-features --features testing --lib --tests

# Run all tests; installs redis-server if it is missing
test *args:
    ./test {{args}}

# Run the live tests, which start their own redis-servers
live *args:
    cargo test --features full,testing --test live {{args}}

# Check the format, clippy and licences
lint:
    cargo fmt --all --check
    cargo clippy --all-targets --features full,testing --test live -- -D warnings
    cargo clippy -p tenure-sim --all-targets -- -D warnings
    cargo clippy -p tenure-reconcile-sqlite --all-targets -- -D warnings
    cargo clippy -p tenure-fenced-ledger --all-targets -- -D warnings
    if cargo deny --version >/dev/null 2>&1; then cargo deny check; else echo "no cargo-deny: licences not checked"; fi

# Build the documentation; a broken link is an error
docs *args:
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --features full,testing {{args}}

# Run every example, in memory unless TENURE_URL is set
examples:
    for main in examples/*/main.rs; do cargo run --features full,testing --example "$(basename "$(dirname "$main")")" || exit 1; done
    cargo run -p tenure-reconcile-sqlite
    cargo run -p tenure-fenced-ledger
    cargo run -p tenure-fenced-ledger -- --without-fence

# Run the benches
bench *args:
    cargo bench --features full,testing {{args}}

# Run all checks that a change must pass
ci:
    .ci/run

# Run the simulator for the given seconds
sim seconds="60":
    cargo run --release -p tenure-sim -- --seconds {{seconds}}

# Run real processes, servers and faults for the given seconds
torture seconds="60":
    TENURE_TORTURE_SECONDS={{seconds}} cargo test --features full,testing --test live torture -- --nocapture

# Run the simulator, then torture, each for the given seconds
soak seconds="3600": (sim seconds) (torture seconds)
