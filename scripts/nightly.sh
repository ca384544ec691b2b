#!/usr/bin/env bash
# Checks that take too long for every change (.ci/run has those): run it each night, and before a release.
#
#   fuzzing       1,000,000 inputs to each target, or FUZZ_RUNS
#   asan, tsan    nothing left out of the suites that .ci/run takes: more ranks, long sums, a crash at every call; one
#                 process for each test; the installed package, and what only root can run, under asan
#   libtorch      its adapter under asan (6 GB of PyTorch and transformers from PyPI)
#   release       without precompiled headers and unity sources, so that every source includes what it uses; private headers alone; CUDA for 8.0, 9.0,
#                 10.0 and 12.0; the program's runs in all strategies, layouts and replica arrangements (SHERD_NIGHTLY)
#   unity         everything compiled with unity sources and without precompiled headers, as with a compiler launcher
#   kills         a saving run killed 1,000 times, or SHERD_KILLS
#   preemptions   a run stopped by 50 signals and resumed, or SHERD_PREEMPTIONS
#   faults        200 runs under MPI that a random fault strikes, or SHERD_FAULTS
#   stops         every way to stop a run, with fast and slow saves
#   copies        every flag and call that reads files under mpirun, with copies that differ and equal ones
#   hosts         MPI over 2 and 4 hosts that are network namespaces, cables cut (root; skipped elsewhere)
#   packages      .deb and archive, lintian, a bare Debian, Conan, vcpkg's port, a wheel, sherd inside another project, the CPU image's
#                 instructions (each skipped where it cannot be)
#   demo          scripts/demo.sh with few steps
#   site          the static site without warnings; commands of all pages, of some with the outputs that they show
#   preset cuda   the preset is configured, with the libtorch adapter on GPUs, too (skipped without nvcc)
#   preset dev    the preset builds a suite
#   soak          30 minutes of training with crashes and resumes, or SOAK_MINUTES, with threads and over MPI; 100,000 steps with 10,000
#                 saves of 1 and 2 ranks, whose memory must not grow
#
# Every stage is run; the exit code is 1 when any failed. SHERD_PYTHON names a Python with torch, transformers, safetensors, tokenizers,
# jinja2 and heavyball: tests and commands of pages that need one of them say that they are skipped without.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=()
stage() {
  local name=$1 began=$SECONDS
  shift
  echo "== $name"
  if "$@"; then
    echo "== $name: passed in $((SECONDS - began)) s"
  else
    echo "== $name: FAILED after $((SECONDS - began)) s"
    failed+=("$name")
  fi
}

stage "fuzzing" scripts/fuzz.sh "${FUZZ_RUNS:-1000000}"
stage "asan" env CONFIGURE="-DSHERD_TEST_SHARDS=0 -DSHERD_MPI=OFF" scripts/test.sh asan -LE slow
# Clang, as in .ci/run. PyTorch's Python half is for the tests of the next stages.
libtorch_under_asan() {
  scripts/install_deps.sh clang libclang-rt-dev libomp-dev llvm python3-venv && scripts/install_torch.sh --python || return
  rm -rf build/asan  # of the other compiler
  CONFIGURE="-DCMAKE_CXX_COMPILER=clang++ -DSHERD_MPI=OFF -DSHERD_TORCH=ON" \
    TARGETS="test_torch libtorch_gpt train_gpt" scripts/test.sh asan -L '^torch$'
}
stage "libtorch under asan" libtorch_under_asan
stage "tsan" env CONFIGURE="-DSHERD_TEST_SHARDS=0 -DSHERD_MPI=OFF" TARGETS=runtime_tests \
  scripts/test.sh tsan -L '^(base|kernels|comm|dtensor|fsdp|nn|optim|checkpoint)$'
stage "release, everything" env SHERD_NIGHTLY=1 \
  CONFIGURE="-DSHERD_PCH=OFF -DSHERD_UNITY=OFF -DSHERD_TEST_HEADERS=ON -DCMAKE_CUDA_ARCHITECTURES=80;90;100;120" scripts/test.sh
