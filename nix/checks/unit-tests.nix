# Unit tests that need neither torch nor vLLM nor a network nor a repository, with nothing but these packages to
# import. The whole suite is `make test`.
{ pkgs, python, pinned, source, ... }:
pkgs.runCommand "check-unit-tests"
  {
    nativeBuildInputs = [
      (python.withPackages (packages: [
        packages.hypothesis
        packages.jsonschema
        packages.numpy
        packages.nvidia-ml-py
        packages.pydantic
        packages.pytest
        packages.pytest-timeout
        packages.pyyaml
      ]))
      pkgs.git
    ];
    tree = source "moet-tests" [
      "bench" "demo/CARD.md" "demo/results" "kernels" "patch" "pins.toml" "pytest.ini" "runtime_ext" "scripts"
      "validation"
    ];
    tests = [
      "runtime_ext/tests/test_geometry.py"
      "runtime_ext/tests/test_command.py"
      "runtime_ext/tests/test_config.py"
      "runtime_ext/tests/test_placement.py"
      "runtime_ext/tests/test_planner_calibrate.py"
      "runtime_ext/tests/test_planner_speed.py"
      "runtime_ext/tests/test_policy.py"
      "runtime_ext/tests/test_recipe.py"
      "runtime_ext/tests/test_topology.py"
      "scripts/tests/test_build_archive.py"
      "scripts/tests/test_service_unit.py"
      "scripts/tests/test_test_names.py"
    ];
  }
  ''
    cp -r $tree tree
    chmod -R u+w tree
    cd tree
    PYTHONPATH=runtime_ext/src python3 -B -m pytest -q -x --noconftest -p no:cacheprovider $tests | tee $out
  ''
