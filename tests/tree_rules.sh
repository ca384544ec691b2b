#!/usr/bin/env bash
# Rules that no compiler checks: folders include only folders to their left, components do not include each other in a
# circle, every test file is in a target, only backends distinguish devices.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$1"
failed=0
complain() { echo "$*"; failed=1; }

read -ra order <<<"$(sed -n 's/^set(SHERD_FOLDERS \(.*\))$/\1/p' CMakeLists.txt)"
[ "${#order[@]}" -gt 0 ] || complain "CMakeLists.txt: no line set(SHERD_FOLDERS ...)"
recipe=$(grep '^FOLDERS = ' packaging/conan/conanfile.py)
for i in "${!order[@]}"; do
  [[ $recipe == *"\"${order[i]}\""* ]] || complain "packaging/conan/conanfile.py: FOLDERS lacks ${order[i]}"
  for ((j = i + 1; j < ${#order[@]}; ++j)); do
    found=$(grep -rnE "#include [<\"]sherd/${order[j]}/" "${order[i]}" --include=*.h --include=*.cpp --include=*.cu | grep -v '^nn/hf/') &&
      complain "folder ${order[i]} includes ${order[j]}, which is to its right:"$'\n'"$found"
  done
  found=$(grep -rnE '#include "(samples|programs|tests)/' "${order[i]}" --include=*.h --include=*.cpp) &&
    complain "folder ${order[i]} includes a program's header:"$'\n'"$found"
  found=$(grep -rnE '^#\s*(if|ifdef|ifndef)\b' "${order[i]}" --include=*.h --include=*.cpp |
    grep -vE '^((nn/)?kernels/[a-z_/]*/(cpu|cuda|reference)|comm/(local|mpi|nccl)/)') &&
    complain "conditional compilation outside a backend:"$'\n'"$found"
done

# The folders of comm/ likewise; its backends do not include each other.
inner=(core bootstrap watch backend local mpi nccl dry)
for i in "${!inner[@]}"; do
  for j in "${!inner[@]}"; do
    ((j > i || (j < i && j > 3))) || continue
    found=$(grep -rnE "#include <sherd/comm/${inner[j]}/" "comm/${inner[i]}" --include=*.h --include=*.cpp) &&
      complain "folder comm/${inner[i]} includes comm/${inner[j]}:"$'\n'"$found"
  done
done

# nn/ stands beside optim/: only programs use it. nn/hf/ is a client of nn and checkpoint.
for folder in optim checkpoint train; do
  found=$(grep -rnE '#include [<"]sherd/nn/' "$folder" --include=*.h --include=*.cpp) &&
    complain "folder $folder includes nn, which only programs use:"$'\n'"$found"
done

# optim/whole/ serves every optimizer that needs whole matrices; Muon is a client.
found=$(grep -rnE '#include [<"]sherd/optim/muon' optim/whole --include=*.h --include=*.cpp) &&
  complain "folder optim/whole includes its client optim/muon:"$'\n'"$found"

# Adapters are clients: of the folders none includes them, programs do; and they include no program.
for folder in "${order[@]}"; do
  found=$(grep -rnE '#include [<"]sherd/torch/' "$folder" --include=*.h --include=*.cpp) &&
    complain "folder $folder includes an adapter, which only programs use:"$'\n'"$found"
done
found=$(grep -rnE '#include "(samples|programs|tests)/' adapters --include=*.h --include=*.cpp) &&
  complain "an adapter includes a program's header:"$'\n'"$found"
found=$(grep -lE '#include <sherd/torch/detail/' adapters/torch/*.h) &&
  complain "public headers of an adapter include private ones:"$'\n'"$found"

# Numbers are read and written alike under every locale: by from_chars() and fmt, or by a stream imbued with std::locale::classic().
found=$(grep -rnE '\b(sto(f|d|ld)|strto(f|d|ld)|atof|ostringstream|setprecision)\b|(scan|print)f\(.*%[-+ #*.0-9]*l?[aefgAEFG]' \
  "${order[@]}" adapters programs --include=*.h --include=*.cpp --include=*.cu) &&
  complain "numbers that follow the locale; use std::from_chars() or fmt:"$'\n'"$found"

# The rooms of train_gpt, each of which uses those to its left. Other programs use train_gpt, which uses none of them.
rooms=(settings model rules run)
for ((i = 0; i + 1 < ${#rooms[@]}; ++i)); do
  found=$(grep -rnE "#include \"train_gpt/($(IFS='|'; echo "${rooms[*]:i+1}"))/" "programs/train_gpt/${rooms[i]}" --include=*.h --include=*.cpp) &&
    complain "programs/train_gpt/${rooms[i]} includes a room to its right:"$'\n'"$found"
done
found=$(grep -rnE '#include "(\.\./|(sherd|bench)/)' programs/train_gpt --include=*.h --include=*.cpp) &&
  complain "train_gpt includes another program:"$'\n'"$found"
found=$(grep -rnE '#include "train_gpt/(model|run)/' samples --include=*.h --include=*.cpp) &&
  complain "a sample includes more of train_gpt than its settings and rules:"$'\n'"$found"

"$here/component_cycles.sh" . "${order[@]}" programs adapters samples || failed=1

while IFS= read -r file; do
  folder=$(dirname "$file")
  grep -qF "$(basename "$file")" "$folder/CMakeLists.txt" "${folder%/*}/CMakeLists.txt" 2>/dev/null ||
    complain "$file is in no target of $folder/CMakeLists.txt"
done < <(find tests -name '*_test.cpp')

exit $failed
