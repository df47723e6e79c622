# `nix run .#doctor`: what this machine lacks to serve a recipe.
{ pkgs, moet, revision, ... }:
pkgs.writeShellApplication {
  name = "moet-doctor";
  text = ''
    echo 'moet: built from ${revision.text}' >&2
    exec ${moet}/bin/moet doctor "$@"
  '';
}
