#!/usr/bin/env bash
# python_test.py with the first Python that has NumPy and xxhash: SHERD_PYTHON, the system's, the one on the PATH.
# Usage: python_test.sh FOLDER_OF_PROGRAMS     Exit code 77: skipped, none has
for python in "${SHERD_PYTHON:-}" /usr/bin/python3 python3; do
  if [ -n "$python" ] && "$python" -c 'import numpy, xxhash' 2>/dev/null; then
    exec "$python" "$(dirname "$0")/python_test.py" "$@"
  fi
done
echo "SKIPPED: no Python has numpy and xxhash (Debian: python3-numpy python3-xxhash)"
exit 77
