#!/usr/bin/env bash
# Instructions per operation in steady state, counted by callgrind: exact, and the same on a busy
# machine.  Compares with the recorded table, and fails when a row has grown by more than 3 %.
#
#     bench/instructions.sh BUILD_DIR           print the table beside the recorded one
#     bench/instructions.sh --record BUILD_DIR  write it to bench/baseline/instructions.csv
#
# Rows of two ranks count both, and the group that one thread drives them with.
set -u
export LC_ALL=C
record=0
if [ "${1:-}" = --record ]; then
    record=1
    shift
fi
build=$1
table=bench/baseline/instructions.csv
colls=${COLLS:-"all_reduce reduce_scatter all_gather all_to_all broadcast reduce gather scatter
    barrier send"}
times=200
limit_percent=3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

command -v valgrind >/dev/null || {
    echo "valgrind is not here, and it does the counting: sudo apt-get install -y valgrind" >&2
    exit 77
}

# count COLLECTIVE RANKS BYTES: instructions of one operation
count() {
    local all
    KOLO_WAIT=spin timeout 120 valgrind --tool=callgrind --callgrind-out-file=/dev/null \
        --collect-atstart=no --toggle-collect=measured \
        "$build/prog_instructions" "$1" "$2" "$3" "$times" >"$scratch/log" 2>&1 || {
        tail -n 20 "$scratch/log" >&2
        return 1
    }
    all=$(sed -n 's/.*Collected : \([0-9]*\).*/\1/p' "$scratch/log")
    [ -n "$all" ] || return 1
    echo $(((all + times / 2) / times))
}

# recorded COLLECTIVE RANKS BYTES: what the table says, or nothing
recorded() {
    [ ! -e "$table" ] || awk -F, -v key="$1,$2,$3" '$1 "," $2 "," $3 == key { print $4 }' "$table"
}

commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "collective,ranks,bytes,instructions,commit" >"$scratch/new"
printf '%-16s %5s %6s %12s %10s %8s\n' collective ranks bytes instructions recorded change
grown=0
for ranks in 1 2; do
    for coll in $colls; do
        [ "$coll $ranks" != "send 1" ] || continue
        bytes=8
        [ "$coll" != barrier ] || bytes=0
        now=$(count "$coll" "$ranks" "$bytes") || exit 1
        was=$(recorded "$coll" "$ranks" "$bytes")
        echo "$coll,$ranks,$bytes,$now,$commit" >>"$scratch/new"
        change=-
        note=
        if [ -n "$was" ]; then
            change=$(awk -v a="$now" -v b="$was" 'BEGIN { printf "%+.1f%%", 100 * (a - b) / b }')
            if [ $((now * 100)) -gt $((was * (100 + limit_percent))) ]; then
                grown=$((grown + 1))
                note="  grown"
            fi
        fi
        printf '%-16s %5d %6d %12d %10s %8s%s\n' "$coll" "$ranks" "$bytes" "$now" "${was:--}" \
            "$change" "$note"
    done
done
if [ "$record" -eq 1 ]; then
    mkdir -p "${table%/*}"
    cp "$scratch/new" "$table"
    echo "written to $table"
    exit 0
fi
[ -e "$table" ] || echo "$table is not there: bench/instructions.sh --record $build writes it"
if [ "$grown" -gt 0 ]; then
    echo "$grown rows have grown by more than $limit_percent %: shrink them, or record them"
    exit 1
fi
