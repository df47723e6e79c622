# The git repositories that vLLM's CMake files would fetch: file that names it -> folder in the store. DeepGEMM is the
# flake's input and is held to pins.toml; the others come from there (cmake_sources). A commit is its own hash. A tag is
# not, and needs `hash` beside it in pins.toml: where there is none, the build stops at the first such source and says
# which hash it has got.
{ pkgs, pins, lib, deepgemm, fetchGit, ... }:
let
  isCommit = revision: builtins.match "[0-9a-f]{40}" revision != null;
  fetch =
    pin:
    if isCommit pin.revision then
      fetchGit {
        url = pin.repository;
        rev = pin.revision;
        allRefs = true;
        submodules = true;
      }
    else
      pkgs.fetchgit {
        url = pin.repository;
        rev = "refs/tags/${pin.revision}";
        hash = pin.hash or lib.fakeHash;
        fetchSubmodules = true;
      };
  held =
    if (deepgemm.rev or pins.deepgemm.revision) == pins.deepgemm.revision then
      deepgemm
    else
      throw "input deepgemm is at ${deepgemm.rev}, pins.toml wants ${pins.deepgemm.revision}; run python3 nix/lock.py";
in
{ "cmake/external_projects/deepgemm.cmake" = held; }
// lib.mapAttrs' (_name: pin: { name = pin.file; value = fetch pin; }) pins.cmake_sources
