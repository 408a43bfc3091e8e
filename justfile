# `just` alone lists. CI runs `just ci` and nothing else.

_default:
    @just --list --unsorted

# The core on memory: seconds, no server, few dependencies
quick:
    cargo test --no-default-features --features testing --lib --tests

# All tests; installs redis-server where it is missing
test *args:
    ./test {{args}}

# Against redis-servers that it starts itself
live *args:
    cargo test --all-features --test live {{args}}

# Format, clippy, licences
lint:
    cargo fmt --all --check
    cargo clippy --all-targets --all-features --test live -- -D warnings
    cargo clippy -p tenure-sim --all-targets -- -D warnings
    cargo clippy -p tenure-reconcile-sqlite --all-targets -- -D warnings
    cargo clippy -p tenure-fenced-ledger --all-targets -- -D warnings
    if cargo deny --version >/dev/null 2>&1; then cargo deny check; else echo "no cargo-deny: licences not checked"; fi

# The documentation, with every broken link an error
docs *args:
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --all-features {{args}}

# Every example; on memory unless REDIS_URL is set
examples:
    for example in examples/*.rs; do cargo run --all-features --example "$(basename "$example" .rs)" || exit 1; done
    cargo run -p tenure-reconcile-sqlite
    cargo run -p tenure-fenced-ledger
    cargo run -p tenure-fenced-ledger -- --without-fence

# Numbers per floor
bench *args:
    cargo bench --all-features {{args}}

# What a change must pass
ci:
    .ci/run

# The simulator for so many seconds
sim seconds="60":
    cargo run --release -p tenure-sim -- --seconds {{seconds}}

# Real processes, servers and faults for so many seconds
torture seconds="60":
    TENURE_TORTURE_SECONDS={{seconds}} cargo test --all-features --test live torture -- --nocapture

# Simulator, then torture
soak seconds="3600": (sim seconds) (torture seconds)
