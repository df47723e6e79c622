#!/usr/bin/env bash
# Builds the image of Containerfile and runs it, with docker or podman.
#   scripts/container.sh build [--print]
#   scripts/container.sh run CHECKPOINT CACHE [--port N] [--seccomp FILE] [--print] [-- SERVER OPTION...]
#
# CHECKPOINT and CACHE are folders of the host; CACHE (user 10001 writes there) keeps planes, pack and compiled kernels.
# --seccomp FILE is for machines with several NUMA nodes; scripts/seccomp-profile.sh writes it. --print shows the command
# and runs nothing. CONTAINER_ENGINE names the program; VLLM_API_KEY is handed on if it is set.
# Exit status: that of the engine; 1 a pin cannot be read, 2 usage, 3 there is no engine.
set -euo pipefail
# shellcheck source=scripts/lib/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

main() {
  local python
  python="$(find_python)"
  exec "$python" "$MOET_ROOT/scripts/lib/container.py" "$@"
}

main "$@"
