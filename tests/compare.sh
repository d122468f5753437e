#!/usr/bin/env bash
# The arithmetic of `make compare`, on a canned file; prints "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
command -v python3 >/dev/null || { echo "0 passed, 0 failed, 1 skipped"; exit 0; }
PYTHONDONTWRITEBYTECODE=1 exec python3 bench/compare_check.py
