#!/usr/bin/env bash
# Checks ptxas's code of the kernels for compute capability 9.0: sass.sh CUOBJDUMP OBJECT...
#
# Every kernel multiplies with HGMMA; its registers hold everything (no stack, no local memory); and its products run
# concurrently: four form a group, and eight of tiles up to 160 columns wide (ping-pong), where ptxas that serialises
# them makes one of each. Exit code 77 without cuobjdump, which needs nvdisasm beside it.
set -uo pipefail
tool=${1:-}
if ! command -v "$tool" >/dev/null || ! PATH=$PATH:$(dirname "$(command -v "$tool")") command -v nvdisasm >/dev/null; then
  echo "cuobjdump or nvdisasm is not there"
  exit 77
fi
PATH=$PATH:$(dirname "$(command -v "$tool")")
shift
failed=0
for object in "$@"; do
  "$tool" --dump-resource-usage "$object" | awk '
    /Function/ { name = $2 }
    /REG:/ { ++kernels; if ($0 !~ /STACK:0 / || $0 !~ /LOCAL:0 /) { print "spills: " name " " $0; bad = 1 } }
    END { print kernels + 0 " kernels"; exit bad || !kernels }' || failed=1
  "$tool" -sass "$object" | awk '
    function done() {
      if (name == "") return
      if (!products) { print "no HGMMA: " name; bad = 1 }
      if (products != groups * (width > 160 ? 4 : 8)) { print "serialised: " name ": " products " products in " groups " groups"; bad = 1 }
      if (memory) { print "local memory: " name ": " memory " instructions"; bad = 1 }
    }
    /Function :/ { done(); name = $3; products = groups = memory = 0 }
    / HGMMA/ { ++products; if (/gsb0/) ++groups; match($0, /HGMMA\.64x[0-9]+/); width = substr($0, RSTART + 9, RLENGTH - 9) + 0 }
    / (LDL|STL)/ { ++memory }
    END { done(); exit bad || name == "" }' || failed=1
done
exit $failed
