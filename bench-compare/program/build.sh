# Sourced: builds the program of this folder against a checkout of tenure. The crate that does is made under
# target/versions, as cargo wants one manifest per path; the versions of other crates are those of Cargo.lock.

# A commit's files, once. Prints where.
checkout() {
    local sha directory
    sha=$(git rev-parse --verify --short=12 "$1^{commit}")
    directory=$PWD/target/versions/$sha
    if [ ! -d "$directory" ]; then
        mkdir -p "$directory.part"
        git archive "$sha" | tar -x -C "$directory.part"
        mv "$directory.part" "$directory"
    fi
    echo "$directory"
}

# build <checkout> <name> <debug|release> [cargo's other words …]. Prints the path of the program.
build() {
    local crate=$PWD/target/versions/$2 profile=$3 words=("${@:4}")
    [ "$profile" = release ] && words+=(--release)
    mkdir -p "$crate"
    sed -e "s|@name@|$2|" -e "s|@tenure@|$1|" -e "s|@here@|$PWD/bench-compare/program|" \
        bench-compare/program/Cargo.toml.in >"$crate/Cargo.toml"
    cp "$1/Cargo.lock" "$crate/Cargo.lock"
    echo "==> $2: $1" >&2
    cargo build --quiet --manifest-path "$crate/Cargo.toml" --target-dir target/versions/target "${words[@]}" >&2
    echo "$PWD/target/versions/target/$profile/$2"
}
