#!/usr/bin/env bash
# What the compiler does not check: layers and fences (layers.txt), headers that stand alone, unique
# names, exported symbols, line length, format.  Needs a build in $BUILD; each kind of check is
# one count of the last line, "N passed, N failed".  A tool that is missing skips its check, aloud.
set -u
shopt -s nullglob
export LC_ALL=C.UTF-8
BUILD=${BUILD:-build/release}
CC=${CC:-cc}
CXX=${CXX:-g++}
CLANG_FORMAT=${CLANG_FORMAT:-clang-format}
sources=({include,lib,transports,bench,examples,tests,tests/support,tests/fuzz}/*.[ch])
scripts=(.ci/run tests/*.sh bench/*.sh)
passed=0 failed=0 skipped=0
complaints=$(mktemp)
trap 'rm -f "$complaints"' EXIT

complain() { echo "$*" >>"$complaints"; }

# Run a check; it fails when it complains.
check() {
    : >"$complaints"
    "$1"
    if [ -s "$complaints" ]; then
        failed=$((failed + 1))
        echo "not ok $1"
        sort -u "$complaints" | head -n 60 | sed 's/^/    /'
    else
        passed=$((passed + 1))
        echo "ok $1"
    fi
}

# check if the program is there
check_with() {
    if command -v "$1" >/dev/null; then
        check "$2"
    else
        skipped=$((skipped + 1))
        echo "skipped $2: $1 is not there"
    fi
}

# matches NAME PATTERN...: does one of them fit?
matches() {
    local name=$1 pattern
    shift
    for pattern; do
        # shellcheck disable=SC2053
        [[ $name != $pattern ]] || return 0
    done
    return 1
}

# rules KIND: lines "left:right" of layers.txt
rules() {
    sed -n "s/^$1 \([^:]*\) *:\(.*\)/\1:\2/p" tests/layers.txt
}

# includes FILE: the headers that it includes
includes() {
    sed -n 's/^[ \t]*#[ \t]*include[ \t]*[<"]\([^>"]*\)[>"].*/\1/p' "$1"
}

