"""The demo on a processor without AVX512: the limit is imposed on torch, oneDNN, ATen and vLLM's choice of kernels."""

from __future__ import annotations

import json

import pytest
from conftest import running

pytestmark = pytest.mark.server


def test_avx2_serves_and_validates(tmp_path):
    with running(tmp_path, VLLM_MOE_W2_CPU_ISA="avx2") as server:
        assert "Using V2 Model Runner" in server.log
        done = server.script("validate-api.sh", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["passed"] is True
