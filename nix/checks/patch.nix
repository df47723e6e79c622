# Patch identity: what lies in patch/ is what the series and the pinned archive generate.
{ pkgs, pins, python, pinned, source, ... }:
pkgs.runCommand "check-patch"
  {
    nativeBuildInputs = [ python pkgs.git ];
    tree = source "moet-patch" [ "patch" "pins.toml" "scripts/lib" ];
    archive = pinned "vllm.sdist";
  }
  ''
    export XDG_CACHE_HOME=$TMPDIR/cache
    mkdir -p $XDG_CACHE_HOME/moet/downloads
    ln -s $archive $XDG_CACHE_HOME/moet/downloads/${pins.vllm.sdist.filename}
    python3 -B $tree/patch/tool.py --check | tee $out
  ''
