#!/usr/bin/env bash
# Carries everything that a host without a network needs: our vLLM wheel, our extension, every locked package, this tree.
#
#   scripts/offline-bundle.sh make OUT [--variant cuda|cpu] [--part-size SIZE]
#                             where there is a network: writes OUT/part-*, OUT/MANIFEST.json and OUT/install.pyz
#   scripts/offline-bundle.sh verify BUNDLE     read every part and compare it with the manifest
#   scripts/offline-bundle.sh install BUNDLE    on the host, in a tree of the bundle's revision: .native/venv-<variant>
#
# `make` prints the bundle's identity; `--identity HEX` lets verify and install refuse any other one.
# A host without the tree starts with `python3 BUNDLE/install.pyz FOLDER`, which unpacks it to FOLDER and installs there.
# SIZE is of one part, such as 62MB or 1GiB (default). Run the same command again after an interruption.
# Exit status: 0 done, 1 failed (the first bad part is named), 2 usage, 3 something is missing on this machine.
set -euo pipefail
# shellcheck source=scripts/lib/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

main() {
  local python
  python="$(find_python)"
  exec "$python" "$MOET_ROOT/scripts/lib/offline_bundle.py" "$@"
}

main "$@"
