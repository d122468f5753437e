#!/usr/bin/env bash
# Run test programs one after the other, each under a deadline, and add up what they say.
#
#     tests/run.sh [--fuzz SECONDS] BUILD_DIR PROGRAM...
#
# The output of a program goes to BUILD_DIR/log/ and is shown when it fails.  Counts come from
# Criterion's synthesis, a line "N passed, N failed", or from the exit code alone.  The last line
# is the sum: "N passed, N failed".  Fails when a test failed, or when a program ran none.
set -u
export LC_ALL=C

fuzz=0
if [ "${1:-}" = --fuzz ]; then
    fuzz=$2
    shift 2
fi
build=$1
shift
seconds=${TEST_SECONDS:-120}
[ "$fuzz" -eq 0 ] || seconds=$((fuzz + 60))
mkdir -p "$build/log"

# Tests make thousands of communicators: nothing is measured for them, or kept in the user's folder.
export KOLO_TUNE=${KOLO_TUNE:-model}
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:strict_string_checks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1}
# ThreadSanitizer of gcc 12 does not start when the kernel spreads addresses widely.
fixed=
setarch -R true 2>/dev/null && fixed="setarch -R"

# Start one program; what a fuzzer needs beside its name is kept from one run to the next.
start() {
    local name
    name=$(basename "$1")
    if [ "$fuzz" -eq 0 ]; then
        # shellcheck disable=SC2086
        timeout -k 5 "$seconds" $fixed "$1" </dev/null
        return
    fi
    local -a inputs=("$build/corpus/$name")
    mkdir -p "${inputs[0]}"
    [ ! -d "tests/fuzz/$name" ] || inputs+=("tests/fuzz/$name")
    timeout -k 5 "$seconds" "$1" -max_total_time="$fuzz" -timeout=10 -rss_limit_mb=2048 \
        -print_final_stats=1 -artifact_prefix="$build/log/$name-" "${inputs[@]}" </dev/null
}

# Print "passed failed skipped" of a log; nothing when it has no closing line.
counts() {
    sed -e 's/\x1b\[[0-9;]*m//g' "$1" | awk '
        /Synthesis: Tested:/ {
            gsub(/[^0-9]+/, " "); n = split($0, f, " ")
            p = f[n - 2]; b = f[n - 1] + f[n]; s = 0; seen = 1
        }
        /^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$/ {
            p = $1; b = $3; s = $5 + 0; seen = 1
        }
        END { if (seen) print p + 0, b + 0, s }'
}

passed=0 failed=0 skipped=0
for program in "$@"; do
    name=$(basename "$program")
    log=$build/log/$name.log
    began=$SECONDS
    start "$program" >"$log" 2>&1
    status=$?
    read -r p b s <<<"$(counts "$log")"
    why=
    if [ -z "${p:-}" ]; then
        p=0 b=0 s=0
        case $status,$fuzz in
        0,*) p=1 ;;
        77,0) s=1 status=0 ;;
        *) b=1 ;;
        esac
    elif [ $((p + b + s)) -eq 0 ]; then
        b=1 why=", ran no test"
    fi
    if [ "$status" -ne 0 ]; then
        [ "$b" -gt 0 ] || b=1
        why=", exit status $status"
        case $status in 124 | 137) why=", stopped after $seconds s" ;; esac
    fi
    if [ "$b" -gt 0 ]; then
        printf 'FAILED   %s: %d passed, %d failed%s; the end of %s:\n' \
            "$name" "$p" "$b" "$why" "$log"
        tail -n 80 "$log" | awk '{ print "    | " $0 }'
    else
        printf 'ok       %-24s %4d passed %s(%d s)\n' "$name" "$p" \
            "$([ "$s" -eq 0 ] || echo "$s skipped ")" $((SECONDS - began))
    fi
    passed=$((passed + p)) failed=$((failed + b)) skipped=$((skipped + s))
done

[ "$skipped" -eq 0 ] || echo "skipped: $skipped"
[ $# -gt 0 ] || { echo "there is no test to run" && failed=1; }
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
