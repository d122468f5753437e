#!/bin/bash
# compare.sh - Kolo side by side with other libraries on this machine (`make compare`).
#
# usage: bench/compare.sh [options]
#   -q          quicker: fewer sizes, 2 rounds, shorter bursts
#   -w          wide: sizes by x4 up to 256 MiB; plan for an hour
#   -n "2 4 8"  numbers of ranks                  -s "8 128 2K ..."  sizes (bytes, K, M)
#   -c "a b"    collectives: all_reduce reduce_scatter all_gather all_to_all broadcast reduce
#               barrier
#   -k "a b"    contenders: kolo kolo-win floor-direct floor-staged ompi ompi-best ompi-ucx mpich
#               mpich-best gloo ompi5-best ompi5-ucx mpich5 mpich5-mpir impi oneccl
#   -P          without Kolo and the floors
#   -D          ranks rewrite their inputs before each operation
#   -B          in the end, name the points that are slower than in bench/baseline/
#   -U          in the end, make this run the new baseline
#   -r N        rounds (default 3)                -t SECONDS  length of a burst (default 0.012)
#   -m SECONDS  limit of the whole run (default 430; -w 3600): points beyond it are only named
#
# Open MPI, MPICH and Gloo come from the distribution (apt-get when it may); the newest Open MPI
# and MPICH, Intel MPI and oneCCL are fetched as wheels into build/compare/peers, see
# compare_peers.py; what cannot be had is left out with a line.  bench/README.md explains the rest.
# Writes build/compare/DATE.csv (one line per burst; # lines are notes), .txt (the tables), .html.
# Exit status: 0, also when Kolo loses; 1 when a value was wrong or a contender died; 2 when
# something is missing.  What to link: KOLO_BENCH_LIB (default build/release/libkolo.a) and
# KOLO_BENCH_LDLIBS (default what kolo.pc beside that says).  KOLO_COMPARE_LOCK names a file that is
# locked while times are taken, for those who share the machine.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
out=$root/build/compare
bin=$out/bin
peers=$out/peers
KOLO_BENCH_LIB=${KOLO_BENCH_LIB:-$root/build/release/libkolo.a}
pc=$(dirname "$KOLO_BENCH_LIB")/kolo.pc
KOLO_BENCH_LDLIBS=${KOLO_BENCH_LDLIBS:-$(sed -n 's/^Libs.private: *//p' "$pc" 2>/dev/null)}

nps='2 4 8' rounds=3 burst=0.012 limit=430 fresh='' guard='' renew=''
sizes='8 128 2K 8K 32K 128K 512K 2M 8M 32M'
colls='all_reduce reduce_scatter all_gather all_to_all broadcast reduce barrier'
others='ompi ompi-best ompi-ucx mpich mpich-best gloo ompi5-best ompi5-ucx mpich5 mpich5-mpir'
others+=' impi oneccl'
wanted="kolo kolo-win floor-direct floor-staged $others"

while getopts qwn:s:c:k:PDBUr:t:m:h option; do
    case $option in
    q) sizes='8 2K 32K 512K 8M' rounds=2 burst=0.01 ;;
    w) sizes='8 32 128 512 2K 8K 32K 128K 512K 2M 8M 32M 128M 256M' limit=3600 ;;
    n) nps=$OPTARG ;;
    s) sizes=$OPTARG ;;
    c) colls=$OPTARG ;;
    k) wanted=$OPTARG ;;
    P) wanted=$others ;;
    D) fresh=-F ;;
    B) guard=1 ;;
    U) renew=1 ;;
    r) rounds=$OPTARG ;;
    t) burst=$OPTARG ;;
    m) limit=$OPTARG ;;
    *) sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;;
    esac
done

die() { echo "compare.sh: $*" >&2; exit 2; }

want() { # is one of these wanted?
    local name
    for name; do
        [[ " $wanted " == *" $name "* ]] && return 0
    done
    return 1
}

