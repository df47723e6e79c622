#!/usr/bin/env bash
# Removes .native/. Refuses while the demo server that runs from it is alive.
# Exit status: 0 removed, 1 a server is running.
set -euo pipefail
# shellcheck source=scripts/lib/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

main() {
  cd "$MOET_ROOT"
  local pid_file=.native/run/demo/server.pid pid
  if [[ -f "$pid_file" ]]; then
    pid="$(<"$pid_file")"
    if [[ "$pid" =~ ^[0-9]+$ ]] && kill -0 "$pid" 2>/dev/null; then
      die 1 "the demo server runs from .native (process $pid); stop it with scripts/serve-demo.sh --stop"
    fi
  fi
  rm -rf .native
  note "clean: removed .native; downloads stay in the cache folder"
}

main "$@"
