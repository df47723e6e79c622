{
  description = "A stand-in for the part of nixpkgs that this repository's flake uses, made of the host's own tools";
  outputs = _inputs: { lib = import ./lib.nix; };
}
