"""The suites by name, and where their committed recordings lie."""

from __future__ import annotations

from pathlib import Path

from validation.suites.agentic import Agentic
from validation.suites.decode import Decode
from validation.suites.needle import Needle
from validation.suites.reasoning import Reasoning
from validation.suites.tools import Tools

SUITES = {suite.name: suite for suite in (Reasoning(), Tools(), Needle(), Agentic(), Decode())}
FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
