# vLLM itself, compiled for the pinned GPU architecture: a wheel made of packages.vllm-source by vLLM's own setup.py
# and CMake files. What those would fetch is given to them instead: DeepGEMM by the flake's input, the others by the
# revisions in pins.toml (cuda.sources).
{ pkgs, pins, lib, deepgemm, fetchGit, pinned, vllm-source, python-cuda, ... }:
let
  release = lib.concatStringsSep "_" (lib.take 2 (lib.splitString "." pins.cuda.compiler));
  cudaPackages = pkgs."cudaPackages_${release}";
  found = cudaPackages.cuda_nvcc.version;
  toolkit =
    if found == pins.cuda.compiler then
      cudaPackages.cudatoolkit
    else
      throw "nixpkgs has nvcc ${found}, pins.toml wants ${pins.cuda.compiler}; pin a nixpkgs that has it";
  checked =
    if (deepgemm.rev or pins.deepgemm.revision) == pins.deepgemm.revision then
      deepgemm
    else
      throw "input deepgemm is at ${deepgemm.rev}, pins.toml wants ${pins.deepgemm.revision}; run python3 nix/lock.py";
  fetched = lib.mapAttrs' (_name: pin: {
    name = pin.override;
    value = fetchGit {
      url = pin.repository;
      rev = pin.revision;
      allRefs = true;
      submodules = true;
    };
  }) (pins.cuda.sources or { });
in
pkgs.runCommand "vllm-${pins.vllm.version}-${pins.project.revision}"
  (
    fetched
    // {
      nativeBuildInputs = [ pkgs.stdenv.cc pkgs.git ];
      DEEPGEMM_SRC_DIR = checked;
      CUDA_HOME = toolkit;
      TORCH_CUDA_ARCH_LIST = pins.cuda.arch;
      VLLM_TARGET_DEVICE = "cuda";
      VLLM_VERSION_OVERRIDE = "${pins.vllm.version}+${pins.project.revision}.cuda";
      VLLM_SKIP_VERSION_SUFFIX = "1";
    }
  )
  ''
    cp -r ${vllm-source} source
    chmod -R u+w source
    export HOME=$TMPDIR MAX_JOBS=$NIX_BUILD_CORES PATH=${python-cuda}/bin:$CUDA_HOME/bin:$PATH
    PYTHONPATH=${pinned "tools.pip"} python3 -m pip wheel \
      --no-deps --no-build-isolation --no-index --wheel-dir $out ./source
  ''
