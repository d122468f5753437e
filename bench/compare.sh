#!/bin/bash
# compare.sh - Kolo side by side with Open MPI, MPICH and Gloo on this machine (`make compare`).
#
# usage: bench/compare.sh [options]
#   -q          quicker: fewer sizes, 2 rounds, shorter bursts
#   -w          wide: sizes by x4 up to 256 MiB; plan for an hour
#   -n "2 4 8"  numbers of ranks                  -s "8 128 2K ..."  sizes (bytes, K, M)
#   -c "a b"    collectives: all_reduce reduce_scatter all_gather all_to_all broadcast reduce
#               barrier
#   -k "a b"    contenders: kolo kolo-win ompi ompi-best ompi-ucx mpich mpich-best gloo
#   -P          without Kolo
#   -D          ranks rewrite their inputs before each operation
#   -r N        rounds (default 3)                -t SECONDS  length of a burst (default 0.015)
#   -m SECONDS  limit of the whole run (default 420; -w 3600): points beyond it are only named
#
# Writes build/compare/DATE.csv (one line per burst; # lines are notes) and DATE.txt (the tables).
# Exit status: 0, also when Kolo loses; 1 when a value was wrong or a contender died; 2 when
# something is missing.  What to link: KOLO_BENCH_LIB (default build/release/libkolo.a) and
# KOLO_BENCH_LDLIBS (default what kolo.pc beside that says).
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
out=$root/build/compare
bin=$out/bin
KOLO_BENCH_LIB=${KOLO_BENCH_LIB:-$root/build/release/libkolo.a}
pc=$(dirname "$KOLO_BENCH_LIB")/kolo.pc
KOLO_BENCH_LDLIBS=${KOLO_BENCH_LDLIBS:-$(sed -n 's/^Libs.private: *//p' "$pc" 2>/dev/null)}

nps='2 4 8' rounds=3 burst=0.015 limit=420 fresh=''
sizes='8 128 2K 32K 512K 8M 32M'
colls='all_reduce reduce_scatter all_gather all_to_all broadcast reduce barrier'
wanted='kolo kolo-win ompi ompi-best ompi-ucx mpich mpich-best gloo'

while getopts qwn:s:c:k:PDr:t:m:h option; do
    case $option in
    q) sizes='8 2K 32K 512K 8M' rounds=2 burst=0.01 ;;
    w) sizes='8 32 128 512 2K 8K 32K 128K 512K 2M 8M 32M 128M 256M' limit=3600 ;;
    n) nps=$OPTARG ;;
    s) sizes=$OPTARG ;;
    c) colls=$OPTARG ;;
    k) wanted=$OPTARG ;;
    P) wanted='ompi ompi-best ompi-ucx mpich mpich-best gloo' ;;
    D) fresh=-F ;;
    r) rounds=$OPTARG ;;
    t) burst=$OPTARG ;;
    m) limit=$OPTARG ;;
    *) sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;;
    esac
done

die() { echo "compare.sh: $*" >&2; exit 2; }

want() { [[ " $wanted " == *" $1 "* ]]; }

# ---- what must be there, and building it --------------------------------------------------------

missing() { # prints the Debian packages that are not there
    command -v gcc >/dev/null || echo gcc
    command -v python3 >/dev/null || echo python3
    if [[ $wanted == *ompi* ]]; then
        command -v mpirun.openmpi >/dev/null || echo openmpi-bin
        command -v mpicc.openmpi >/dev/null || echo libopenmpi-dev
    fi
    if [[ $wanted == *mpich* ]]; then
        command -v mpiexec.hydra >/dev/null || echo mpich
        command -v mpicc.mpich >/dev/null || echo libmpich-dev
    fi
    if want gloo; then
        command -v g++ >/dev/null || echo g++
        [[ -e /usr/include/gloo/allreduce.h ]] || echo libgloo-dev
    fi
}