# May this file include this header of ours?  Those of its own stem (plan_ring.c: plan*.h) always.
layer_allows() {
    local file=$1 header=$2 rule stem
    stem=$(basename "$file")
    stem=${stem%%[._]*}
    while IFS= read -r rule; do
        # shellcheck disable=SC2086
        matches "$file" ${rule%%:*} || continue
        if [[ $rule == *:\ !* ]]; then
            ! matches "$header" "${rule#*!}"
        else
            # shellcheck disable=SC2086
            matches "$header" "$stem.h" "${stem}_*.h" ${rule#*:}
        fi
        return
    done <"$complaints.layers"
    complain "$file: no line of tests/layers.txt says where this file belongs"
    return 0
}

layers() {
    local file header own
    own=" $(basename -a {include,lib,transports,bench,tests/support}/*.h | tr '\n' ' ')"
    set -f
    rules layer >"$complaints.layers"
    for file in "${sources[@]}"; do
        for header in kolo.h $(includes "$file"); do
            [[ $own == *" $(basename "$header") "* ]] || continue
            layer_allows "$file" "$(basename "$header")" ||
                [ "$file" = "include/$header" ] ||
                complain "$file may not include $header (tests/layers.txt)"
        done
    done
    set +f
    rm -f "$complaints.layers"
}

fences() {
    local rule file header
    set -f
    while IFS= read -r rule; do
        for file in "${sources[@]}"; do
            # shellcheck disable=SC2086
            matches "$file" ${rule#*:} && continue
            for header in $(includes "$file"); do
                # shellcheck disable=SC2086
                ! matches "$header" ${rule%%:*} ||
                    complain "$file may not include <$header> (tests/layers.txt)"
            done
        done
    done < <(rules header)
    set +f
}

# The objects know best what a file calls.
calls() {
    local rule file object symbol used
    set -f
    for file in "${sources[@]}"; do
        object=$BUILD/${file%.c}.o
        [[ $file == *.c && ($file == lib/* || $file == transports/*) && -e $object ]] || continue
        used=$(nm -u "$object" | sed -n 's/^ *[Uw] //p' | sed 's/^__\(.*\)_chk$/\1/')
        while IFS= read -r rule; do
            # shellcheck disable=SC2086
            matches "$file" ${rule#*:} && continue
            for symbol in ${rule%%:*}; do
                ! grep -qx -- "$symbol" <<<"$used" ||
                    complain "$file may not use $symbol (tests/layers.txt)"
            done
        done < <(rules call)
    done
    set +f
}

# stands COMPILER HEADER FLAG...: compile a file that has nothing but this header, twice
stands() {
    local compiler=$1 header=$2
    shift 2
    $compiler "$@" -fsyntax-only -Wall -Wextra -Wundef -Wno-unused-function -Werror -Iinclude \
        -Ilib -Itransports -include "$header" -include "$header" /dev/null 2>&1 |
        grep -E 'error|warning' | head -n 5 >>"$complaints"
}

headers_stand_alone() {
    local header parts
    parts=$(rules part | cut -d: -f2)
    for header in lib/*.h transports/*.h; do
        # shellcheck disable=SC2086
        matches "$header" $parts || stands "$CC" "$header" -x c -std=gnu11 -D_GNU_SOURCE
    done
}

public_header_is_plain_c11() { stands "$CC" include/kolo.h -x c -std=c11 -pedantic; }

public_header_is_cxx17() { stands "$CXX" include/kolo.h -x c++ -std=c++17 -pedantic; }

names_are_unique() {
    local name
    basename -a "${sources[@]}" | sort | uniq -d | while read -r name; do
        complain "two files are named $name"
    done
}

# The library exports what kolo.h declares, no more and no less; the archive likewise.
symbols() {
    local declared exported what
    declared=$(echo '#include <kolo.h>' | $CC -E -P -Iinclude - | tr -d '\n' | tr ';' '\n' |
        grep -o 'visibility("default").*' | grep -o '\bkolo_[a-z0-9_]*(' | tr -d '(' | sort -u)
    exported=$(nm -D --defined-only "$BUILD/libkolo.so" | awk '$2 != "A" {print $3}' |
        sed 's/@.*//' | sort -u)
    for what in $(comm -23 <(echo "$declared") <(echo "$exported")); do
        complain "kolo.h declares $what, but libkolo.so does not have it"
    done
    for what in $(comm -13 <(echo "$declared") <(echo "$exported")); do
        complain "libkolo.so exports $what, which kolo.h does not declare"
    done
    for what in $(nm -g --defined-only "$BUILD/libkolo.a" | awk 'NF == 3 {print $3}'); do
        [[ $what == kolo_* ]] || complain "libkolo.a exports $what"
    done
}

# found WHAT GREP-ARGUMENTS...: complain of each line that grep finds
found() {
    local what=$1
    shift
    grep -n "$@" | cut -c 1-90 | sed "s/^/$what: /" >>"$complaints"
}

text() {
    found "over 100 columns" -E '^.{101,}' "${sources[@]}" "${scripts[@]}"
    found "space at the end" -E '[[:space:]]$' "${sources[@]}" "${scripts[@]}" Makefile
    found "tab" -P '\t' "${sources[@]}" "${scripts[@]}"
}

# A platform is a file, not an #ifdef inside a function.
no_ifdef_in_functions() {
    local file
    for file in "${sources[@]}"; do
        case $file in tests/*) continue ;; esac
        # A function's body opens and closes with a brace in the first column.
        awk -v file="$file" '
            /^\{/ { inside = 1 }
            /^\}/ { inside = 0 }
            inside && /^[ \t]*#[ \t]*(if|ifdef|ifndef|elif)/ { print file ":" FNR ": " $0 }
        ' "$file" >>"$complaints"
    done
}

formatted() {
    "$CLANG_FORMAT" --dry-run "${sources[@]}" 2>&1 | sed -n 's/^\([^ ]*\.[ch]\):.*/\1/p' |
        sort | uniq -c | while read -r count file; do
        complain "$file: $count places; run: make format"
    done
}

shell_scripts() {
    shellcheck -S warning -f gcc "${scripts[@]}" >>"$complaints" 2>&1
}

check layers
check fences
check calls
check headers_stand_alone
check public_header_is_plain_c11
check_with "$CXX" public_header_is_cxx17
check names_are_unique
check symbols
check text
check no_ifdef_in_functions
check_with "$CLANG_FORMAT" formatted
check_with shellcheck shell_scripts
[ "$skipped" -eq 0 ] || echo "skipped: $skipped"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
