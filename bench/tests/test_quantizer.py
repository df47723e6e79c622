import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import facts
import quantizer

from moet_w2.geometry import LayerGeometry

SMALL = LayerGeometry(experts=1, hidden=256, width=128)


def test_rates_and_ratio_belong_to_one_run() -> None:
    result = quantizer.measure(3, SMALL)
    assert result["bytes_in"] == 3 * 256 * 128 * (1 / 2 + 1 / 32)
    assert result["quantize_gb_per_s"] > 0 and result["copy_gb_per_s"] > 0
    ratio = result["quantize_gb_per_s"] / result["copy_gb_per_s"]
    assert abs(result["ratio_to_copy"] - ratio) < 1e-9


def test_a_result_file_says_where_it_came_from(tmp_path: Path) -> None:
    facts.write(tmp_path / "results" / "one.json", {"benchmark": "quantizer"})
    document = json.loads((tmp_path / "results" / "one.json").read_text())
    provenance = document["provenance"]
    assert document["benchmark"] == "quantizer"
    assert provenance["hardware"]["cores"] >= 1 and provenance["versions"]["torch"]
    assert provenance["command"].startswith("python ")


def test_the_command_is_kept_without_the_place_it_wrote_to() -> None:
    assert facts._arguments(["--layers", "4", "--out", "/a/b.json", "--quick"]) == ["--layers", "4", "--quick"]
    assert facts._arguments(["--out=/a/b.json", "x"]) == ["x"]
