"""The launcher: each bad input ends in one line and exit code 2, and no server starts."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from recipe_text import MISSING, VALID, broken, write

from moet_w2 import checkpoint, cli, overrides, preflight, recipe, serve, served
from moet_w2.errors import CheckpointError, ConfigError
from moet_w2.geometry import LayerGeometry

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
RECIPES = SCRIPTS.parent / "bench" / "recipes"
GEOMETRY = LayerGeometry(64, 256, 128)
PYTHON = sys.executable


class Started(Exception):
    """Raised in place of becoming the server."""


@pytest.fixture
def launch(tmp_path, monkeypatch, capsys):
    """Runs the launcher on a valid recipe, checkpoint and environment, each of which a test may spoil."""
    for name in list(os.environ):
        if name.startswith("VLLM_") or name in (
            "MODEL_PATH",
            "SERVED_MODEL_NAME",
            "HOST",
            "W2_AUDIT_PATH",
            "CACHE_ROOT",
            "MOET_STORE_DIR",
            "MOET_PLANES_CACHE_DIR",
            "CUDA_VISIBLE_DEVICES",
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        monkeypatch.setenv("PORT", str(probe.getsockname()[1]))
    model = tmp_path / "models" / "tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / checkpoint.INDEX).write_text('{"weight_map": {}}')
    (model / "tokenizer.json").write_text('{"model": {}}')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "vllm").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setattr(checkpoint, "inspect", lambda path: checkpoint.CheckpointReport(path, 4, 0, GEOMETRY, 1, 1))
    started = []

    def become(program, argv, env):
        started.append((program, list(argv), dict(env)))
        raise Started

    monkeypatch.setattr(os, "execvpe", become)

    def run(*words, data=None):
        parser = argparse.ArgumentParser()
        serve.add_arguments(parser)
        path = write(tmp_path) if data is None else write(tmp_path, data)
        try:
            code = serve.run(parser.parse_args(["--recipe", str(path), *words]))
        except Started:
            code = None
        captured = capsys.readouterr()
        return argparse.Namespace(code=code, out=captured.out, err=captured.err, started=started)

    return run


def refused(result, *words):
    assert result.code == 2
    assert result.started == []
    assert result.out == ""
    assert result.err.startswith("moet: error: ")
    assert result.err.count("\n") == 1 and result.err.endswith("\n")
    for word in words:
        assert word in result.err


def test_starts_what_it_printed(launch, tmp_path):
    result = launch("--print", "json")
    (program, argv, env) = result.started[0]
    document = json.loads(result.out)
    assert argv == document["argv"] and program == argv[0] == str(tmp_path / "bin" / "vllm")
    assert {name: env[name] for name in document["environment"]} == document["environment"]
    assert env["PATH"] == os.environ["PATH"]
    assert result.err == ""


def test_every_problem_has_its_line(launch, monkeypatch, tmp_path):
    (tmp_path / "bin" / "vllm").unlink()
    monkeypatch.setenv("MODEL_PATH", str(tmp_path / "absent"))
    monkeypatch.setenv("VLLM_MOE_W2_MAPPED_LAYERS", "1")
    result = launch()
    assert result.code == 2 and result.started == []
    lines = result.err.splitlines()
    assert len(lines) == 3 and all(line.startswith("moet: error: ") for line in lines)
    for words in ("program: ", "checkpoint: model folder", "settings: VLLM_MOE_W2_MAPPED_LAYERS='1' contradicts"):
        assert sum(line.startswith(f"moet: error: {words}") for line in lines) == 1


def test_a_variable_that_cache_root_replaces_is_told(launch, monkeypatch, tmp_path):
    monkeypatch.setenv("SOME_WORDS", "a b")
    monkeypatch.setenv("CACHE_ROOT", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    result, served_with = launch(), str(tmp_path / "jit" / "triton")
    # torch, imported by other tests, may have set another of these variables.
    said = f"moet: note: TRITON_CACHE_DIR='/mine' is exported, {served_with!r} is served with"
    assert said in result.err.splitlines() and "SOME_WORDS" not in result.err
    assert result.started[0][2]["TRITON_CACHE_DIR"] == served_with


def test_refuses_a_variable_that_contradicts_the_recipe_s_environment(launch, monkeypatch):
    monkeypatch.setenv("SOME_THREADS", "3")
    result = launch()
    assert result.code == 2 and result.started == [] and result.out == ""
    said = "SOME_THREADS='3' contradicts the recipe's '2'; unset it or change the recipe"
    assert result.err == f"moet: error: settings: {said}\n"  # and no word of what would be served with
    assert "would be refused by: settings; why: " in launch("--dry-run").err
    monkeypatch.setenv("SOME_THREADS", "2")
    assert launch().err == ""


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.yaml")))
def test_what_a_gpu_site_exports_contradicts_no_recipe(name):
    """bench/gpu_site.py writes it into env.sh, which is sourced before `moet serve`."""
    text = (RECIPES.parent / "gpu_site.py").read_text()
    given = recipe.load(RECIPES / f"{name}.yaml").environment
    for variable, value in re.findall(r"\b(VLLM_\w+)=(\w+)", text):
        assert given.get(variable, value) == value


def test_leaves_a_note_for_the_validation(launch, tmp_path):
    launch()
    entry = served.read(tmp_path)
    loaded = recipe.load(tmp_path / "bench" / "recipes" / "tiny.yaml")
    assert (entry.recipe, entry.recipe_sha256) == (str(loaded.file), loaded.digest)
    assert entry.base_url == f"http://127.0.0.1:{os.environ['PORT']}"
    assert entry.audit_path == str(tmp_path / ".native" / "run" / "tiny" / "audit.json")
    assert entry.pid == os.getpid()


def test_note_of_another_version_is_refused(tmp_path):
    assert served.read(tmp_path) is None
    served.note(tmp_path).parent.mkdir(parents=True)
    served.note(tmp_path).write_text('{"recipe": "x"}')
    with pytest.raises(ConfigError, match="remove it and start the server again"):
        served.read(tmp_path)


def test_dry_run_prints_and_starts_nothing(launch, tmp_path):
    result = launch("--dry-run")
    assert (result.code, result.err, result.started) == (0, "", [])
    assert f"{tmp_path}/bin/vllm serve {tmp_path}/models/tiny " in result.out
    assert not (tmp_path / ".native").exists()


@pytest.mark.parametrize("stock", [[], ["--stock"]])
def test_dry_run_names_the_checks_that_would_refuse_the_start(launch, tmp_path, monkeypatch, stock):
    """It prints all the same, with status 0; the start itself is refused by just these."""
    shutil.rmtree(tmp_path / "models")
    (tmp_path / "bin" / "vllm").unlink()
    with socket.create_server(("127.0.0.1", int(os.environ["PORT"]))):
        result = launch("--dry-run", "--root", str(tmp_path), *stock)
        start = launch("--root", str(tmp_path), *stock)
    assert (result.code, result.started) == (0, [])
    assert f"{tmp_path}/bin/vllm serve {tmp_path}/models/tiny " in result.out
    file = tmp_path / "bench" / "recipes" / "tiny.yaml"
    ask = " ".join(["moet doctor --recipe", str(file), "--root", str(tmp_path), *stock])
    assert result.err == f"moet: note: this start would be refused by: checkpoint, port, program; why: {ask}\n"
    assert not (tmp_path / ".native").exists()
    assert start.code == 2 and start.started == []
    refusals = [line.split(": ")[2].split()[0] for line in start.err.splitlines() if "moet: error: " in line]
    assert refusals == ["checkpoint", "port", "program"]


def test_the_remedy_of_a_dry_run_is_a_command_that_says_why(launch, tmp_path, capsys):
    shutil.rmtree(tmp_path / "models")
    words = shlex.split(launch("--dry-run").err.rpartition("; why: ")[2])
    assert words[0] == "moet" and cli.main(words[1:]) == 1
    report = capsys.readouterr().out
    assert re.search(r"^fail .* checkpoint +model\b", report, re.M) and "not fit to serve" in report


def test_variables_override_the_recipe(launch, monkeypatch, tmp_path):
    values = {
        "MODEL_PATH": str(tmp_path),
        "SERVED_MODEL_NAME": "renamed",
        "HOST": "127.0.0.2",
        "PORT": "8123",
        "CUDA_VISIBLE_DEVICES": "1",
        "W2_AUDIT_PATH": str(tmp_path / "a.json"),
        "CACHE_ROOT": str(tmp_path / "cache"),
        "MOET_PLANES_CACHE_DIR": str(tmp_path / "planes"),
        "MOET_STORE_DIR": str(tmp_path / "store"),
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    document = json.loads(launch("--dry-run", "--print", "json").out)
    assert (document["model_path"], document["model"]) == (str(tmp_path), "renamed")
    assert document["base_url"] == "http://127.0.0.2:8123"
    assert document["audit_path"] == values["W2_AUDIT_PATH"]
    assert document["environment"]["TRITON_CACHE_DIR"] == str(tmp_path / "cache" / "jit" / "triton")
    assert document["environment"]["VLLM_MOE_W2_PLANES_CACHE"] == values["MOET_PLANES_CACHE_DIR"]
    assert document["environment"]["VLLM_MOE_W2_STORE_DIR"] == values["MOET_STORE_DIR"]
    assert document["environment"]["CUDA_VISIBLE_DEVICES"] == "1"
    assert document["argv"][-2:] == ["--load-format", "moet"]
    assert not (tmp_path / "planes").exists()


def test_key_reaches_the_server_and_no_output(launch, monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_API_KEY", "secret-word")
    result = launch("--print", "json")
    assert result.started[0][2]["VLLM_API_KEY"] == "secret-word"
    assert "--middleware moet_w2.api_guard.Guard" in " ".join(result.started[0][1])
    assert "secret-word" not in result.out + result.err + served.note(tmp_path).read_text()


def test_key_of_a_file_reaches_the_server_and_no_output(launch, tmp_path):
    file = tmp_path / "key"
    file.write_text("secret-word\n")
    file.chmod(0o640)
    result = launch("--print", "json", "--api-key-file", str(file))
    program, argv, env = result.started[0]
    assert env["VLLM_API_KEY"] == "secret-word"
    assert "--middleware moet_w2.api_guard.Guard" in " ".join(argv)
    assert "secret-word" not in result.out + result.err + served.note(tmp_path).read_text() + " ".join(argv)


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("", 0o600, "is empty; write the key into it"),
        ("hidden one\n", 0o600, "is not one line of printable ASCII"),
        ("hidden\none", 0o600, "is not one line of printable ASCII"),
        ("hidden\u00e9", 0o600, "is not one line of printable ASCII"),
        ("hidden", 0o644, "can be read by everybody; chmod o-r"),
        (None, 0o600, "cannot be read (No such file or directory)"),
    ],
)
def test_refuses_a_key_file_without_a_usable_key(launch, tmp_path, text, mode, words):
    file = tmp_path / "key"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    result = launch("--api-key-file", str(file))
    refused(result, f"--api-key-file={file} ", words)
    assert "hidden" not in result.err


def test_refuses_two_keys(launch, monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_API_KEY", "hidden")
    result = launch("--api-key-file", str(tmp_path / "key"))
    refused(result, "and VLLM_API_KEY are both given; use one")
    assert "hidden" not in result.err


def test_a_model_without_weights_is_held_against_its_config(launch, tmp_path, monkeypatch):
    data = broken("model/synthetic", True)
    monkeypatch.setattr(checkpoint, "inspect", None)
    report = checkpoint.CheckpointReport(tmp_path, 1, 0, GEOMETRY, 0, 0)
    monkeypatch.setattr(checkpoint, "describe", lambda path: report)
    monkeypatch.setattr(checkpoint, "read_config", lambda path: {"n_mtp_layers": 3})
    assert "moet_synthetic" in launch(data=data).started[0][1]
    monkeypatch.setattr(checkpoint, "read_config", lambda path: {"n_mtp_layers": 4})
    other = launch(data=data)
    assert other.code == 2 and "1 target layers and 4 draft layers" in other.err


def test_open_host_without_a_key_is_noted(launch, monkeypatch):
    monkeypatch.setenv("HOST", "0.0.0.0")
    result = launch()
    assert result.started and result.err.startswith("moet: note: port: ") and "without a key" in result.err
    monkeypatch.setenv("VLLM_API_KEY", "k")
    assert launch().err == ""


def test_stock_starts_without_w2(launch):
    _, argv, env = launch("--stock").started[0]
    assert "moet_w2" not in argv and env["VLLM_MOE_W2"] == "0"


@pytest.mark.parametrize("text, named", [(None, "missing"), ("x", "cannot be read as JSON"), ("{}", "has no model")])
def test_refuses_a_checkpoint_without_a_tokenizer(launch, tmp_path, text, named):
    path = tmp_path / "models" / "tiny" / "tokenizer.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    refused(launch(), "tokenizer.json", named)


def test_the_audit_of_a_running_server_is_not_taken_away(launch, tmp_path):
    audit = tmp_path / ".native" / "run" / "tiny" / "audit.json"
    audit.parent.mkdir(parents=True)
    with subprocess.Popen([PYTHON, "-c", "input()", "vllm"], stdin=subprocess.PIPE) as running:
        audit.write_text(json.dumps({"schema": "moet.audit", "pid": running.pid}))
        refused(launch(), f"is that of a running server (process {running.pid})", "W2_AUDIT_PATH")
        assert audit.exists()
        running.kill()
    assert launch().started and not audit.exists()


def test_old_audit_is_taken_away(launch, tmp_path):
    audit = tmp_path / ".native" / "run" / "tiny" / "audit.json"
    audit.parent.mkdir(parents=True)
    audit.write_text('{"schema": "moet.audit", "schema_version": 1}')
    assert launch().started
    assert not audit.exists()


@pytest.mark.parametrize("text", ["{}", "[]", "[1]", "notes of mine", '"moet.audit"'])
def test_a_file_that_is_no_audit_is_not_taken_away(launch, monkeypatch, tmp_path, text):
    (kept := tmp_path / "notes.json").write_text(text)
    monkeypatch.setenv("W2_AUDIT_PATH", str(kept))
    refused(launch(), f"{kept} is no audit, and a start would replace it; set W2_AUDIT_PATH to another file")
    assert kept.read_text() == text
    kept.write_text("")
    assert launch().started and not kept.exists()


def test_refuses_a_recipe_with_a_mistake(launch):
    refused(launch(data=broken("expect/w2_layers", MISSING)), "tiny.yaml", "expect.w2_layers is missing")


def test_refuses_a_layer_key_named_twice(launch):
    refused(launch(data=broken("w2/mapped_layers", [2, 2])), "layer key 2 is named twice")


def test_refuses_a_layer_key_the_checkpoint_lacks(launch, monkeypatch):
    monkeypatch.setattr(checkpoint, "inspect", lambda path: checkpoint.CheckpointReport(path, 3, 0, GEOMETRY, 1, 1))
    refused(launch(), "layer key 3 is out of range", "target layers 0..2")


def test_refuses_too_little_lockable_memory(launch, monkeypatch):
    scarce = [preflight.Available("a test", 1000, "add memory")]
    monkeypatch.setattr(preflight, "limits", lambda *_: scarce)
    refused(launch(), "moet: error: a test: 1000 bytes left", "add memory")


def test_refuses_correction_without_a_store(launch, monkeypatch):
    monkeypatch.setenv("VLLM_MOE_W2_DELTA_GB", "1")
    refused(launch(), "VLLM_MOE_W2_DELTA_GB=1 needs VLLM_MOE_W2_STORE_DIR; name a folder")


@pytest.mark.parametrize("size", ["1", "auto"])
def test_exported_correction_takes_the_launchers_store(launch, monkeypatch, tmp_path, size):
    monkeypatch.setenv("VLLM_MOE_W2_DELTA_GB", size)
    monkeypatch.setenv("MOET_STORE_DIR", str(tmp_path / "store"))
    env = launch().started[0][2]
    assert (env["VLLM_MOE_W2_DELTA_GB"], env["VLLM_MOE_W2_STORE_DIR"]) == (size, str(tmp_path / "store"))


def test_a_recipes_correction_takes_an_exported_store(launch, monkeypatch, tmp_path):
    data = broken("w2/correction/gb", 1)
    data["engine"]["load-format"] = "moet"
    monkeypatch.setenv("VLLM_MOE_W2_STORE_DIR", str(tmp_path / "store"))
    assert launch(data=data).started[0][2]["VLLM_MOE_W2_DELTA_GB"] == "1"


@pytest.mark.parametrize("name", ["VLLM_MOE_W2_STORE_DIR", "VLLM_MOE_W2_PLANES_CACHE"])
def test_folders_may_be_named_as_the_server_knows_them(launch, monkeypatch, tmp_path, name):
    monkeypatch.setenv(name, str(tmp_path / "mine"))
    _, argv, env = launch().started[0]
    assert env[name] == str(tmp_path / "mine") and argv[-2:] == ["--load-format", "moet"]
    refused_later = launch("--stock")
    assert refused_later.code == 2 and f"{name}={tmp_path}/mine needs --load-format moet, not auto" in refused_later.err


@pytest.mark.parametrize(
    ("variable", "setting"),
    [("MOET_STORE_DIR", "VLLM_MOE_W2_STORE_DIR"), ("MOET_PLANES_CACHE_DIR", "VLLM_MOE_W2_PLANES_CACHE")],
)
def test_folders_are_made_and_what_is_no_folder_is_refused(launch, monkeypatch, tmp_path, variable, setting):
    monkeypatch.setenv(variable, str(tmp_path / "new" / "folder"))
    assert launch().started[0][2][setting] == str(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder").is_dir()
    monkeypatch.setenv(setting, "/another")
    refused_later = launch()
    assert refused_later.code == 2 and f"{setting}='/another' contradicts" in refused_later.err
    assert f"{variable} names the folder" in refused_later.err
    monkeypatch.delenv(setting)
    (tmp_path / "file").touch()
    monkeypatch.setenv(variable, str(tmp_path / "file"))
    refused_last = launch()
    assert refused_last.code == 2 and f"{tmp_path}/file is no folder; set {variable} or CACHE_ROOT" in refused_last.err


def test_what_an_earlier_start_told_is_taken_away(launch, tmp_path):
    old = tmp_path / ".native" / "run" / "tiny"
    old.mkdir(parents=True)
    for name in ("audit.json", "audit.startup.json"):
        (old / name).write_text('{"schema": "moet.audit"}')
    assert launch().started
    assert list(old.iterdir()) == []


def test_refuses_a_file_in_place_of_the_model_folder(launch, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MODEL_PATH", str(tmp_path / "file"))
    refused(launch(), "file is no folder")


@pytest.mark.parametrize(("target", "drafts"), [(5, 0), (4, 3)])
def test_refuses_a_checkpoint_of_another_depth(launch, monkeypatch, target, drafts):
    report = checkpoint.CheckpointReport(Path("there"), target, drafts, GEOMETRY, 1, 1)
    monkeypatch.setattr(checkpoint, "inspect", lambda path: report)
    refused(launch(), "expect.w2_layers = 4", f"{target} target layers and {drafts} draft layers")


def test_draft_layers_count_only_where_they_are_served(launch, monkeypatch):
    report = checkpoint.CheckpointReport(Path("there"), 4, 3, GEOMETRY, 1, 1)
    monkeypatch.setattr(checkpoint, "inspect", lambda path: report)
    assert launch(data=broken("engine/speculative-config", MISSING)).started


def test_refuses_a_checkpoint_of_another_geometry(launch, monkeypatch):
    other = checkpoint.CheckpointReport(Path("there"), 4, 0, LayerGeometry(64, 256, 256), 1, 1)
    monkeypatch.setattr(checkpoint, "inspect", lambda path: other)
    refused(launch(), "tiny.yaml: model.geometry has width = 128, but there has width = 256; set MODEL_PATH")


def test_refuses_a_missing_model_folder(launch, tmp_path, monkeypatch):
    monkeypatch.setenv("MODEL_PATH", str(tmp_path / "absent"))
    refused(launch(), f"model folder {tmp_path}/absent does not exist", "set MODEL_PATH")


def test_refuses_what_the_checkpoint_check_refuses(launch, monkeypatch):
    def refuse(path):
        raise CheckpointError("layers.0.ffn.experts.1.w1.weight: missing")

    monkeypatch.setattr(checkpoint, "inspect", refuse)
    refused(launch(), "layers.0.ffn.experts.1.w1.weight: missing")


def test_refuses_an_unknown_setting_with_the_nearest_known(launch, monkeypatch):
    monkeypatch.setenv("VLLM_MOE_W2_MAPED_LAYERS", "2")
    refused(launch(), "VLLM_MOE_W2_MAPED_LAYERS='2'", "did you mean VLLM_MOE_W2_MAPPED_LAYERS?")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("MOET_PLANE_CACHE_DIR", "MOET_PLANES_CACHE_DIR"),
        ("MOET_STORE_DIRS", "MOET_STORE_DIR"),
        ("W2_AUDIT_FILE_PATH", "W2_AUDIT_PATH"),
    ],
)
def test_refuses_a_misspelt_variable_of_the_launcher(launch, monkeypatch, name, near):
    monkeypatch.setenv(name, "/x")
    refused(launch("--dry-run"), f"{name} is not a variable of the launcher: did you mean {near}? Otherwise unset it")


@pytest.mark.parametrize("name", ["MODEL_PATH", "CACHE_ROOT", "MOET_STORE_DIR"])
def test_refuses_a_path_that_no_shell_has_expanded(launch, monkeypatch, name):
    monkeypatch.setenv(name, "~/models")
    refused(launch("--dry-run"), f"{name}='~/models' begins with a ~", "write the whole path")


def test_variables_of_the_scripts_are_none_of_its_business(launch, monkeypatch):
    for name in (*overrides.SCRIPT_VARIABLES, "MOET_SOMETHING_ELSE"):
        monkeypatch.setenv(name, "x")
    assert launch("--dry-run").code == 0
    text = "".join(path.read_text() for path in SCRIPTS.rglob("*.sh"))
    assert set(overrides.SCRIPT_VARIABLES) <= set(re.findall(r"\bMOET_[A-Z_]+", text))


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("VLLM_MOE_W2", "0", "use --stock"),
        ("VLLM_MOE_W2_MAPPED_LAYERS", "1", "unset it or change the recipe"),
        ("VLLM_MOE_W2_MAPPED_AUDIT_PATH", "/x", "set W2_AUDIT_PATH"),
    ],
)
def test_refuses_a_setting_that_contradicts_the_recipe(launch, monkeypatch, name, value, remedy):
    monkeypatch.setenv(name, value)
    refused(launch(), f"{name}={value!r} contradicts the recipe's", remedy)
    assert "is served with" not in launch().err


def test_refuses_a_port_in_use(launch):
    with socket.create_server(("127.0.0.1", int(os.environ["PORT"]))):
        refused(launch(), f"port {os.environ['PORT']} on 127.0.0.1 is in use", "set PORT")
    assert launch().started


@pytest.mark.parametrize("port", ["http", "0", "65536", "-1"])
def test_refuses_what_is_no_port(launch, monkeypatch, port):
    monkeypatch.setenv("PORT", port)
    refused(launch(), f"PORT={port}" if port in ("0", "65536") else f"PORT='{port}'", "1 to 65535")


@pytest.mark.parametrize(("host", "words"), [("x" * 64, "is not an address"), ("192.0.2.1", "cannot listen")])
def test_refuses_a_host_that_is_not_here(launch, monkeypatch, host, words):
    monkeypatch.setenv("HOST", host)
    refused(launch(), host, words)


def test_refuses_an_audit_path_that_cannot_be_written(launch, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("W2_AUDIT_PATH", str(tmp_path / "file" / "audit.json"))
    refused(launch(), "moet: error: audit: ", "cannot be written", "set W2_AUDIT_PATH")


def test_refuses_an_environment_without_the_server(launch, tmp_path):
    (tmp_path / "bin" / "vllm").unlink()
    refused(launch(), "bin/vllm does not exist", "with: make setup")
    cuda = launch(data={**VALID, "device": {"kind": "cuda"}})
    assert cuda.code == 2 and "with: scripts/build-native.sh cuda\n" in cuda.err
