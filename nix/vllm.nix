# vLLM itself, compiled for the pinned GPU architecture: a wheel made of packages.vllm-source by vLLM's own setup.py
# and CMake files, with the pinned CMake and PyTorch and nixpkgs' CUDA toolkit of the pinned version. Nothing is
# fetched while it builds: each repository is a copy in the store (cmake-sources.nix).
{ pkgs, pins, lib, pinned, source, cmake-sources, vllm-source, python-cuda, ... }:
let
  release = lib.concatStringsSep "_" (lib.take 2 (lib.splitString "." pins.cuda.compiler));
  cudaPackages = pkgs."cudaPackages_${release}";
  found = cudaPackages.cuda_nvcc.version;
  toolkit =
    if found == pins.cuda.compiler then
      cudaPackages.cudatoolkit
    else
      throw "nixpkgs has nvcc ${found}, pins.toml wants ${pins.cuda.compiler}; pin a nixpkgs that has it";
in
pkgs.runCommand "vllm-${pins.vllm.version}-${pins.project.revision}"
  {
    nativeBuildInputs = [ pkgs.stdenv.cc pkgs.git ];
    tree = source "moet-cmake" [ "nix/cmake_environment.py" "pins.toml" "scripts/lib" ];
    sources = map (file: "${file}=${cmake-sources.${file}}") (builtins.attrNames cmake-sources);
    CUDA_HOME = toolkit;
    TORCH_CUDA_ARCH_LIST = pins.cuda.arch;
    VLLM_TARGET_DEVICE = "cuda";
    VLLM_VERSION_OVERRIDE = "${pins.vllm.version}+${pins.project.revision}.cuda";
    VLLM_SKIP_VERSION_SUFFIX = "1";
  }
  ''
    cp -r ${vllm-source} source
    chmod -R u+w source
    export HOME=$TMPDIR MAX_JOBS=$NIX_BUILD_CORES PATH=${python-cuda}/bin:$CUDA_HOME/bin:$PATH
    python3 -B $tree/nix/cmake_environment.py source fetched $sources >exports
    source exports
    PYTHONPATH=${pinned "tools.pip"} python3 -m pip wheel \
      --no-deps --no-build-isolation --no-index --wheel-dir $out ./source
  ''
