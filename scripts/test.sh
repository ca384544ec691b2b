#!/usr/bin/env bash
# Installs what is missing, builds, runs all tests. Usage: scripts/test.sh [preset] [ctest arguments...]
#        scripts/test.sh unit [ctest arguments...]      what a change needs, a minute or two after a build: the folders' own
#          suites in release, without MPI's processes, CUDA kernels on the host, programs and package; quick: the same
# Presets: release (default), debug, dev, asan, tsan. TARGETS="..." builds those alone; CONFIGURE="-DNAME=VALUE ..." goes to
# cmake. The adapter for libtorch is built where scripts/install_torch.sh has installed PyTorch, but not in dev and under
# sanitizers.
#
# Root may read and write everything, so that tests of file permissions need an ordinary user: started by root (as in a
# container), this runs the tests as TEST_USER (an id; default 65534, the unprivileged user), to whom it gives the build
# folder, and before them those labelled `root` as root. TEST_USER=0 runs all of them as root.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-release}
[ $# -gt 0 ] && shift
if [[ $preset = unit || $preset = quick ]]; then
  preset=release
  TARGETS=${TARGETS:-unit_tests}
  set -- -L '^(base|kernels|comm|dtensor|fsdp|nn|optim|checkpoint|train|misuse)$' -LE '^mpi$' "$@"
fi
scripts/install_deps.sh
configure=()
if [[ $preset != *san && $preset != dev ]]; then
  configure=(-DSHERD_TORCH=OFF)
  [ ! -e build/venv/has_torch ] || configure=(-DSHERD_TORCH=ON)
fi
read -ra given <<<"${CONFIGURE:-}"
configure+=("${given[@]}")
cmake --preset "$preset" "${configure[@]}" >/dev/null
read -ra targets <<<"${TARGETS:-all}"
cmake --build --preset "$preset" --target "${targets[@]}"
jobs=$(($(nproc) + 1))  # tests wait now and then
# Several tests at a time: threads that spin while they wait would take the processors from the others.
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-1000}

# Tests that are skipped inside a shard (tests/run_shard.sh) are not in ctest's summary; their counts by suite follow it.
run_ctest() {
  local code=0 log=build/$preset/Testing/Temporary/LastTest.log
  rm -f "$log"
  "$@" || code=$?
  [ -f "$log" ] || return $code
  sed -n 's/^\[  SKIPPED \] \(.*\)\.[^.]* ([0-9]* ms)$/\1/p' "$log" | sort | uniq -c |
    awk '{ all = all ", " $2 " (" $1 ")" } END { if (all != "") print "skipped tests by suite: " substr(all, 3) }'
  return $code
}

user=${TEST_USER:-65534}
as_user=(setpriv "--reuid=$user" "--regid=$user" --clear-groups)
if [ "$(id -u)" -ne 0 ] || [ "$user" -eq 0 ]; then
  run_ctest ctest --preset "$preset" -j "$jobs" "$@"
  exit
fi
if ! "${as_user[@]}" test -r "$PWD/CMakePresets.json"; then
  echo "test.sh: user $user cannot read $PWD (or setpriv is missing): all tests run as root, and those of what may" \
       "not be read are skipped" >&2
  run_ctest ctest --preset "$preset" -j "$jobs" "$@"
  exit
fi
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
code=0
ctest --preset "$preset" -L '^root$' --no-tests=ignore "$@" || code=$?
chown "$user:$user" "$home"
chown -R "$user:$user" "build/$preset"  # ctest and the test of the installed package write there
run_ctest "${as_user[@]}" env HOME="$home" TMPDIR="$home" ctest --preset "$preset" -j "$jobs" "$@" || code=$?
exit $code
