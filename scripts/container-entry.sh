#!/usr/bin/env bash
# Entry point of the image: `moet doctor` on the profile that is to be served, then the server in its place.
#   container-entry.sh [--profile 512k|300k] [OPTION...]     as scripts/serve-pro6000-ds4flash.sh takes them
# Exit status: 1 a check of the doctor failed (each is a line with its remedy), otherwise that of the server.
set -euo pipefail
# shellcheck source=scripts/lib/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
# shellcheck source=scripts/lib/serving.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/serving.sh"

main() {
  local profile=512k argument previous="" env
  local -a stock=()
  for argument in "$@"; do
    [[ "$previous" != --profile ]] || profile="$argument"
    case "$argument" in
      --profile=*) profile="${argument#*=}" ;;
      --stock) stock=(--stock) ;;
    esac
    previous="$argument"
  done
  env="$(serving_env cuda)"
  "$env/bin/moet" doctor --recipe "$MOET_ROOT/bench/recipes/pro6000-$profile.yaml" "${stock[@]}" || exit
  exec "$MOET_ROOT/scripts/serve-pro6000-ds4flash.sh" "$@"
}

main "$@"
