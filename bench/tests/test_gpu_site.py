"""The extension without an installer: commands, caches and patches."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import gpu_site

from moet_w2.cache_root import JIT_CACHES


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """A vLLM of which only the patched files lie there."""
    import vllm

    source = Path(vllm.__file__).parent.parent
    for file in (gpu_site.ROOT / "patch" / "FILES.txt").read_text().split():
        if (source / file).is_file():
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / file, tmp_path / file)
    for file in sorted((gpu_site.ROOT / "patch" / "series").glob("*.patch"), reverse=True):
        gpu_site._try(tmp_path, file, "--reverse")
    return tmp_path


@pytest.mark.parametrize("tool", ["patch", "git"])
def test_patches_are_applied_once(unpacked, tool, monkeypatch) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool} here")
    which = shutil.which
    monkeypatch.setattr(gpu_site.shutil, "which", lambda name: which(name) if name == tool else None)
    # git looks for a repository of its own above the folder.
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(unpacked.parent))
    series = [file.name for file in sorted((gpu_site.ROOT / "patch" / "series").glob("*.patch"))]
    assert gpu_site.patch(unpacked) == series
    assert gpu_site.patch(unpacked) == []
    changed = unpacked / "vllm" / "models" / "deepseek_v4" / "cpu" / "cpu_mla.py"
    changed.write_text("something else\n")
    with pytest.raises(SystemExit, match="01-cpu-swa-tile-keys.patch does not apply"):
        gpu_site.patch(unpacked)


def test_commands_run_beside_their_interpreter(tmp_path: Path) -> None:
    site = gpu_site.make(tmp_path / "a site")
    script = f". '{site}/env.sh'; moet --help >/dev/null && python3 -c 'import sys; print(sys.executable)'"
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CACHE_ROOT")}
    done = subprocess.run(["sh", "-c", script], env=kept, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == f"{site}/bin/python3", done.stderr
    assert (site / "bin" / "vllm").stat().st_mode & 0o111


def test_every_compilers_cache_lies_where_the_launcher_puts_it(tmp_path: Path) -> None:
    text = gpu_site.environment(tmp_path)
    for cache in JIT_CACHES:
        assert f'export {cache.variable}="$CACHE_ROOT/jit/{cache.folder}"' in text
