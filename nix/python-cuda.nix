# The environment of the cuda variant without vLLM: every wheel of requirements/cuda.lock, installed as
# `scripts/build-native.sh cuda` installs it. The lock has hashes and no addresses, so pip asks PyPI for each by name,
# and Nix accepts the file of that sha256 only.
{ pkgs, lib, python, pinned, ... }:
let
  fields = builtins.match "([A-Za-z0-9._-]+)==([^ ]+) --hash=sha256:([0-9a-f]{64})";
  lines = lib.filter (line: line != "" && lib.substring 0 1 line != "#") (
    lib.splitString "\n" (builtins.readFile ../requirements/cuda.lock)
  );
  wheel =
    line:
    let
      found = fields line;
      name = builtins.elemAt found 0;
      version = builtins.elemAt found 1;
    in
    if found == null then
      throw "requirements/cuda.lock: not NAME==VERSION --hash=sha256:HASH: ${line}"
    else
      pkgs.runCommand "${name}-${version}.whl"
        {
          nativeBuildInputs = [ python pkgs.cacert ];
          outputHashMode = "flat";
          outputHashAlgo = "sha256";
          outputHash = builtins.elemAt found 2;
        }
        ''
          export HOME=$TMPDIR PYTHONPATH=${pinned "tools.pip"}
          python3 -m pip download --no-deps --only-binary :all: --dest . '${name}==${version}'
          mv ./*.whl $out
        '';
in
pkgs.runCommand "moet-python-cuda"
  {
    nativeBuildInputs = [ python pkgs.autoPatchelfHook ];
    buildInputs = [ pkgs.stdenv.cc.cc.lib pkgs.zlib pkgs.numactl ];
    autoPatchelfIgnoreMissingDeps = [ "*" ]; # libcuda comes with the driver; MPI and others are optional parts
    wheels = map wheel lines;
  }
  ''
    python3 -m venv --without-pip $out
    PYTHONPATH=${pinned "tools.pip"} $out/bin/python3 -B ${./install_wheels.py} $wheels
    autoPatchelf $out
  ''
