#!/usr/bin/env bash
# Serves DeepSeek-V4-Flash-0731 on one 96 GB card, in the foreground, until Ctrl-C or SIGTERM:
#   MODEL_PATH=/path/to/DeepSeek-V4-Flash-0731 scripts/serve-pro6000-ds4flash.sh [--profile 512k|300k] [OPTION...]
# Profiles are bench/recipes/pro6000-*.yaml: 512k (default) takes up to 524,288 tokens, 300k is faster.
# Options go to `moet serve`: --dry-run prints the command and starts nothing, --api-key-file FILE asks clients for a key,
# --stock serves vLLM's own experts. Variables: MODEL_PATH, SERVED_MODEL_NAME, HOST (default 127.0.0.1), PORT,
# CUDA_VISIBLE_DEVICES, CACHE_ROOT and the others that `--help` lists; MOET_ENV (default .native/venv-cuda).
# The first start fills the caches below CACHE_ROOT (~/.cache/moet); `moet doctor` says what room they need.
# Exit status: 2 bad input or a failed check (each is one line), otherwise that of the server.
set -euo pipefail
# shellcheck source=scripts/lib/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
# shellcheck source=scripts/lib/serving.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/serving.sh"

PROFILES=(512k 300k)

# recipe_of PROFILE: prints the recipe's file.
recipe_of() {
  local profile
  for profile in "${PROFILES[@]}"; do
    if [[ "$1" == "$profile" ]]; then
      printf '%s\n' "$MOET_ROOT/bench/recipes/pro6000-$profile.yaml"
      return
    fi
  done
  die 2 "--profile '$1' is not a profile; use one of: ${PROFILES[*]}"
}

main() {
  local profile="${PROFILES[0]}" recipe env
  local -a rest=()
  while (($# > 0)); do
    case "$1" in
      --profile)
        (($# > 1)) || die 2 "--profile needs a value; use one of: ${PROFILES[*]}"
        profile="$2"
        shift
        ;;
      --profile=*) profile="${1#*=}" ;;
      --recipe | --recipe=*) die 2 "$1 is not for this script: choose a --profile, or call \`moet serve\` itself" ;;
      -h | --help)
        usage
        printf '\n'
        # Without an environment there is no `moet serve` to ask; that is no error of who asks for help.
        (serving_env cuda >/dev/null 2>&1) || {
          printf '%s\n' "The options of \`moet serve\` are shown here once there is an environment: ${SETUP[cuda]}"
          return
        }
        rest=(--help)
        break
        ;;
      *) rest+=("$1") ;;
    esac
    shift
  done
  recipe="$(recipe_of "$profile")"
  env="$(serving_env cuda)" || exit 2
  exec "$env/bin/moet" serve --recipe "$recipe" "${rest[@]}"
}

main "$@"
