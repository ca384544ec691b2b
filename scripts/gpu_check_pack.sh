# shellcheck shell=bash disable=SC2034,SC2046,SC2154,SC2207
# Part of gpu_check.sh: building, packing and unpacking. Sets bin (folder of programs), data (text to train on), bench
# (folder of scripts), and the library path.

find_nvcc() {
  command -v nvcc >/dev/null || export CUDACXX=${CUDACXX:-/usr/local/cuda/bin/nvcc}
}

# Test programs for a real GPU; those of the emulation are not.
gpu_test_targets() { cmake --build "$1" --target help 2>/dev/null | grep -oE '\btest_cuda[a-z_]*' | grep -v cuda_host | sort -u; }

# configure FOLDER FLAGS...: programs for any machine with a GPU. MPI is not part of what travels. With GPU_CHECK_TORCH, the
# folder of a PyTorch for CUDA, libtorch_gpt is one of them; PyTorch's libraries stay where they are.
configure() {
  local torch=(-DSHERD_TORCH=OFF)
  [ -z "${GPU_CHECK_TORCH:-}" ] || torch=(-DSHERD_TORCH=ON "-DSHERD_TORCH_DIR=$GPU_CHECK_TORCH" -DSHERD_TORCH_CUDA=ON)
  find_nvcc
  attend 0 cmake --preset cuda -B "$1" -DSHERD_PORTABLE=ON -DSHERD_MPI=OFF "${torch[@]}" "${@:2}" >/dev/null
}
programs() { echo train_gpt sherd_tool sherd_bench ${GPU_CHECK_TORCH:+libtorch_gpt} $(gpu_test_targets "$1"); }

build() {
  cd "$root" || return
  bin=${GPU_CHECK_BIN:-$root/build/cuda/bin} bench=$root/programs/bench data=$work/data.txt
  make_data "$data"
  [ -z "${GPU_CHECK_BIN:-}" ] || return 0
  configure build/cuda &&
    attend 0 cmake --build build/cuda --target $(programs build/cuda)
}

# A megabyte of text that is the same everywhere.
make_data() {
  (cd "$root" && find README.md docs/*.md base kernels comm dtensor fsdp nn optim checkpoint -name '*.md' -o -name '*.h' -o -name '*.cpp' |
    LC_ALL=C sort | xargs cat) >"$1.all"
  head -c 1000000 "$1.all" >"$1"
  rm "$1.all"
}

pack() {
  local target=$1 build=$root/build/cuda stage library
  command -v xz >/dev/null || { echo "packing needs xz; install xz-utils" >&2; return 1; }
  cd "$root" || return
  if [ "$device" = cpu ]; then
    build=$root/build/portable_cpu
    attend 0 cmake --preset release -DSHERD_CUDA=OFF -B "$build" -DSHERD_PORTABLE=ON -DSHERD_MPI=OFF >/dev/null || return
  else
    attend 0 scripts/install_cuda_extras.sh || echo "packing without attention by cuDNN" >&2
    configure "$build" -DCMAKE_CUDA_ARCHITECTURES="$2" || return
  fi
  local targets=($(programs "$build"))
  attend 0 cmake --build "$build" --target "${targets[@]}" || return
  stage=$(mktemp -d "${TMPDIR:-/tmp}/gpu_check.XXXXXX") || return
  mkdir -p "$target" "$stage/bin" "$stage/lib"
  cp "$build"/bin/{train_gpt,sherd,sherd_bench} "$stage/bin/"
  for program in "${targets[@]:3}"; do cp "$build/bin/$program" "$stage/bin/"; done
  strip "$stage"/bin/*
  # Libraries without a static archive that are not of the C library, CUDA or NCCL.
  for library in $(ldd "$stage"/bin/* | awk '$3 ~ /^\// {print $3}' | sort -u); do
    [ -z "${GPU_CHECK_TORCH:-}" ] || [ "${library#"$(dirname "$GPU_CHECK_TORCH")"}" = "$library" ] || continue
    case $(basename "$library") in
      libc.so* | libm.so* | libdl.so* | librt.so* | libpthread.so* | ld-linux* | libcu* | libnv* | libnccl*) ;;
      *) cp -L "$library" "$stage/lib/" ;;
    esac
  done
  # The programs have most of their code in common, which a dictionary as large as all of them finds.
  rm -f "$target"/programs.tar.*
  tar -cf - -C "$stage" bin lib | xz --lzma2=preset=3,dict=128MiB >"$target/programs.tar.xz" || return
  mkdir -p "$target/scripts" "$target/bench"
  cp scripts/gpu_check*.sh "$target/scripts/"
  cp programs/bench/*.py "$target/bench/"
  make_data "$target/data.txt"
  du -sh "$stage"/* "$stage"/bin/* "$stage"/lib/* | sed "s|$stage/||"
  rm -rf "$stage"
  local kib
  kib=$(du -sk "$target" | cut -f1)
  echo "packed into $target: $((kib / 1024)) MiB"
  # 64 MiB is what may travel, this folder, the sources and what a run adds together.
  [ "$kib" -le 40960 ] || { echo "that is more than 40 MiB" >&2; return 1; }
}

unpack() {
  local from
  from=$(cd "$1" && pwd) || return
  # Images for GPUs may be without xz, but have Python.
  mkdir "$work/programs" && { tar -xJf "$from/programs.tar.xz" -C "$work/programs" 2>/dev/null ||
    python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$from/programs.tar.xz" "$work/programs"; } || return
  bin=$work/programs/bin bench=$from/bench data=$from/data.txt
  # CUDA's and NCCL's libraries: where the toolkit is, or in the wheels that PyTorch came with.
  local wheels
  wheels=$(python3 -c 'import glob, site, sys
print(":".join(d for p in site.getsitepackages() + sys.path[1:] for d in glob.glob(p + "/nvidia/*/lib")))' 2>/dev/null)
  export LD_LIBRARY_PATH=$wheels:/usr/local/cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  local missing
  missing=$(ldd "$bin"/* 2>/dev/null | grep 'not found' | grep -vE 'libtorch|libc10' | sort -u)
  [ -z "$missing" ] || { echo "libraries are missing:"$'\n'"$missing" >&2; return 1; }
}