drop() { # name, why
    local name kept=''
    for name in $wanted; do
        [[ $name == "$1" || $name == "$1"-* ]] || kept+=" $name"
    done
    [[ $kept == " $wanted" ]] || echo "compare.sh: $1 is left out: $2" >&2
    wanted=${kept# }
}

# ---- what must be there, and building it --------------------------------------------------------

missing() { # prints the Debian packages that are not there
    command -v gcc >/dev/null || echo gcc
    command -v python3 >/dev/null || echo python3
    if want ompi ompi-best ompi-ucx; then
        command -v mpirun.openmpi >/dev/null || echo openmpi-bin
        command -v mpicc.openmpi >/dev/null || echo libopenmpi-dev
    fi
    if want mpich mpich-best; then
        command -v mpiexec.hydra >/dev/null || echo mpich
        command -v mpicc.mpich >/dev/null || echo libmpich-dev
    fi
    want gloo oneccl && ! command -v g++ >/dev/null && echo g++
    want gloo && [[ ! -e /usr/include/gloo/allreduce.h ]] && echo libgloo-dev
}

install_missing() {
    local packages line
    packages=$(missing | xargs)
    [[ -n $packages ]] || return 0
    line="apt-get install -y --no-install-recommends $packages"
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        echo "compare.sh: installing: $line" >&2
        { apt-get update && DEBIAN_FRONTEND=noninteractive $line; } >"$out/apt.log" 2>&1 ||
            echo "compare.sh: that failed, see $out/apt.log" >&2
    else
        echo "compare.sh: packages are missing: sudo $line" >&2
    fi
    command -v gcc >/dev/null && command -v python3 >/dev/null || die 'gcc and python3 are needed'
    command -v mpicc.openmpi >/dev/null || drop ompi 'no Open MPI of the distribution'
    command -v mpicc.mpich >/dev/null || drop mpich 'no MPICH of the distribution'
    [[ -e /usr/include/gloo/allreduce.h ]] || drop gloo 'no libgloo-dev'
}

fetch_wheels() {
    local peer list='' there
    for peer in ompi5 mpich5 impi oneccl; do
        want $peer $peer-best $peer-ucx $peer-mpir && list+=" $peer"
    done
    [[ -n $list ]] || return 0
    # shellcheck disable=SC2086
    there=$(python3 -B "$root/bench/compare_peers.py" "$peers" $list)
    for peer in $list; do
        [[ " $there " == *" $peer "* ]] || drop "$peer" '' 2>/dev/null
    done
}

link_mpi() { # name, folder of the headers, library
    gcc $cflags "$root/bench/compare_mpi.c" -I"$2" "$3" -Wl,-rpath,"$(dirname "$3")" -o "$bin/$1"
}

# oneCCL's CPU wheel wants a library of the GPU wheel, from which it takes nothing, and Intel's
# memcpy: a stub gives it both.
link_oneccl() {
    local intel=$peers/intel-cmplr-lib-rt/lib ccl=$peers/oneccl-cpu/lib
    gcc -shared -o "$ccl/libccl.so.2" -Wl,-soname,libccl.so.2,--no-as-needed,-rpath,"$intel" \
        "$intel/libintlc.so.5" -x c /dev/null || return 1
    g++ -std=c++17 -O2 -march=native "$root/bench/compare_oneccl.cc" -o "$bin/oneccl" \
        -I"$peers/oneccl-cpu-devel/include" "$ccl/libccl.so.1" -Wl,-rpath,"$ccl:$intel"
}

# attempt NAME COMMAND: a contender that cannot be built is left out
attempt() {
    local name=$1
    shift
    want "$name" "$name-best" "$name-ucx" "$name-mpir" || return 0
    "$@" >"$out/$name.log" 2>&1 || drop "$name" "it cannot be built, see $out/$name.log"
}

build() {
    local src=$root/bench
    cflags='-std=gnu11 -O2 -march=native -Wall -Wextra'
    mkdir -p "$bin" || return 1
    gcc $cflags "$src"/compare_{run,sweep,burst,contender}.c -o "$bin/run" || return 1
    if want floor-direct floor-staged; then
        gcc $cflags "$src"/compare_floor{,_kernels,_staged}.c -o "$bin/floor" || return 1
    fi
    attempt ompi mpicc.openmpi $cflags "$src/compare_mpi.c" -o "$bin/ompi"
    attempt mpich mpicc.mpich $cflags "$src/compare_mpi.c" -o "$bin/mpich"
    attempt ompi5 link_mpi ompi5 "$peers/openmpi/include" "$peers/openmpi/lib/libmpi.so.40"
    attempt mpich5 link_mpi mpich5 "$peers/mpich/include" "$peers/mpich/lib/libmpi.so.12"
    attempt impi link_mpi impi "$peers/impi-devel/include" "$peers/impi-rt/lib/libmpi.so.12"
    attempt oneccl link_oneccl
    attempt gloo g++ -std=c++17 -O2 -march=native "$src/compare_gloo.cc" -o "$bin/gloo" -lgloo \
        -lpthread
    if want kolo kolo-win; then
        [[ -e $KOLO_BENCH_LIB ]] || die "$KOLO_BENCH_LIB is not there: run make first (or use -P)"
        gcc $cflags -I"$root/include" "$src/compare_kolo.c" -o "$bin/kolo" "$KOLO_BENCH_LIB" \
            ${KOLO_BENCH_LDLIBS:--pthread -ldl -lm} || return 1
    fi
}

# ---- contenders ---------------------------------------------------------------------------------

# Settings, each found by measurement; bench/README.md says what they bring.
malloc='MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592'
malloc+=' MALLOC_TOP_PAD_=268435456'
yield='--mca mpi_yield_when_idle 1'
ompi_copy='--mca btl_vader_single_copy_mechanism none --mca btl_vader_eager_limit 32768'
ompi_copy+=' --mca btl_vader_max_send_size 131072'
ompi_sm='--mca coll_sm_priority 100 --mca coll_sm_fragment_size 32768'
ompi5_copy='--mca smsc ^cma --mca btl_sm_eager_limit 32768 --mca btl_sm_max_send_size 131072'
ucx='--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=posix,sysv,cma,self'
mpich_p2p=''
for c in ALLREDUCE BCAST REDUCE BARRIER; do
    mpich_p2p+=" MPIR_CVAR_${c}_POSIX_INTRA_ALGORITHM=mpir"
done
ccl='CCL_LOG_LEVEL=error CCL_ATL_TRANSPORT=mpi CCL_ATL_SYNC_COLL=1 CCL_WORKER_OFFLOAD=0'
for c in ALLREDUCE REDUCE_SCATTER ALLGATHER ALLTOALL BCAST REDUCE BARRIER; do
    ccl+=" CCL_$c=direct"
done

contenders=()
add() { # name, command: used when wanted
    want "${1#\~}" || return 0
    contenders+=("$1=exec $2")
}

list_contenders() { # ranks
    local np=$1 x='-x KOLO_BENCH_COMPARE' v y4='' y5='' sm='' copy5='' rare=''
    local xm=$x ompi5=$peers/openmpi/bin/mpirun mpich5=$peers/mpich/bin/mpiexec
    local impi=$peers/impi-rt/bin/mpiexec.hydra
    for v in $malloc; do xm+=" -x $v"; done
    # MPICH never yields: milliseconds per operation then, so it takes fewer points
    ((np > ncpus)) && y4="--oversubscribe $yield" y5="--map-by :OVERSUBSCRIBE $yield" rare='~'
    ((np == 2)) && sm=$ompi_sm copy5=$ompi5_copy
    mkdir -p "$tmp/gloo-$np"
    contenders=()
    add kolo "$bin/kolo"
    add kolo-win "$bin/kolo -w"
    add floor-direct "$bin/floor -d"
    add floor-staged "$bin/floor -s"
    add impi "env $malloc I_MPI_FABRICS=shm $impi -n $np $bin/impi"
    add ompi5-ucx "$ompi5 -np $np $xm $ucx $y5 $bin/ompi5"
    add ompi5-best "$ompi5 -np $np $xm $copy5 $y5 $bin/ompi5"
    add ompi-best "mpirun.openmpi -np $np $xm $ompi_copy $sm $y4 $bin/ompi"
    ((np > 2)) && add ompi-ucx "mpirun.openmpi -np $np $xm $ucx $y4 $bin/ompi"
    ((np > ncpus)) || add mpich5 "env $malloc $mpich5 -n $np $bin/mpich5"
    add "${rare}mpich5-mpir" "env $malloc$mpich_p2p $mpich5 -n $np $bin/mpich5"
    add "${rare}mpich-best" "env $malloc mpiexec.hydra -n $np $bin/mpich"
    ((np > ncpus)) || add '~mpich' "mpiexec.hydra -n $np $bin/mpich"
    add '~ompi' "mpirun.openmpi -np $np $x $y4 $bin/ompi"
    add '~oneccl' "env $malloc $ccl LD_LIBRARY_PATH=$peers/impi-rt/lib $impi -n $np $bin/oneccl"
    add '~gloo' "$bin/gloo $tmp/gloo-$np"
    return 0
}

# ---- the run ------------------------------------------------------------------------------------

to_bytes() {
    local n=${1%[KkMm]}
    case $1 in *[Kk]) n=$((n * 1024)) ;; *[Mm]) n=$((n * 1024 * 1024)) ;; esac
    echo "$n"
}

