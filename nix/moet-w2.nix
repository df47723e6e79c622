# The extension: its wheel ($out/dist) and what the wheel installs, importable from $out/lib. The cubins in it are the
# committed ones, which `packages.kernels` proves. revision.json in its dist-info tells what it was built from:
#   importlib.metadata.distribution("moet-w2").read_text("revision.json")
{ pkgs, python, revision, source, ... }:
let
  project = (builtins.fromTOML (builtins.readFile ../runtime_ext/pyproject.toml)).project;
in
pkgs.runCommand "moet-w2-${project.version}"
  {
    nativeBuildInputs = [ (python.withPackages (packages: [ packages.setuptools ])) ];
    tree = source "moet-w2" [
      "kernels/MANIFEST.json" "kernels/cubins" "nix/build_extension.py" "pins.toml" "runtime_ext/pyproject.toml"
      "runtime_ext/src"
    ];
    revision = builtins.toJSON { inherit (revision) dirty; revision = revision.id; };
    site = "lib/python${python.pythonVersion}/site-packages";
    passthru = { inherit (project) version; };
  }
  ''
    cp -r $tree tree
    chmod -R u+w tree
    python3 -B tree/nix/build_extension.py tree/runtime_ext $out/dist $out/$site "$revision"
  ''
