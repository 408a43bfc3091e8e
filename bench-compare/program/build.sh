# To be sourced: builds the program of this folder against a checkout of tenure. The crate for it is created under
# target/versions, because cargo needs one manifest per path. Other crates have the versions of Cargo.lock.

# checkout <commit>. Extracts the files of a commit, if they are not there yet. Prints the path of the folder.
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

# build <checkout> <name> <debug|release> [cargo argument …]. Prints the path of the program.
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