install_missing() {
    local packages
    packages=$(missing | xargs)
    [[ -n $packages ]] || return 0
    local line="apt-get install -y --no-install-recommends $packages"
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        echo "compare.sh: installing: $line" >&2
        { apt-get update && DEBIAN_FRONTEND=noninteractive $line; } >"$out/apt.log" 2>&1 ||
            die "that failed, see $out/apt.log"
        return 0
    fi
    die "packages are missing; run:  sudo $line   (or leave contenders out with -k)"
}

build() {
    local c='-std=gnu11 -O2 -march=native -Wall -Wextra' src=$root/bench
    mkdir -p "$bin" || return 1
    gcc $c "$src/compare_run.c" -o "$bin/run" || return 1
    if [[ $wanted == *ompi* ]]; then
        mpicc.openmpi $c "$src/compare_mpi.c" -o "$bin/ompi" || return 1
    fi
    if [[ $wanted == *mpich* ]]; then
        mpicc.mpich $c "$src/compare_mpi.c" -o "$bin/mpich" || return 1
    fi
    if want gloo; then # Gloo's own headers warn: show the warnings only when it fails
        g++ -std=c++17 -O2 -march=native "$src/compare_gloo.cc" -o "$bin/gloo" -lgloo -lpthread \
            2>"$out/gloo.log" || { cat "$out/gloo.log" >&2; return 1; }
    fi
    if want kolo || want kolo-win; then
        [[ -e $KOLO_BENCH_LIB ]] || die "$KOLO_BENCH_LIB is not there: run make first (or use -P)"
        gcc $c -I"$root/include" "$src/compare_kolo.c" -o "$bin/kolo" "$KOLO_BENCH_LIB" \
            ${KOLO_BENCH_LDLIBS:--pthread -ldl -lm} || return 1
    fi
}

# ---- contenders ---------------------------------------------------------------------------------

# Settings, each found by measurement.  malloc: never give memory back, or page faults of temporary
# buffers dominate large messages.  yield: a waiter must leave the CPU when ranks outnumber CPUs.
malloc='MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592'
malloc+=' MALLOC_TOP_PAD_=268435456'
ompi_yield='--oversubscribe --mca mpi_yield_when_idle 1'
ompi_copy='--mca btl_vader_single_copy_mechanism none --mca btl_vader_eager_limit 32768'
ompi_copy+=' --mca btl_vader_max_send_size 131072'
ompi_sm='--mca coll_sm_priority 100 --mca coll_sm_fragment_size 32768'
ompi_ucx='--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any'
ompi_ucx+=' -x UCX_TLS=posix,sysv,cma,self'

contenders=()
add() { # name, command: used when wanted
    want "${1#\~}" || return 0
    contenders+=("$1=exec $2")
}

list_contenders() { # ranks
    local np=$1 x='-x KOLO_BENCH_COMPARE' v yield='' sm='' rare='' gloo_dir=$tmp/gloo-$1
    local xm=$x
    for v in $malloc; do xm+=" -x $v"; done
    # MPICH never yields: milliseconds per operation then, so its plain form takes fewer points
    ((np > ncpus)) && yield=$ompi_yield rare='~'
    ((np == 2)) && sm=$ompi_sm
    mkdir -p "$gloo_dir"
    contenders=()
    add kolo "$bin/kolo"
    add kolo-win "$bin/kolo -w"
    add ompi "mpirun.openmpi -np $np $x $yield $bin/ompi"
    add ompi-best "mpirun.openmpi -np $np $xm $ompi_copy $sm $yield $bin/ompi"
    ((np > 2)) && add ompi-ucx "mpirun.openmpi -np $np $xm $ompi_ucx $yield $bin/ompi"
    add "${rare}mpich" "mpiexec.hydra -n $np $bin/mpich"
    add mpich-best "env $malloc mpiexec.hydra -n $np $bin/mpich"
    add '~gloo' "$bin/gloo $gloo_dir"
    return 0
}