kib=$(sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo)

sizes_that_fit() { # ranks: one contender holds two buffers per rank, and as much for itself
    local np=$1 s b list=''
    for s in $sizes; do
        b=$(to_bytes "$s")
        if ((b / 1024 * 5 * np > kib)); then
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
    local header=$root/include/kolo.h kolo commit is_fresh=no f
    kolo=$(sed -n 's/^#define KOLO_VERSION_[MP][A-Z]* //p' "$header" | xargs | tr ' ' .)
    commit=$(git -C "$root" describe --always --dirty 2>/dev/null)
    [[ -n $fresh ]] && is_fresh=yes
    echo "# date: $(date -u +%FT%TZ)"
    echo "# machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $ncpus CPUs," \
        "family $(sed -n 's/^cpu family[^:]*: //p' /proc/cpuinfo | head -1)" \
        "model $(sed -n 's/^model\t[^:]*: //p' /proc/cpuinfo | head -1)," \
        "$(uname -srm), load $(cut -d' ' -f1-3 /proc/loadavg)"
    echo "# versions: Kolo $kolo ${commit:-(no commit)}, Open MPI $(version_of openmpi-bin)," \
        "MPICH $(version_of mpich), Gloo $(version_of libgloo-dev), UCX $(version_of libucx0);" \
        "wheels: $(for f in "$peers"/*/version; do
            [[ -e $f ]] && echo "$(basename "$(dirname "$f")") $(cat "$f")"
        done | paste -sd, | sed 's/,/, /g')"
    echo "# run: sizes $sizes; rounds $rounds; burst $burst s; fresh inputs: $is_fresh"
    env | grep '^KOLO_' | grep -v '^KOLO_BENCH_\|^KOLO_COMPARE_' | sed 's/^/# environment: /'
}

