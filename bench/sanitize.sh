#!/usr/bin/env bash
# Runs the small test set of the kernels under compute-sanitizer: memcheck, racecheck and initcheck. Before each, the
# same checker must find the mistake that bench/probes/broken.cu makes for it. Needs a GPU and CUDA's tools; about two
# minutes. PYTHON names the interpreter.
#
#     bench/sanitize.sh [LOG_FOLDER]
#
# Exit status: 0 clean; 1 an error was found, or a checker did not find the planted one.
set -euo pipefail

readonly BENCH=${BASH_SOURCE[0]%/*}
readonly PYTHON=${PYTHON:-python3}
# Each tensor its own allocation: out of torch's cache memory would count as written, and as one block.
export PYTORCH_NO_CUDA_MEMORY_CACHING=1

# check TOOL LOG ARGUMENT...: run the set under a checker; status 0 if it reports nothing.
check() {
  local tool=$1 log=$2
  shift 2
  local options=(--tool "$tool" --error-exitcode 99 --print-limit 20)
  # torch and the driver probe for features with calls that fail; only the kernels' errors count.
  [[ $tool == memcheck ]] && options+=(--report-api-errors no)
  compute-sanitizer "${options[@]}" "$PYTHON" "$BENCH/kernels.py" smoke "$@" >"$log" 2>&1
}

main() {
  local logs=${1:-$(mktemp -d)} failed=0 tool
  command -v compute-sanitizer >/dev/null || {
    printf 'sanitize: compute-sanitizer is not on the PATH; it comes with the CUDA toolkit\n' >&2
    exit 1
  }
  mkdir -p "$logs"
  for tool in memcheck racecheck initcheck; do
    if check "$tool" "$logs/$tool.planted.log" --broken "$tool"; then
      printf 'sanitize: %s FAILED: it did not find the planted mistake; see %s\n' "$tool" "$logs/$tool.planted.log"
      failed=1
    elif ! grep -q "the mistake for $tool was made\|Invalid __global__ write" "$logs/$tool.planted.log"; then
      printf 'sanitize: %s FAILED: it could not run; see %s\n' "$tool" "$logs/$tool.planted.log"
      failed=1
    elif ! check "$tool" "$logs/$tool.log"; then
      printf 'sanitize: %s FAILED; see %s:\n' "$tool" "$logs/$tool.log"
      grep -m 5 -A 6 '^========= [^C]' "$logs/$tool.log" || tail -n 20 "$logs/$tool.log"
      failed=1
    elif ! grep -q ' SUMMARY: 0 ' "$logs/$tool.log" || ! grep -q ' cases, 0 failed' "$logs/$tool.log"; then
      printf 'sanitize: %s FAILED: no clean summary; see %s\n' "$tool" "$logs/$tool.log"
      failed=1
    else
      printf 'sanitize: %s clean, and it found the planted mistake: %s\n' "$tool" \
        "$(grep -o '[0-9]* cases' "$logs/$tool.log")"
    fi
  done
  ((failed == 0)) || exit 1
}

main "$@"
