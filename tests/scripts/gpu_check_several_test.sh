#!/usr/bin/env bash
# scripts/gpu_check.sh --gpus N on imitated GPUs with a strict driver (tests/cuda_host): all steps pass.
# N is 2; with SHERD_NIGHTLY=1 also 4 and 8.
set -uo pipefail
command -v python3 >/dev/null || { echo "SKIPPED: python3 is not installed"; exit 77; }
root=$1 programs=$2
box=$(mktemp -d)
trap 'rm -rf "$box"' EXIT
mkdir "$box/bin" "$box/gpu"
ln -s "$programs/train_gpt_cuda_host" "$box/bin/train_gpt"
ln -s "$programs/sherd" "$box/bin/sherd"
cat >"$box/gpu/nvidia-smi" <<'END'
#!/usr/bin/env bash
case $* in
  -L) for ((gpu = 0; gpu < SHERD_HOST_CUDA_DEVICES; ++gpu)); do echo "GPU $gpu: imitated"; done ;;
  *memory.used*) echo 0 ;;
esac
END
chmod +x "$box/gpu/nvidia-smi"
export PATH=$box/gpu:$PATH GPU_CHECK_DEVICE=cuda GPU_CHECK_BIN=$box/bin SHERD_HOST_CUDA_STRICT=10
failed=0
for gpus in 2 ${SHERD_NIGHTLY:+4 8}; do
  if ! SHERD_HOST_CUDA_DEVICES=$gpus "$root/scripts/gpu_check.sh" --hosts 1 --gpus "$gpus" --out "$box/$gpus" >"$box/said" 2>&1 ||
    ! grep -q '^9 passed, 0 skipped, 0 failed, 0 not run' "$box/said"; then
    echo "$gpus GPUs:"
    cat "$box/said"
    tar -xOzf "$box/$gpus/logs.tar.gz" --wildcards 'logs/*.log'
    failed=1
  fi
done
exit $failed
