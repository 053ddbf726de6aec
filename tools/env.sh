# shellcheck shell=sh
# Sourced by the scripts, before they change directory, and in a terminal: . tools/env.sh

command -v cargo >/dev/null || PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

# In a subshell: a terminal that sources this file keeps its variables and options, and `exit` does
# not close it.
percolite_prerequisites() (
    set +e # a look-up may fail
    [ -z "${ZSH_VERSION:-}" ] || emulate sh
    packages='g++ libclang-dev'

    fail() {
        printf 'percolite: %s\n' "$1"
        shift
        [ $# = 0 ] || printf '%s\n' "$@"
        exit 1
    } >&2

    check_rust() {
        command -v cargo >/dev/null ||
            fail 'cargo not found; install Rust with rustup: https://rustup.rs'
        have=$(cargo --version) ||
            fail 'cargo does not run; try: rustup default stable'
        # In a terminal $0 is the shell and this file is not found; cargo then checks the version.
        need=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname -- "$0")/../Cargo.toml" 2>/dev/null)
        [ -z "$need" ] || [ "$(echo "$have" | cut -d. -f2)" -ge "$(echo "$need" | cut -d. -f2)" ] ||
            fail "Rust $need or newer is needed, this is $have; try: rustup update stable"
    }

    # By compiling: a compiler may lack its headers, or RocksDB's C++20.
    has_compiler() {
        command -v cc >/dev/null &&
            echo '#include <compare>' | ${CXX:-c++} -x c++ -std=c++20 -fsyntax-only - 2>/dev/null
    }

    # With the compiler's headers: on Debian they are another package, and bindgen needs them.
    has_libclang() {
        [ ! -e "${LIBCLANG_PATH:-}" ] || return 0
        dirs=$({
            llvm-config --libdir
            printf '%s\n' /usr/lib/llvm*/lib
            # Often outside a user's PATH.
            PATH=$PATH:/usr/sbin:/sbin ldconfig -p | sed -n 's|.*=> \(.*\)/libclang[.-][^/]*$|\1|p'
        } 2>/dev/null)
        for dir in $dirs; do
            for library in "$dir"/libclang.so* "$dir"/libclang-[0-9]*.so* "$dir"/libclang.dylib; do
                for header in "$dir"/clang/*/include/stddef.h /usr/lib/clang/*/include/stddef.h; do
                    [ ! -e "$library" ] || [ ! -e "$header" ] || return 0
                done
            done
        done
        return 1
    }

    has_all() {
        has_compiler && has_libclang
    }

    check_rust
    ! has_all || exit 0

    command -v apt-get >/dev/null ||
        fail 'RocksDB needs a C++20 compiler and libclang; install them, for example with' \
            '    dnf install gcc-c++ clang-devel' \
            '    brew install llvm' \
            'or, if libclang is in an unusual place, set LIBCLANG_PATH to its directory'

    if [ "$(id -u)" = 0 ]; then
        sudo=
    elif sudo -n true 2>/dev/null; then
        sudo=sudo
    else
        fail 'RocksDB needs a C++20 compiler and libclang; run this, then try again:' \
            "    sudo apt-get update && sudo apt-get install -y $packages"
    fi

    echo "percolite: installing $packages"
    # shellcheck disable=SC2086 # the words are meant to split
    { $sudo apt-get -qq update &&
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y $packages >/dev/null; } ||
        fail "apt-get could not install $packages"
    has_all ||
        fail "$packages are installed, but no C++20 compiler with libclang was found"
)

percolite_prerequisites || return 1
unset -f percolite_prerequisites

# Outside the checkout: fresh clones share one compiled RocksDB. Builds with an installed one have a
# directory of their own: cargo would replace the compiled one, and compile it again afterwards.
: "${CARGO_TARGET_DIR:=${XDG_CACHE_HOME:-$HOME/.cache}/percolite/target${ROCKSDB_LIB_DIR:+-installed-rocksdb}}"
case $CARGO_TARGET_DIR in
/*) ;;
*) CARGO_TARGET_DIR=$PWD/$CARGO_TARGET_DIR ;;
esac
export PATH CARGO_TARGET_DIR
