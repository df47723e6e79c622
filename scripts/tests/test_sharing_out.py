"""Which tests run in one process: the root's conftest.py."""

import importlib.util
import re
from pathlib import Path

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