run_all() {
    local np left todo c s solo status=0
    todo=$(echo "$nps" | wc -w)
    for np in $nps; do
        list_contenders "$np"
        ((${#contenders[@]})) || die "no contender of that name"
        for c in "${contenders[@]}"; do
            c=${c#\~}
            echo "# settings: np=$np ${c%%=*}: ${c#*=exec }" |
                sed "s#$bin/##g; s#$tmp/##g; s#$peers/##g" >>"$csv"
        done
        s=$(sizes_that_fit "$np")
        [[ -n $s ]] || continue
        solo=$((kib / 4 / np / ${#contenders[@]} * 1024)) # larger: one contender at a time
        left=$(((limit - SECONDS + began) / todo))
        [[ -n ${KOLO_COMPARE_LOCK:-} ]] && left=$limit # the clock here counts waiting, too
        todo=$((todo - 1))
        echo "compare.sh: $np ranks, at most $left s" >&2
        "$bin/run" -n "$np" -s "$s" -c "$(echo $colls | tr ' ' ,)" -o "$csv" -r "$rounds" \
            -l "$solo" -t "$burst" -m "$left" $fresh "${contenders[@]}" >&2 || status=1
    done
    return $status
}

mkdir -p "$out" || exit 2
install_missing
fetch_wheels
build || die 'the build failed'
csv=$out/$(date -u +%Y%m%d-%H%M%S).csv
tmp=$(mktemp -d -t kolo-compare.XXXXXX) || exit 2
trap 'rm -rf "$tmp" "$csv".ctl-*' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PYTHONDONTWRITEBYTECODE=1
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
ncpus=$(nproc)
began=$SECONDS
describe >"$csv"
run_all
status=$?
echo "# took: $((SECONDS - began)) s" >>"$csv"
python3 "$root/bench/compare_html.py" "$csv" >"${csv%.csv}.html" || status=2
set --
if [[ -n $guard ]]; then
    [[ -e $root/bench/baseline/compare.csv ]] || die 'there is no bench/baseline/compare.csv'
    set -- -B "$root/bench/baseline/compare.csv"
fi
python3 "$root/bench/compare_table.py" "$@" "$csv" | tee "${csv%.csv}.txt"
[[ ${PIPESTATUS[0]} == 0 ]] || exit 2
if [[ -n $renew ]]; then
    mkdir -p "$root/bench/baseline"
    python3 "$root/bench/compare_table.py" -p "$csv" >"$root/bench/baseline/compare.csv"
    cp "${csv%.csv}.txt" "$root/bench/baseline/compare.txt"
fi
exit $status
