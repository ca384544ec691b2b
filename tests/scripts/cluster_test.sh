#!/usr/bin/env bash
# The scripts of scripts/cluster under an imitated Slurm: the one for CPUs trains with real processes over
# MPI, and resumes when it is submitted again; of the one for GPUs real processes meet by Slurm's variables,
# instead of train_gpt.
#   cluster_test.sh FOLDER_OF_TRAIN_GPT REPOSITORY [MPIRUN]
set -euo pipefail
bin=$1 root=$2 mpirun=${3:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
export FAKE_MPIRUN=$mpirun WORK=$work
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

# Runs a command as a batch script, whose process belongs to no step. Its port follows from the job's number,
# and another program on this machine may have it: the job then gets another number.
submit() {
  local status
  for _ in 1 2 3 4 5; do
    status=0
    env PATH="$root/tests/scripts/slurm:$PATH" SLURM_JOB_ID=$((RANDOM + 1000)) SLURM_JOB_NODELIST="node[0-1]" SLURM_NTASKS=2 SLURM_PROCID=0 \
      SLURM_CPUS_PER_TASK=1 "$@" >"$work/said" 2>&1 || status=$?
    [[ $status != 0 ]] || break
    grep -q "Address already in use" "$work/said" || break
  done
  cat "$work/said"
  return "$status"
}
unset SHERD_JOB_SECRET SHERD_JOB_SECRET_FILE

# A missing value is named.
for script in slurm_cpu slurm_gpu; do
  said=$(submit env -u OUT BUILD=x DATA=x bash "$root/scripts/cluster/$script.sbatch" 2>&1) && fail "$script ran without OUT"
  [[ $said == *"OUT is not set"* ]] || fail "$script without OUT said: $said"
done

export DATA=$work/text
seq 1 2000 | awk '{ printf "%d is more than %d. ", $1, $1 - 1 }' >"$DATA"

# GPUs: what is called, and that the processes find each other by what the script exports.
mkdir "$work/gpu"
cat >"$work/gpu/train_gpt" <<'TRAIN'
#!/usr/bin/env bash
printf '%s\n' "$@" >"$WORK/arguments.$SLURM_PROCID"
printf '%s' "${SHERD_JOB_SECRET-unset}" >"$WORK/secret.$SLURM_PROCID"
[[ -n $MASTER_PORT && $MASTER_ADDR == 127.0.0.1 ]] || exit 3
[[ ! -x $MEET ]] || exec timeout 100 "$MEET" env 2
TRAIN
chmod +x "$work/gpu/train_gpt"
export MEET=$bin/mpi_ranks
submit env BUILD="$work/gpu" OUT="$work/gpu/run" bash "$root/scripts/cluster/slurm_gpu.sbatch" --seed 7 || fail "slurm_gpu"
cmp "$work/arguments.0" "$work/arguments.1"
called=$(tr '\n' ' ' <"$work/arguments.0")
[[ $called == *"--device cuda --comm nccl "* && $called == *" --seed 7 " ]] || fail "slurm_gpu called train_gpt with: $called"
! grep -q resume "$work/arguments.0" || fail "slurm_gpu resumes what is not there"
# The ranks have a secret, the same one, which is in no command line, and the next job has another.
cmp "$work/secret.0" "$work/secret.1"
secret=$(cat "$work/secret.0")
[[ $secret =~ ^[0-9a-f]{64}$ ]] || fail "slurm_gpu: SHERD_JOB_SECRET is $secret"
! grep -qF "$secret" "$work/arguments.0" || fail "slurm_gpu shows the secret to all users of the host"
mkdir -p "$work/gpu/run/checkpoints"
touch "$work/gpu/run/checkpoints/latest"
submit env BUILD="$work/gpu" OUT="$work/gpu/run" bash "$root/scripts/cluster/slurm_gpu.sbatch" || fail "slurm_gpu, again"
grep -qx -- --resume "$work/arguments.0" || fail "slurm_gpu does not resume"
[[ $(cat "$work/secret.0") != "$secret" ]] || fail "slurm_gpu: two jobs have one secret"
(umask 077 && echo "of the user's own" >"$work/own_secret")
submit env SHERD_JOB_SECRET_FILE="$work/own_secret" BUILD="$work/gpu" OUT="$work/gpu/run" \
  bash "$root/scripts/cluster/slurm_gpu.sbatch" || fail "slurm_gpu with a secret of the user's"
[[ $(cat "$work/secret.1") == unset ]] || fail "slurm_gpu does not keep to SHERD_JOB_SECRET_FILE"
echo "slurm_gpu: $([[ -x $MEET ]] && echo "two tasks met by Slurm's variables" || echo "called; mpi_ranks is not built")"

# CPUs.
if [[ -z $mpirun || ! -x $mpirun ]]; then
  echo "slurm_cpu: SKIPPED, mpirun is missing"
  exit 0
fi
small=(--dim 16 --layers 1 --heads 2 --seq 16 --batch 8 --threads 1 --save-every 2 --quiet)
export OUT=$work/cpu BUILD=$bin
submit bash "$root/scripts/cluster/slurm_cpu.sbatch" "${small[@]}" --steps 6 --stop-at 3 || fail "slurm_cpu"
submit bash "$root/scripts/cluster/slurm_cpu.sbatch" "${small[@]}" --steps 6 || fail "slurm_cpu, again"
steps=$(grep -o '"step": *[0-9]*' "$OUT/metrics.jsonl" | grep -o '[0-9]*$' | tr '\n' ' ')
[[ $steps == "1 2 3 4 5 6 " ]] || fail "slurm_cpu: steps $steps"
grep -q '"ranks": *2' "$OUT/metrics.jsonl" || fail "slurm_cpu: not two ranks"
echo "slurm_cpu: two tasks trained over MPI, and went on"
