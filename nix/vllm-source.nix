# The source of vLLM that everything is built from: the pinned archive with our generated patch, applied by the code
# that `scripts/build-native.sh cuda-native` applies it with. Each patched file is held to patch/FILES.txt.
{ pkgs, pins, python, pinned, source, ... }:
pkgs.runCommand "vllm-source-${pins.vllm.version}-${pins.project.revision}"
  {
    nativeBuildInputs = [ python pkgs.git ];
    tree = source "moet-patch" (
      [ "nix/patched_source.py" "patch/FILES.txt" "patch/vllm-moet-v${pins.vllm.version}.patch" "pins.toml" ]
      ++ map (name: "scripts/lib/${name}.py") [ "archive" "build_errors" "fetch" "ledger" "pins" "repack" ]
    );
    archive = pinned "vllm.sdist";
  }
  ''
    python3 -B $tree/nix/patched_source.py $archive $out
  ''
