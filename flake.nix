{
  description = "DeepSeek-V4-Flash on one 96 GB GPU: patched vLLM, the extension moet_w2 and its kernels";

  # Revisions stand in flake.lock, which is written from pins.toml (nix/lock.py).
  inputs = {
    nixpkgs.url = "github:NixOS/nixpkgs/nixos-25.11";
    deepgemm = {
      url = "git+https://github.com/vllm-project/DeepGEMM.git?submodules=1";
      flake = false;
    };
  };

  outputs = inputs: import ./nix inputs;
}
