# Part of this repository as a store path of its own: `source "name" [ "patch" "pins.toml" ]` has these files and
# folders and nothing else, so a change elsewhere builds nothing again.
name: parts:
let
  root = toString ../.;
  below = path: folder: path == folder || builtins.substring 0 (builtins.stringLength folder + 1) path == "${folder}/";
  named = path: builtins.any (part: below path "${root}/${part}" || below "${root}/${part}" path) parts;
  left = path: builtins.elem (baseNameOf path) [ "__pycache__" ".pytest_cache" ".hypothesis" "build" "dist" ];
in
builtins.path {
  inherit name;
  path = ../.;
  filter = path: _type: named path && !left path;
}
