#!/usr/bin/env bash
# Builds vLLM with our patch and our extension.
#
#   scripts/build-native.sh [cpu|cuda|cuda-native] [--check] [--configure-only]
#
#   cpu          the pinned CPU wheel, patched and repacked, in .native/venv-cpu (default)
#   cuda         the pinned CUDA wheel, patched and repacked, in .native/venv-cuda
#   cuda-native  the pinned source archive, patched and compiled by the pinned CUDA compiler
#   --check      report whether it is there, or what is missing, and build nothing
#
# Exit status: 0 done, 1 failed, 2 usage, 3 something that the variant needs is missing on this machine, 130 interrupted.
# Downloads are kept in ${XDG_CACHE_HOME:-~/.cache}/moet/downloads; run it again after an interruption.
set -euo pipefail
# shellcheck source=scripts/lib/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

main() {
  local python
  python="$(find_python)"
  exec "$python" "$MOET_ROOT/scripts/lib/build.py" "$@"
}

main "$@"
