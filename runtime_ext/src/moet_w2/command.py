"""A recipe and a machine's overrides, rendered to the one command that serves them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import api_key, cache_root
from .config import LOAD_FORMAT, SYNTHETIC_FORMAT
from .errors import RecipeError
from .overrides import Overrides
from .recipe import Recipe

TEXT_OPTIONS = (
    "tokenizer-mode",
    "reasoning-parser",
    "tool-call-parser",
    "enable-auto-tool-choice",
    "default-chat-template-kwargs",
)
"""Options that need a tokenizer: a made-up model has none, and no text that could be parsed."""


@dataclass(frozen=True)
class Command:
    """A process to start.

    Attributes:
        argv: program and arguments.
        env: the variables to set on top of the environment that is there; never a secret.
        model_path: checkpoint folder, absolute.
        model: name under which it is served.
        host, port: where the API listens.
        audit_path: where the audit will stand, or None when W2 is off.
        load_format: how vLLM reads the checkpoint.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    model_path: Path
    model: str
    host: str
    port: int
    audit_path: Path | None
    load_format: str = "auto"

    @property
    def base_url(self) -> str:
        """URL of the API for a client on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def shell(self) -> str:
        """The command as it can be pasted into a shell: variables sorted, one option a line."""
        lines = [f"{name}={shlex.quote(self.env[name])}" for name in sorted(self.env)]
        program, verb, model, *options = self.argv
        lines.append(shlex.join((program, verb, model)))
        for word in options:
            if word.startswith("--"):
                lines.append(f"  {shlex.quote(word)}")
            else:
                lines[-1] += f" {shlex.quote(word)}"
        return "env " + " \\\n    ".join(lines)

    def document(self) -> dict[str, Any]:
        """The command as JSON-serialisable data."""
        return {
            "argv": list(self.argv),
            "environment": {name: self.env[name] for name in sorted(self.env)},
            "model_path": str(self.model_path),
            "model": self.model,
            "base_url": self.base_url,
            "audit_path": None if self.audit_path is None else str(self.audit_path),
        }


def render(recipe: Recipe, overrides: Overrides, stock: bool = False, program: str = "vllm") -> Command:
    """Render a recipe.

    Args:
        recipe: what to serve.
        overrides: what this machine changes.
        stock: serve with vLLM's own experts instead of W2, all else equal.
        program: the ``vllm`` executable.

    Raises:
        RecipeError: an override is malformed, or does not go with the recipe.
    """
    if not 0 < overrides.port < 65536:
        raise RecipeError(f"PORT={overrides.port} is out of range; use 1 to 65535")
    model_path = (overrides.model_path or recipe.model_path).absolute()
    model = overrides.served_model_name or recipe.model.served_name
    audit = overrides.audit_path or recipe.root / ".native" / "run" / recipe.name / "audit.json"
    audit_path = None if stock else audit.absolute()
    argv = [program, "serve", str(model_path), "--served-model-name", model]
    argv += ["--host", overrides.host, "--port", str(overrides.port)]
    if overrides.has_api_key:
        argv += ["--middleware", api_key.GUARD]
    if not stock:
        argv += ["--quantization", "moet_w2"]
    folders = {} if stock else cache_root.folders(recipe, overrides)
    engine = _engine(recipe, folders)
    for option, value in engine.items():
        argv += _option(option, value)
    env = dict(recipe.environment) | _w2_environment(recipe, audit_path) | folders
    env |= cache_root.jit_environment(recipe, overrides)
    if overrides.cuda_visible_devices is not None:
        env["CUDA_VISIBLE_DEVICES"] = overrides.cuda_visible_devices
    load_format = str(engine.get("load-format", "auto"))
    return Command(tuple(argv), env, model_path, model, overrides.host, overrides.port, audit_path, load_format)


def _engine(recipe: Recipe, folders: Mapping[str, str]) -> dict[str, Any]:
    """The recipe's options, and what follows from the rest of it."""
    engine = dict(recipe.engine)
    if recipe.model.synthetic:
        kept = {option: value for option, value in engine.items() if option not in TEXT_OPTIONS}
        return kept | {"load-format": SYNTHETIC_FORMAT, "skip-tokenizer-init": True}
    if folders:
        engine.setdefault("load-format", LOAD_FORMAT)
    return engine


def _option(option: str, value: Any) -> list[str]:
    """One engine option as arguments: booleans as --x or --no-x, mappings as JSON, lists as several words."""
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    if isinstance(value, dict):
        return [f"--{option}", json.dumps(value, separators=(",", ":"))]
    words = value if isinstance(value, list) else [value]
    return [f"--{option}", *(str(word) for word in words)]


def _w2_environment(recipe: Recipe, audit_path: Path | None) -> dict[str, str]:
    if audit_path is None:
        return {"VLLM_MOE_W2": "0"}
    w2 = recipe.w2
    env = {
        "VLLM_MOE_W2": "1",
        "VLLM_MOE_W2_MAPPED_AUDIT_PATH": str(audit_path),
        "VLLM_MOE_W2_PROFILE": recipe.name,
    }
    if w2.mapped_layers:
        env["VLLM_MOE_W2_MAPPED_LAYERS"] = ",".join(map(str, w2.mapped_layers))
    if w2.exclude_layers:
        env["VLLM_MOE_W2_DELTA_EXCLUDE_LAYERS"] = ",".join(map(str, w2.exclude_layers))
    if w2.correction.gb:
        env["VLLM_MOE_W2_DELTA_GB"] = str(w2.correction.gb)
        env["VLLM_MOE_W2_DELTA_POLICY"] = w2.correction.policy
        env["VLLM_MOE_W2_PREFILL_FP4"] = str(int(w2.correction.prefill_fp4))
    return env