unity() {
  local torch=OFF
  [ ! -e build/venv/has_torch ] || torch=ON
  cmake --preset release -B build/unity -DSHERD_PCH=OFF -DSHERD_CUDA=OFF -DSHERD_TORCH=$torch >/dev/null && cmake --build build/unity
}
stage "unity" unity
stage "kills" env SHERD_KILLS="${SHERD_KILLS:-1000}" build/release/bin/test_program --gtest_filter='KillRun.*'
stage "preemptions" scripts/preempt.sh "${SHERD_PREEMPTIONS:-50}"

# A stage that cannot run here (exit code 77) has printed the reason.
where_possible() {
  local code=0
  "$@" || code=$?
  [ $code -eq 77 ] || return $code
}
scripts/install_deps.sh openmpi-bin iproute2 || failed+=("hosts: packages")
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
stage "faults" where_possible scripts/faults.sh "${SHERD_FAULTS:-200}"
stage "stops" where_possible scripts/faults.sh stops
for program in train_gpt libtorch_gpt copies_ranks; do
  [ ! -x "build/release/bin/$program" ] ||
    stage "copies, $program" where_possible env SHERD_NIGHTLY=1 tests/programs/runs/mpi_copies_test.sh build/release/bin "$program"
done
stage "hosts" where_possible tests/scripts/hosts_test.sh "$PWD" "$PWD/build/release/bin" all
packages() {
  scripts/install_deps.sh lintian debootstrap python3-venv libopenmpi-dev && scripts/package.sh -DSHERD_CUDA=OFF &&
    lintian --fail-on error build/package/packages/*.deb
}
stage "packages" packages
wheel() {
  rm -rf build/wheelhouse
  python3 -m venv build/wheel-venv && build/wheel-venv/bin/pip -q wheel --no-deps -w build/wheelhouse . || return 1
  tests/packaging/wheel_test.sh "$PWD" build/wheelhouse/sherd-*.whl
}
stage "packages, wheel" where_possible wheel
stage "packages, bare Debian" where_possible tests/packaging/debian_test.sh "$PWD" build/package/packages build/wheelhouse/sherd-*.whl
stage "packages, subproject" tests/packaging/subproject.sh "$PWD" c++ --build
stage "packages, Conan" where_possible tests/packaging/conan_test.sh "$PWD"
stage "packages, vcpkg" tests/packaging/vcpkg_test.sh "$PWD"
stage "packages, image" where_possible tests/packaging/dockerfile_test.sh "$PWD" packaging/docker/Dockerfile \
  train_gpt --data /usr/lib/x86_64-linux-gnu/perl-base --steps 20
stage "packages, lint" where_possible tests/packaging/lint_test.sh "$PWD"
preset_cuda() {
  PATH=$PATH:/usr/local/cuda/bin
  command -v nvcc >/dev/null || { echo "SKIPPED: nvcc is missing"; return 77; }
  cmake --preset cuda >/dev/null && scripts/install_torch.sh && cmake --preset cuda -DSHERD_TORCH=ON -DSHERD_TORCH_CUDA=ON >/dev/null
}
stage "preset cuda" where_possible preset_cuda
stage "preset dev" sh -c "cmake --preset dev >/dev/null && cmake --build --preset dev --target test_dtensor"
stage "demo" scripts/demo.sh --steps 40 --seq 64
stage "site" scripts/site.sh
shown=(failures checkpoints functions guarantees layout own_optimizer planning)
for page in "${shown[@]}"; do
  stage "commands of docs/$page.md" python3 tests/docs/commands.py docs/$page.md build/release/bin
done
stage "commands of other pages" python3 tests/docs/commands.py --short build/release/bin \
  $(git ls-files '*.md' | grep -vE "^docs/(($(IFS='|'; echo "${shown[*]}"))\.md|measurements/)")
for comm in local mpi; do
  stage "soak, $comm" env COMM=$comm scripts/soak.sh "${SOAK_MINUTES:-30}" --threads 1
done
for flags in "--ranks 1" "--ranks 2 --async-save --eval-every 100"; do
  # shellcheck disable=SC2086
  stage "training soak, $flags" build/release/bin/sherd_bench training-soak build/release/training_soak $flags
done

[ ${#failed[@]} -eq 0 ] && exit 0
printf 'nightly: failed: %s\n' "${failed[*]}" >&2
exit 1
