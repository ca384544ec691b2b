#!/usr/bin/env bash
# Everything that needs a GPU, on one machine with one and nothing to download: tests, NCCL, compute-sanitizer, figures.
#
#   scripts/gpu_check.sh [--out DIR] [--only LIST]          builds the preset cuda here and runs
#   scripts/gpu_check.sh --pack DIR [--arch LIST]           builds portable programs and collects what --run needs in DIR
#   scripts/gpu_check.sh --run DIR [--out DIR] [--only ...] runs from such a folder; nothing is built
#
# LIST has parts (tests, nccl, sanitizer, bench, training; all by default, about 25 minutes, none much more than 8) or
# single steps by the names that summary.txt shows. Results go to --out (build/gpu_check): summary.txt with a line PASS,
# FAIL or SKIP for every step and the figures, logs/ with all output, JSON of the benchmarks, a timeline. The exit code is
# 1 when anything failed or nothing ran, 2 for a wrong call.
# GPU_CHECK_DEVICE=cpu tries the script itself where there is no GPU.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
all=tests,nccl,sanitizer,bench,training
only=$all
mode=build folder='' out='' arch=90
device=${GPU_CHECK_DEVICE:-cuda}
usage() { sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --pack | --run) mode=${1#--} folder=${2:-}; shift ;;
    --out) out=${2:-}; shift ;;
    --only) only=${2:-}; shift ;;
    --arch) arch=${2:-}; shift ;;
    *) usage ;;
  esac
  shift || usage
done
[ "$mode" = build ] || [ -n "$folder" ] || usage
. "$here/gpu_check_pack.sh"
. "$here/gpu_check_steps.sh"
if [ "$mode" = pack ]; then
  pack "$folder" "$arch"
  exit
fi
out=${out:-$root/build/gpu_check}
mkdir -p "$out/logs"
out=$(cd "$out" && pwd)
if [ "$mode" = run ]; then
  unpack "$folder" || exit 1
else
  build || exit 1
fi
export here out bin bench data device
known=${all//,/ }" "$(steps)
for word in ${only//,/ }; do
  grep -qwxF -- "$word" <<<"${known// /$'\n'}" || { echo "--only $word: no part and no step" >&2; usage; }
done
summary=$out/summary.txt
failed=0 skipped=0 passed=0
{
  echo "gpu_check of $(date -u +%Y-%m-%dT%H:%MZ), $only"
  { [ "$device" = cuda ] && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader; } 2>/dev/null ||
    echo "no nvidia-smi"
} | tee -a "$summary"
for part in ${all//,/ }; do "check_$part"; done
echo "$passed passed, $skipped skipped, $failed failed" | tee -a "$summary"
[ $failed = 0 ] && [ $passed -gt 0 ]
