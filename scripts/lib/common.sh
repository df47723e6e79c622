# Shared by the scripts in scripts/. Source it; it runs nothing by itself.
# shellcheck shell=bash

# Root of the repository.
MOET_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
export MOET_ROOT

# note TEXT...: one line for the person, on stderr.
note() {
  printf '%s\n' "$*" >&2
}

# die STATUS TEXT...: one clear line on stderr, then exit.
die() {
  local status="$1"
  shift
  printf '%s: error: %s\n' "$(basename "$0")" "$*" >&2
  exit "$status"
}

# usage: prints the comment at the head of the script that was called.
usage() {
  awk 'NR > 1 && !/^#/ { exit } NR > 1 { sub(/^# ?/, ""); print }' "${BASH_SOURCE[-1]}"
}

# find_python: prints the interpreter that the build uses. MOET_PYTHON chooses one; otherwise the first of
# the pinned minor version on PATH.
find_python() {
  local candidate
  local probe='import sys, tomllib
table = tomllib.load(open(sys.argv[1], "rb"))
sys.exit(0 if "%d.%d" % sys.version_info[:2] == table["python"]["cpu"] else 1)'
  if [[ -n "${MOET_PYTHON:-}" ]]; then
    "$MOET_PYTHON" -c "$probe" "$MOET_ROOT/pins.toml" 2>/dev/null \
      || die 3 "MOET_PYTHON=$MOET_PYTHON is not the Python that pins.toml names"
    printf '%s\n' "$MOET_PYTHON"
    return
  fi
  for candidate in python3.11 python3 python; do
    if command -v "$candidate" >/dev/null && "$candidate" -c "$probe" "$MOET_ROOT/pins.toml" 2>/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  die 3 "no Python of the version in pins.toml ([python] cpu) on PATH; install it or set MOET_PYTHON"
}
