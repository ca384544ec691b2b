# Sourced by the tests that start train_gpt with mpirun: sets `mpirun` ($1, or the one on PATH), `scratch`, which goes at the
# end, and lets Open MPI start as root and on fewer cores than processes; other launchers do not ask. Ends the test with 77
# (skipped, and says so) where mpirun is missing.
mpirun=${1:-$(command -v mpirun)}
if [[ -z $mpirun || ! -x $mpirun ]]; then
  echo "SKIPPED: mpirun is missing; install openmpi-bin to test --comm mpi" >&2
  exit 77
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
