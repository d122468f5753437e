#!/usr/bin/env bash
# Install into an empty directory, build a small program against what is there in each way that a
# user may (pkg-config, CMake; shared, static), run it, uninstall, and see that nothing is left.
# Prints "N passed, N failed".
set -u
MAKE=${MAKE:-make}
PKG_CONFIG=${PKG_CONFIG:-pkg-config}
CC=${CC:-cc}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
prefix=/opt/kolo
passed=0 failed=0

cat >"$work/main.c" <<'END'
#include <kolo.h>

int main(void)
{
    struct kolo_comm *comms[1];
    const int send = 7;
    int recv = 0;
    if (kolo_version() != KOLO_VERSION || kolo_comm_create_local(1, NULL, comms) != KOLO_OK)
        return 1;
    const enum kolo_status status =
        kolo_all_reduce(&send, &recv, 1, KOLO_I32, KOLO_SUM, comms[0], NULL);
    kolo_comm_destroy(comms[0]);
    return status != KOLO_OK || recv != 7;
}
END

cat >"$work/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.18)
project(consumer C)
find_package(Kolo 0.1 REQUIRED)
add_executable(shared main.c)
target_link_libraries(shared Kolo::kolo)
add_executable(static main.c)
target_link_libraries(static Kolo::static)
END

# Run a step with its output kept back until it fails.
expect() {
    local what=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok $what"
    else
        failed=$((failed + 1))
        echo "not ok $what: $*"
        sed 's/^/    /' "$work/log"
    fi
}

kolo_make() {
    MAKEFLAGS='' MFLAGS='' $MAKE --no-print-directory "$@" DESTDIR="$root" PREFIX="$prefix"
}

flags() {
    PKG_CONFIG_PATH='' PKG_CONFIG_LIBDIR=$root$prefix/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root \
        $PKG_CONFIG "$@" kolo
}

build_shared() {
    # shellcheck disable=SC2046
    $CC -o "$work/shared" "$work/main.c" $(flags --cflags --libs) &&
        LD_LIBRARY_PATH=$root$prefix/lib "$work/shared"
}

build_static() {
    # shellcheck disable=SC2046
    $CC -o "$work/static" "$work/main.c" $(flags --cflags) "$root$prefix/lib/libkolo.a" \
        $(flags --static --libs-only-other) && "$work/static"
}

# Static throughout, as a user without the shared library gets it from -lkolo.
build_private() {
    # shellcheck disable=SC2046
    rm -f "$root$prefix"/lib/libkolo.so* &&
        $CC -o "$work/private" "$work/main.c" $(flags --static --cflags --libs) && "$work/private"
}

build_cmake() {
    cmake -S "$work" -B "$work/cmake" -DCMAKE_C_COMPILER="$CC" \
        -DCMAKE_PREFIX_PATH="$root$prefix" && cmake --build "$work/cmake" &&
        "$work/cmake/shared" && "$work/cmake/static"
}

# The tree stands where it was copied to: a package may be unpacked anywhere.
moved_cmake() {
    cp -a "$root" "$work/moved" && cmake -S "$work" -B "$work/cmake2" \
        -DCMAKE_C_COMPILER="$CC" -DCMAKE_PREFIX_PATH="$work/moved$prefix" &&
        cmake --build "$work/cmake2" && "$work/cmake2/shared" && rm -rf "$work/moved"
}

wants_soname() {
    readelf -d "$work/shared" | grep -q 'NEEDED.*\[libkolo\.so\.[0-9]*\]'
}

refuses_other_series() {
    sed -i 's/Kolo 0.1/Kolo 9.0/' "$work/CMakeLists.txt"
    ! cmake -S "$work" -B "$work/cmake3" -DCMAKE_PREFIX_PATH="$root$prefix" >"$work/said" 2>&1 &&
        grep -q 'KoloConfig.cmake, version: 0' "$work/said"
}

nothing_left() {
    local left
    left=$(find "$root" ! -type d -o -path '*/cmake/Kolo')
    [ -z "$left" ] || { echo "left behind: $left" && false; }
}

finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
    exit
}

expect "install" kolo_make install
[ "$failed" -eq 0 ] || finish
expect "pkg-config says the header's version" \
    test "$(flags --modversion)" = "$(sed -n 's/^#define KOLO_VERSION_\(MAJOR\|MINOR\|PATCH\) //p' \
        include/kolo.h | paste -sd.)"
expect "consumer of the shared library" build_shared
expect "it asks for the SONAME" wants_soname
expect "consumer of the static library" build_static
if command -v cmake >/dev/null; then
    expect "consumers through CMake" build_cmake
    expect "consumer of a moved tree" moved_cmake
    expect "CMake refuses another series" refuses_other_series
else
    echo "skipped: cmake is not there"
fi
expect "consumer without a shared library" build_private
expect "uninstall" kolo_make uninstall
expect "nothing is left" nothing_left
finish
