#!/usr/bin/env bash
# Everything that needs a GPU, on one machine with one and nothing to download: tests, NCCL, compute-sanitizer, figures.
# What tells most comes first.
#
#   scripts/gpu_check.sh [--out DIR] [--only LIST] [--minutes N]   builds the preset cuda here and runs
#   scripts/gpu_check.sh --pack DIR [--arch LIST]                  builds portable programs, collects what --run needs
#   scripts/gpu_check.sh --run DIR [--out DIR] [--only ...] ...    runs from such a folder; nothing is built
#   scripts/gpu_check.sh --list                                    the steps, with the seconds they are expected to take
#   scripts/gpu_check.sh --hosts 1 --gpus N [--run DIR] ...        other steps: the first hour on a host with N GPUs
#
# LIST has parts (tests, nccl, sanitizer, bench, training; with --gpus: several; all by default) or single steps by name. With --minutes all
# of it ends after so long, a build beforehand not counted: a step that is not expected to fit any more is listed as not
# run, and none may take longer than what is left. After every step --out (build/gpu_check) has summary.txt, with a line
# PASS, FAIL, SKIP, NOT RUN or CUT OFF for each and the figures, and logs.tar.gz, with all output, JSON of the benchmarks, metrics
# and a timeline, so that a run that is ended has left both. All else is written elsewhere and removed at the end. Ctrl-C,
# TERM and HUP end the running step with all its programs, list the others as not run, and leave both files, too. The
# exit code is 1 when anything failed or nothing passed, 2 for a wrong call, 128 and the signal's number after a signal.
# With --gpus N, an even number, a step that fails runs once more, with --nccl-check-calls, and has failed nevertheless.
# GPU_CHECK_DEVICE=cpu tries the script itself without a GPU; GPU_CHECK_BIN=DIR has it run the programs there.
# GPU_CHECK_TORCH=DIR, the folder of a PyTorch for CUDA (site-packages/torch), builds libtorch_gpt for the step libtorch.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
only='' mode=build folder='' out='' arch=90 minutes='' hosts='' gpus=''
begin=$SECONDS passed=0 skipped=0 failed=0 left_out=0
ended='' running=''
device=${GPU_CHECK_DEVICE:-cuda}
usage() { sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --pack | --run) mode=${1#--} folder=${2:-}; shift ;;
    --out) out=${2:-}; shift ;;
    --only) only=${2:-}; shift ;;
    --arch) arch=${2:-}; shift ;;
    --minutes) minutes=${2:-}; shift ;;
    --hosts) hosts=${2:-}; shift ;;
    --gpus) gpus=${2:-}; shift ;;
    --list) mode=list ;;
    *) usage ;;
  esac
  shift || usage
done
[ "$mode" = build ] || [ "$mode" = list ] || [ -n "$folder" ] || usage
[[ $minutes =~ ^[0-9]*$ && $minutes != 0 ]] || { echo "--minutes $minutes: give whole minutes" >&2; usage; }
[[ -z $hosts || $hosts = 1 && -n $gpus ]] || { echo "--hosts $hosts: only one host is checked; give --hosts 1 --gpus N" >&2; usage; }
[[ -z $gpus || $gpus =~ ^[1-9]?[02468]$ && $gpus != 0 ]] || { echo "--gpus $gpus: give an even number, 2 to 98" >&2; usage; }
# shellcheck source-path=SCRIPTDIR source=gpu_check_pack.sh
. "$here/gpu_check_pack.sh"
# shellcheck source-path=SCRIPTDIR source=gpu_check_steps.sh
. "$here/gpu_check_steps.sh"
# shellcheck source-path=SCRIPTDIR source=gpu_check_group.sh
. "$here/gpu_check_group.sh"
for word in ${only//,/ }; do
  steps | awk -v word="$word" '$1 == word || $2 == word { found = 1 } END { exit !found }' ||
    { echo "--only $word: no part and no step" >&2; usage; }
done
trap 'end_by 129' HUP
trap 'end_by 130' INT
trap 'end_by 143' TERM
case $mode in
  pack)
    pack "$folder" "$arch"
    exit "${ended:-$?}"
    ;;
  list)
    steps | awk -v only="$only" '
      BEGIN { printf "%-24s%-12s%10s%10s%10s\n", "step", "part", "expected", "in all", "limit" }
      only == "" || index("," only ",", "," $1 ",") || index("," only ",", "," $2 ",") {
        if ($2 != "tests") sum += $3
        else if ($3 > longest) { sum += $3 - longest; longest = $3 }  # side by side
        printf "%-24s%-12s%8d s%8d s%8d s\n", $1, $2, $3, sum, $4 }'
    exit
    ;;
esac

out=${out:-$root/build/gpu_check}
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
work=$(mktemp -d "${TMPDIR:-/tmp}/gpu_check.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/logs"
if [ "$mode" = run ]; then
  unpack "$folder" || exit "${ended:-1}"
else
  build || exit "${ended:-1}"
  begin=$SECONDS
fi
export here work bin bench data device gpus NCCL_DEBUG=${NCCL_DEBUG:-WARN}
{
  echo "gpu_check of $(date -u +%Y-%m-%dT%H:%MZ), ${only:-everything}${gpus:+, $gpus GPUs}${minutes:+, $minutes minutes}"
  { [ "$device" = cuda ] && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader; } 2>/dev/null ||
    echo "no nvidia-smi"
} | tee "$work/summary"
[ -z "$gpus" ] || nvidia-smi topo -m >"$work/logs/topology.txt" 2>&1
run_steps
[ -z "$ended" ] || exit "$ended"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
