# `nix run .#serve`: the launcher of this repository with the environment of packages.default. The note of what is
# served goes below the folder it is started in.
{ pkgs, moet, revision, source, ... }:
pkgs.writeShellApplication {
  name = "moet-serve";
  text = ''
    echo 'moet: built from ${revision.text}' >&2
    export MOET_ENV=${moet}
    exec ${pkgs.runtimeShell} ${
      source "moet-launcher" [ "bench/recipes" "pins.toml" "scripts" ]
    }/scripts/serve-pro6000-ds4flash.sh --root "$PWD" "$@"
  '';
}
