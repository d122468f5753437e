#!/usr/bin/env bash
# Look for what a job needs by using it, and install what is missing through apt-get when that is
# allowed (root, or sudo without a password); else print the exact line.
#
#     tests/deps.sh demo      a C compiler and its headers: all that the library needs
#     tests/deps.sh check     and Criterion, CMake and pkg-config for the tests
#     tests/deps.sh lint      and clang, clang-format and a C++ compiler for the merge gate
#
# Required things that stay missing are an error; optional ones only cost the tests that use them.
set -u
job=${1:-demo}
CC=${CC:-cc}
required=()
optional=()

has() { command -v "$1" >/dev/null 2>&1; }

# Can the compiler link a program that includes this header?
compiles() {
    printf '#include <%s>\nint main(void) { return 0; }\n' "$1" |
        $CC -x c -pthread -o /dev/null - >/dev/null 2>&1
}

look() {
    required=()
    optional=()
    compiles pthread.h || required+=(gcc libc6-dev)
    has objcopy || required+=(binutils)
    [ "$job" != demo ] || return
    compiles criterion/criterion.h || required+=(libcriterion-dev)
    has pkg-config || required+=(pkg-config)
    has cmake || optional+=(cmake)
    has mpirun.openmpi || optional+=(openmpi-bin)
    has mpiexec.hydra || optional+=(mpich)
    has ip || optional+=(iproute2)
    [ ! -e lib/topo_hwloc.c ] || compiles hwloc.h || optional+=(libhwloc-dev)
    [ "$job" = lint ] || return
    has g++ || optional+=(g++)
    has clang || optional+=(clang)
    clang_has_runtime || optional+=(libclang-rt-dev)
    has clang-format || optional+=(clang-format)
}

# The fuzzer's and the sanitizers' libraries are a package of their own.
clang_has_runtime() {
    echo 'int main(void) { return 0; }' |
        clang -x c -fsanitize=address -o /dev/null - >/dev/null 2>&1
}

root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

# What apt-get says matters only when it fails.
apt() {
    local said
    said=$(root env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" 2>&1 </dev/null) ||
        echo "$said" | tail -n 20 >&2
}

# An optional package that cannot be had does not hold up the required ones.
install() {
    [ $# -gt 0 ] || return
    echo "installing $*"
    apt install -y --no-install-recommends "$@"
}

look
[ $((${#required[@]} + ${#optional[@]})) -gt 0 ] || exit 0
if has apt-get && root true 2>/dev/null; then
    apt update
    install "${required[@]}"
    install "${optional[@]}"
    look
fi
if [ ${#optional[@]} -gt 0 ]; then
    echo "optional, missing: sudo apt-get install -y ${optional[*]}" >&2
fi
if [ ${#required[@]} -gt 0 ]; then
    echo "missing; install and run again: sudo apt-get install -y ${required[*]}" >&2
    exit 1
fi
