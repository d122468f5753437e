#!/bin/sh
# slurm_one_host.sh - run a command under srun on a Slurm of one host, made for it, then removed.
#
#     tests/slurm_one_host.sh -n 3 [--mpi=pmi2] PROGRAM ARGS...       arguments are those of srun
#
# Needs root, and munged, slurmctld, slurmd and srun (Debian: slurm-wlm munge).  Everything lives in
# a folder of its own and on ports of loopback; no configuration of the machine is read or changed.
# Exit status: that of srun; 77 when the machine cannot do it (skip).
set -u

PATH=$PATH:/usr/sbin:/sbin
for tool in munged slurmctld slurmd srun scontrol; do
    command -v "$tool" >/dev/null || { echo "no $tool here" >&2; exit 77; }
done
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 77; }
[ $# -gt 0 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }

dir=$(mktemp -d /tmp/kolo_slurm.XXXXXX) || exit 77
pids=
# The last started first, one at a time: each needs the one before it; a stuck one is killed.
stop() {
    for pid in $pids; do
        kill "$pid" 2>/dev/null
        tries=0
        while kill -0 "$pid" 2>/dev/null && [ $tries -lt 25 ]; do
            tries=$((tries + 1))
            sleep 0.2
        done
        kill -KILL "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
    done
    rm -rf "$dir"
}
trap stop EXIT
trap 'exit 130' INT TERM

# Wait at most 20 s until a command succeeds.
until_true() {
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || return 1
        sleep 0.2
    done
}
give_up() {
    echo "$1" >&2
    tail -n 5 "$dir"/*.log >&2
    exit 77
}

host=$(hostname -s)
port=$((20000 + $$ % 5000))
chmod 755 "$dir"
mkdir "$dir/munge" "$dir/spool" "$dir/state"
chmod 711 "$dir/munge"
(umask 077; dd if=/dev/urandom of="$dir/munge/key" bs=1024 count=1 2>/dev/null)

cat >"$dir/slurm.conf" <<CONF
ClusterName=kolo
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=$port
SlurmdPort=$((port + 1))
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
PlugStackConfig=$dir/none
ReturnToService=2
MpiDefault=none
NodeName=$host NodeAddr=127.0.0.1 CPUs=64 State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF="$dir/slurm.conf"

munged --foreground --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" \
    --pid-file="$dir/munge/pid" --seed-file="$dir/munge/seed" --log-file="$dir/munge/log" \
    >"$dir/munged.log" 2>&1 &
pids="$pids $!"
until_true test -S "$dir/munge/socket" || give_up "munged did not start"
slurmctld -D -L "$dir/slurmctld.log" >/dev/null 2>&1 &
pids="$! $pids"
slurmd -D -L "$dir/slurmd.log" >/dev/null 2>&1 &
pids="$! $pids"
is_idle() { scontrol show node "$host" | grep -q 'State=IDLE'; }
until_true is_idle || give_up "the node did not become idle"

srun "$@"
