#!/usr/bin/env bash
# Writes a container engine's seccomp profile with the system calls added that mapped layers need:
#   scripts/seccomp-profile.sh [DEFAULT.json] >profile.json
# DEFAULT.json is the engine's own profile: podman's is at /usr/share/containers/seccomp.json (taken if none is named);
# docker's is compiled in, its source is profiles/seccomp/default.json of the engine's release. Needs only Python 3.
# Exit status: 0 done, 1 the profile cannot be read or is none, 2 usage.
set -euo pipefail
# shellcheck source=scripts/lib/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

main() {
  local python
  python="$(find_python)"
  exec "$python" "$MOET_ROOT/scripts/lib/seccomp_profile.py" "$@"
}

main "$@"