# ---- the run ------------------------------------------------------------------------------------

to_bytes() {
    local n=${1%[KkMm]}
    case $1 in *[Kk]) n=$((n * 1024)) ;; *[Mm]) n=$((n * 1024 * 1024)) ;; esac
    echo "$n"
}

sizes_that_fit() { # ranks: every contender holds two buffers per rank
    local np=$1 kib s b list=''
    kib=$(sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo)
    for s in $sizes; do
        b=$(to_bytes "$s")
        if ((b / 1024 * 2 * np * ${#contenders[@]} > kib / 2)); then
            echo "# time: np=$np $s bytes not measured: $kib KiB of memory are not enough" >>"$csv"
        else
            list+=${list:+,}$b
        fi
    done
    echo "$list"
}

version_of() { # package
    dpkg-query -W -f='${Version}' "$1" 2>/dev/null || echo '?'
}

describe() {
    local header=$root/include/kolo.h kolo commit is_fresh=no
    kolo=$(sed -n 's/^#define KOLO_VERSION_[MP][A-Z]* //p' "$header" | xargs | tr ' ' .)
    commit=$(git -C "$root" describe --always --dirty 2>/dev/null)
    [[ -n $fresh ]] && is_fresh=yes
    echo "# date: $(date -u +%FT%TZ)"
    echo "# machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $ncpus CPUs," \
        "family $(sed -n 's/^cpu family[^:]*: //p' /proc/cpuinfo | head -1)" \
        "model $(sed -n 's/^model\t[^:]*: //p' /proc/cpuinfo | head -1)," \
        "$(uname -srm), load $(cut -d' ' -f1-3 /proc/loadavg)"
    echo "# versions: Kolo $kolo ${commit:-(no commit)}, Open MPI $(version_of openmpi-bin)," \
        "MPICH $(version_of mpich), Gloo $(version_of libgloo-dev), UCX $(version_of libucx0)"
    echo "# run: sizes $sizes; rounds $rounds; burst $burst s; fresh inputs: $is_fresh"
    env | grep '^KOLO_' | grep -v '^KOLO_BENCH_' | sed 's/^/# environment: /'
}

run_all() {
    local np left=$((limit - SECONDS + began)) todo c s status=0
    todo=$(echo "$nps" | wc -w)
    for np in $nps; do
        list_contenders "$np"
        ((${#contenders[@]})) || die "no contender of that name"
        for c in "${contenders[@]}"; do
            c=${c#\~}
            echo "# settings: np=$np ${c%%=*}: ${c#*=exec }" | sed "s#$bin/##g; s#$tmp/##g" >>"$csv"
        done
        s=$(sizes_that_fit "$np")
        [[ -n $s ]] || continue
        left=$(((limit - SECONDS + began) / todo))
        todo=$((todo - 1))
        echo "compare.sh: $np ranks, at most $left s" >&2
        "$bin/run" -n "$np" -s "$s" -c "$(echo $colls | tr ' ' ,)" -o "$csv" -r "$rounds" \
            -t "$burst" -m "$left" $fresh "${contenders[@]}" || status=1
    done
    return $status
}

mkdir -p "$out" || exit 2
install_missing
build || die 'the build failed'
csv=$out/$(date -u +%Y%m%d-%H%M%S).csv
tmp=$(mktemp -d -t kolo-compare.XXXXXX) || exit 2
trap 'rm -rf "$tmp" "$csv".ctl-*' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ncpus=$(nproc)
began=$SECONDS
describe >"$csv"
run_all
status=$?
echo "# took: $((SECONDS - began)) s" >>"$csv"
python3 "$root/bench/compare_table.py" "$csv" | tee "${csv%.csv}.txt"
[[ ${PIPESTATUS[0]} == 0 ]] || exit 2
echo "raw: $csv"
exit $status
