"""The pinned vLLM accepts every option that a committed recipe renders, and reads from it what was meant."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from server_support import REPOSITORY, clean_environment

from moet_w2 import command, recipe

PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(json.loads(sys.argv[1]))
names = ("model_tag", "served_model_name", "host", "port", "quantization", "max_model_len", "enforce_eager")
print(json.dumps({name: getattr(parsed, name) for name in names}))
"""
RECIPES = sorted((REPOSITORY / "bench" / "recipes").glob("*.yaml"))


def parse(argv: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", PARSE, json.dumps(argv[2:])]
    return subprocess.run(words, capture_output=True, text=True, env=clean_environment())


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_recipe_is_read_as_meant(path):
    loaded = recipe.load(path)
    rendered = command.render(loaded, command.Overrides(port=8123))
    done = parse(rendered.argv)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "model_tag": str(rendered.model_path),
        "served_model_name": [loaded.model.served_name],
        "host": "127.0.0.1",
        "port": 8123,
        "quantization": "moet_w2",
        "max_model_len": loaded.expect.max_model_len,
        "enforce_eager": loaded.engine.get("enforce-eager", False),
    }


def test_an_option_that_vllm_lacks_is_found():
    rendered = command.render(recipe.load(RECIPES[0]), command.Overrides())
    done = parse((*rendered.argv, "--max-model-length-of-nothing", "1"))
    assert done.returncode == 2 and "unrecognized arguments" in done.stderr
