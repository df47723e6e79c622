"""Which tests run in one process: the root's conftest.py."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("sharing_out", ROOT / "conftest.py")
sharing = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sharing)


def test_files_that_start_servers_share_a_group_and_others_do_not() -> None:
    server, other = "validation/tests/test_demo_server.py", "bench/tests/test_facts.py"
    assert (sharing.group(server), sharing.group(other)) == (sharing.SERVER_GROUP, other)


def test_the_marker_stands_on_whole_files() -> None:
    """On a single test it would be overlooked."""
    on_one = re.compile(r"^\s*@pytest\.mark\.server", re.MULTILINE)
    files = list(ROOT.glob("*/tests/test_*.py"))
    assert len(files) > 50 and [str(path) for path in files if on_one.search(path.read_text())] == []


@pytest.mark.parametrize(("ahead", "processes"), [(True, 1), (False, 0)])
def test_other_tests_wait_for_servers(tmp_path: Path, ahead: bool, processes: int) -> None:
    """Where several processes run them; who runs a test alone gets it at once."""
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = server\n")
    for name, first, nice in (("a_server", "pytestmark = pytest.mark.server", 0), ("other", "", sharing.NICE * ahead)):
        body = f"def test_it():\n    assert os.getpriority(os.PRIO_PROCESS, 0) == {nice}\n"
        (tmp_path / f"test_{name}.py").write_text(f"import os\nimport pytest\n{first}\n\n{body}")
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(processes), "--rootdir", str(tmp_path), str(tmp_path)]
    # This test itself may be one that waits.
    start = f"import os; os.setpriority(os.PRIO_PROCESS, 0, 0); os.execv({sys.executable!r}, {command!r})"
    done = subprocess.run([sys.executable, "-c", start], cwd=tmp_path, capture_output=True, text=True)
    if "PermissionError" in done.stderr:
        pytest.skip("only root may take back that a test waits")
    assert done.returncode == 0, done.stdout
