# `nix run .#validate`: every check of a recipe against a running server. Name the recipe (--recipe) and the server
# (--base-url), as `--help` says.
{ pkgs, moet, revision, source, ... }:
pkgs.writeShellApplication {
  name = "moet-validate";
  text = ''
    echo 'moet: built from ${revision.text}' >&2
    export PYTHONPATH=${source "moet-validation" [ "bench/recipes" "validation" ]}
    exec ${moet}/bin/python3 -B -m validation.smoke "$@"
  '';
}
