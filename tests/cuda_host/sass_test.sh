#!/usr/bin/env bash
# sass.sh over a made-up dump of one kernel, right and in each way wrong: sass_test.sh
set -uo pipefail
cd "$(dirname "$0")" || exit 1
box=$(mktemp -d)
trap 'rm -rf "$box"' EXIT
printf '#!/bin/sh\n' >"$box/nvdisasm"
# Four products in one group.
cat >"$box/cuobjdump" <<'END'
#!/bin/sh
if [ "$1" = --dump-resource-usage ]; then
  [ "$wrong" = empty ] && exit
  echo " Function kernel:"
  [ "$wrong" = stack ] && stack=72
  echo "  REG:168 STACK:${stack:-0} SHARED:1024 LOCAL:0 CONSTANT[0]:1256"
  exit
fi
echo "		Function : kernel"
[ "$wrong" = "local memory" ] && echo "        /*0100*/                   STL [R1], R0 ;"
[ "$wrong" = "no HGMMA" ] && exit
for product in 1 2 3; do
  [ "$wrong" = serialised ] && group=", gsb0"
  echo "        /*0${product}10*/                   HGMMA.64x256x16.F32 R24, gdesc[UR8], R24${group:-} ;"
done
echo "        /*0410*/                   HGMMA.64x256x16.F32 R24, gdesc[UR8], R24, gsb0 ;"
END
chmod +x "$box"/*
failed=0
expect() { # expect WRONG CODE PATTERN
  wrong=$1 ./sass.sh "$box/cuobjdump" kernel.o >"$box/said" 2>&1
  local code=$?
  [ "$code" = "$2" ] && grep -q -- "$3" "$box/said" && return
  echo "$1: exit code $code, expected $2 and '$3':"
  cat "$box/said"
  failed=1
}
expect nothing 0 '^1 kernels'
expect empty 1 '^0 kernels'
expect stack 1 '^spills: kernel'
expect "local memory" 1 '^local memory: kernel: 1 instructions'
expect "no HGMMA" 1 '^no HGMMA: kernel'
expect serialised 1 '^serialised: kernel: 4 products in 4 groups'
exit $failed
