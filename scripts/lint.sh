#!/usr/bin/env bash
# Lints what git tracks: ruff for Python, shellcheck for shell, a dry run of every recipe, and the results with the
# tables and charts that documents show of them.
# Exit status: 0 clean, 1 findings.
set -euo pipefail
# shellcheck source=scripts/lib/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

lint_python() {
  "$BIN/ruff" check .
}

lint_shell() {
  local -a files
  mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.sh' .ci/run)
  ((${#files[@]} > 0)) || die 1 "git lists no shell script"
  "$BIN/shellcheck" --external-sources "${files[@]}"
}

lint_recipes() {
  local recipe output
  for recipe in bench/recipes/*.yaml; do
    if ! output="$("$BIN/moet" serve --recipe "$recipe" --dry-run 2>&1)"; then
      die 1 "$recipe does not render: ${output##*$'\n'}"
    fi
  done
}

lint_bench() {
  "$BIN/python" bench/cli.py lint
  "$BIN/python" bench/cli.py render --check
}

lint_container() {
  scripts/run-python.sh scripts/lib/container_lint.py
}

main() {
  cd "$MOET_ROOT"
  BIN=.native/venv-cpu/bin
  [[ -x "$BIN/ruff" ]] || die 1 "$BIN has no ruff; run \`make setup\`"
  lint_python
  lint_shell
  lint_container
  lint_recipes
  lint_bench
  note "lint: clean"
}

main "$@"
