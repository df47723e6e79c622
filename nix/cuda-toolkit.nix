# The pinned CUDA compiler, out of NVIDIA's wheels: the very nvcc that kernels/MANIFEST.json names, whatever version
# nixpkgs has.
{ pkgs, pins, lib, pinned, ... }:
pkgs.runCommand "cuda-toolkit-${pins.cuda.compiler}"
  {
    nativeBuildInputs = [ pkgs.unzip pkgs.autoPatchelfHook ];
    buildInputs = [ pkgs.stdenv.cc.cc.lib ];
    wheels = map (name: pinned "cuda.toolkit.${name}") (builtins.attrNames pins.cuda.toolkit);
  }
  ''
    mkdir unpacked
    for wheel in $wheels; do unzip -q -o $wheel -d unpacked; done
    mv unpacked/nvidia/cu* $out
    chmod -R u+w,a+rX $out
    chmod +x $out/bin/* $out/nvvm/bin/*
    autoPatchelf $out
  ''
