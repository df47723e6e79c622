"""A mock world for tool loops: a few files in memory, and tools that read and write them; nothing else is touched."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from validation.core.answer import Call
from validation.core.casefile import Text

from .tools import Tool, schema_fault


class WorldTool(Tool):
    """A tool and what it does.

    Attributes:
        action: list (names of the files), read and write (``path``, ``content``), check (the JSON file ``path`` against
            ``accepts``), log (append the arguments to the file ``log``, a JSON list).
        accepts: JSON schema for check.
        log: file for log.
    """

    action: Literal["list", "read", "write", "check", "log"]
    accepts: dict[str, Any] = Field(default_factory=dict)
    log: Text = "log.json"


class World:
    """The files, and what the calls do to them."""

    def __init__(self, files: dict[str, str], tools: dict[str, WorldTool]) -> None:
        self.files, self.tools = dict(files), tools

    def call(self, call: Call) -> tuple[str, str | None]:
        """The result that the model gets, and what was wrong with the call, or None."""
        tool = self.tools.get(call.name)
        if tool is None:
            return _error(f"no tool {call.name}"), f"there is no tool {call.name!r}"
        try:
            arguments = json.loads(call.arguments)
        except ValueError:
            return _error("arguments are no JSON"), f"arguments of {call.name} are no JSON"
        if wrong := schema_fault(tool.parameters, arguments):
            return _error(wrong), f"arguments of {call.name} break its schema: {wrong}"
        return getattr(self, f"_{tool.action}")(tool, arguments), None

    def artefact(self, name: str) -> Any:
        """A file as JSON, or None where it is not there or is none."""
        try:
            return json.loads(self.files[name])
        except (KeyError, ValueError):
            return None

    def _list(self, tool: WorldTool, arguments: dict[str, Any]) -> str:
        return json.dumps(sorted(self.files))

    def _read(self, tool: WorldTool, arguments: dict[str, Any]) -> str:
        path = arguments["path"]
        return self.files[path] if path in self.files else _error(f"no file {path}")

    def _write(self, tool: WorldTool, arguments: dict[str, Any]) -> str:
        self.files[arguments["path"]] = arguments["content"]
        return json.dumps({"status": "ok", "characters": len(arguments["content"])})

    def _check(self, tool: WorldTool, arguments: dict[str, Any]) -> str:
        document = self.artefact(arguments["path"])
        if document is None:
            return _error(f"{arguments['path']} is not there or is no JSON")
        wrong = schema_fault(tool.accepts, document)
        return _error(wrong) if wrong else '{"valid": true}'

    def _log(self, tool: WorldTool, arguments: dict[str, Any]) -> str:
        kept = json.loads(self.files.get(tool.log, "[]"))
        self.files[tool.log] = json.dumps([*kept, arguments])
        return tool.returns


def _error(text: str) -> str:
    return json.dumps({"error": text})
