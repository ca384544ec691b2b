#!/usr/bin/env bash
# Runs a command under a Slurm of this machine alone: a controller, one node with four processors, a munge of their own.
#   one_node.sh COMMAND [ARGUMENT...]        such as `one_node.sh srun -n 2 hostname`, `one_node.sh bash`
# Root only; Debian's slurmctld, slurmd, slurm-client and munge. Everything ends with the command. 77 where they are missing.
set -euo pipefail
((EUID == 0)) || { echo "SKIPPED: $0 needs root" >&2; exit 77; }
for program in slurmctld slurmd srun munged; do
  command -v $program >/dev/null || { echo "SKIPPED: $program is missing (apt-get install slurmctld slurmd slurm-client munge)" >&2; exit 77; }
done
node=$(hostname -s)
home=$(mktemp -d)
chmod 755 "$home"
pids=()
# shellcheck disable=SC2317,SC2329  # the trap calls it
end() {
  [[ ! -e $home/slurm.conf ]] || scancel -s KILL -f -u root 2>/dev/null || true
  ((${#pids[@]} == 0)) || kill "${pids[@]}" 2>/dev/null || true
  wait
  rm -rf "$home"
}
trap end EXIT

head -c 128 /dev/urandom >"$home/munge.key"
chmod 600 "$home/munge.key"
munged --foreground --force --key-file "$home/munge.key" --socket "$home/munge.socket" --pid-file "$home/munge.pid" \
  --log-file "$home/munge.log" --seed-file "$home/munge.seed" 2>"$home/munge.err" &
pids+=($!)
port=$((20000 + RANDOM % 10000))
cat >"$home/slurm.conf" <<END
ClusterName=one
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
AuthType=auth/munge
AuthInfo=socket=$home/munge.socket
CryptoType=crypto/munge
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$home/state
SlurmdSpoolDir=$home/spool
SlurmctldPidFile=$home/slurmctld.pid
SlurmdPidFile=$home/slurmd.pid
SlurmctldLogFile=$home/slurmctld.log
SlurmdLogFile=$home/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,batch_sched_delay=0
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=${KILL_WAIT:-30}
MinJobAge=300
JobRequeue=1
NodeName=$node NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=$node Default=YES MaxTime=INFINITE State=UP PreemptMode=off
END
mkdir "$home/state" "$home/spool"
for variable in $(compgen -v SLURM_ || true) $(compgen -v SBATCH_ || true); do unset "$variable"; done  # of a job that this runs in
export SLURM_CONF=$home/slurm.conf SHERD_ONE_NODE=1
for ((i = 0; i < 100; ++i)); do [[ ! -S $home/munge.socket ]] || break; sleep 0.1; done
[[ -S $home/munge.socket ]] || { cat "$home/munge.err" "$home/munge.log" >&2; exit 1; }
slurmctld -D -i >/dev/null 2>&1 &
pids+=($!)
slurmd -D -N "$node" >/dev/null 2>&1 &
pids+=($!)
for ((i = 0; i < 600; ++i)); do
  [[ $(sinfo -h -o %T 2>/dev/null) == idle ]] && break
  sleep 0.1
done
[[ $(sinfo -h -o %T) == idle ]] || { tail -n 20 "$home"/slurmctld.log "$home"/slurmd.log >&2; exit 1; }
status=0
"$@" || status=$?
exit $status
