"""Tables between markers and charts are what the results give, and nothing else."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import bench_samples as samples
import pytest
from runner import plots, render, served, tables
from runner.fault import BenchError
from runner.library import Library, Result

DOCUMENT = "# Title\n\n<!-- bench:profiles -->\nold\n<!-- /bench:profiles -->\n\ntext\n"


@pytest.fixture
def library(tmp_path: Path) -> Library:
    documents = [
        samples.served("h200-resident", (), 120.0),
        samples.served(),
        samples.served("h200-512k", (42, 43, 44, 45), 80.0),
    ]
    library = samples.checkout(tmp_path, *documents)
    (tmp_path / "README.md").write_text(DOCUMENT)
    render.write(library)
    return Library(tmp_path)


def test_this_checkout_is_rendered() -> None:
    assert [str(finding) for finding in render.check(Library(samples.ROOT))] == []


def test_what_was_written_is_what_is_checked(library: Library) -> None:
    assert render.check(library) == [] and render.write(library) == []
    text = (library.root / "README.md").read_text()
    assert text.startswith("# Title\n\n<!-- bench:profiles -->\n| ") and text.endswith("-->\n\ntext\n")


def test_a_table_edited_by_hand_is_caught(library: Library) -> None:
    path = library.root / "README.md"
    assert "| 90.0 |" in path.read_text()
    path.write_text(path.read_text().replace("| 90.0 |", "| 99.0 |"))
    (found,) = render.check(library)
    assert found.fault and "README.md: line" in str(found) and "not what the results give" in str(found)
    assert render.write(library) == [Path("README.md")] and render.check(library) == []


def test_another_result_needs_another_table(library: Library) -> None:
    document = samples.served(rate=91.0)
    samples.store(library.root, samples.facts.sealed(document), "serving_1.json")
    assert [finding.where for finding in render.check(Library(library.root))] == [
        "README.md",
        "bench/plots/decode_mapped.svg",
    ]


def test_a_chart_edited_missing_or_of_no_result_is_caught(library: Library) -> None:
    charts = library.root / plots.FOLDER
    assert {path.stem for path in charts.iterdir()} == {"decode_mapped", "kv_mapped", "startup"}
    (charts / "startup.svg").write_text("<svg/>")
    (charts / "kv_mapped.svg").unlink()
    (charts / "other.svg").write_text("<svg/>")
    found = " ".join(map(str, render.check(library)))
    for said in ("startup.svg: line 1", "kv_mapped.svg: is missing", "other.svg: is drawn from no result"):
        assert said in found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!-- bench:peers -->\n", "the marker of 'peers' has no partner"),
        ("<!-- /bench:peers -->\n", "the marker of 'peers' has no partner"),
        ("<!-- bench:moods -->\n<!-- /bench:moods -->\n", "no table 'moods'"),
    ],
)
def test_a_marker_that_means_nothing_is_named(library: Library, text: str, said: str) -> None:
    (library.root / "README.md").write_text(text)
    with pytest.raises(BenchError, match=said):
        render.check(library)


def test_parts_of_a_result_stay_apart(library: Library) -> None:
    lines = tables.profiles(library, str)
    cells = {line.split(" | ")[0].removeprefix("| "): line.removesuffix(" |").split(" | ")[-3:] for line in lines}
    assert cells["mapped layers"] == ["0", "3", "4"]
    assert cells["configured admission, tokens"] == ["300,000"] * 3
    assert cells["KV capacity as the server reports it, tokens"] == ["100,000", "400,000", "500,000"]
    assert cells["longest prompt exercised, tokens"] == ["250,000; failed at 300,000"] * 3
    assert cells["longest uncached prompt timed, tokens"] == ["250,000"] * 3
    assert cells["its prompt over that time, client, tokens/s"] == ["5,000"] * 3
    assert cells["prompt tokens/s in the server's log"] == ["3,000.0"] * 3
    assert cells["its prefix-cache hits, server"] == ["0%"] * 3
    assert cells["prefix-cache hits of a prompt sent again, server"] == ["99%"] * 3
    assert cells["decode 1x, client, tokens/s"] == ["120.0", "90.0", "80.0"]
    assert cells["decode 4x, client, tokens/s"] == ["240.0", "180.0", "160.0"]
    assert cells["power while decoding 4x, NVML, W"] == ["412"] * 3
    assert cells["card's memory held to, GiB"] == ["95"] * 3
    assert cells["the server's part of it once ready, at most, nvidia-smi, GiB"] == ["94.00"] * 3
    assert cells["decode 1x that the planner of that commit expected, tokens/s"] == ["99.0"] * 3
    first = "| the original system, 300k | the original system, 512k | [h200-resident](bench/results/serving_0.json)"
    assert first in lines[0] and "| 378,490 | 901,924 |" in "\n".join(lines)


def test_what_a_cpu_served_stands_in_a_table_of_its_own(tmp_path: Path) -> None:
    document = samples.served("demo-cpu", (2, 3), 55.5)
    document["provenance"]["hardware"] = samples.HARDWARE | {"gpu": None, "cores": 2}
    document["exercised"]["longest_prompt_tokens"] = 300000
    del document["phases"]["prefill_300000"], document["held"], document["own_gpu_memory_mib"]
    for each in document["phases"].values():
        each["gpu"] = None
    library = samples.checkout(tmp_path, document)
    assert tables.profiles(library, str)[-1] == "Ours: Not measured yet."
    lines = tables.demo(library, str)
    assert lines[0].endswith("| [demo-cpu](bench/results/serving_0.json) |")
    assert "| decode 1x, client, tokens/s | 55.5 |" in lines and not any("NVML" in line for line in lines)
    assert "| longest prompt exercised, tokens | 300,000 |" in lines
    assert "| longest uncached prompt timed, tokens | 250,000 |" in lines


def test_a_phase_that_failed_stands_out(tmp_path: Path) -> None:
    document = samples.served()
    document["phases"]["decode_4x1024"] = {"error": "RuntimeError: the server broke off", "phase_seconds": 1.0}
    document["phases"]["prefill_270000"] = {"error": "RuntimeError: the server broke off", "phase_seconds": 1.0}
    lines = tables.profiles(samples.checkout(tmp_path, document), str)
    assert any(line.startswith("| decode 4x, client") and line.endswith(" | failed |") for line in lines)
    assert any(line.endswith("| 250,000; failed at 270,000 |") for line in lines)


def test_where_nothing_was_measured_the_text_says_so(tmp_path: Path) -> None:
    library = samples.checkout(tmp_path)
    assert tables.profiles(library, str)[-1] == "Ours: Not measured yet."
    assert tables.peers(library, str) == tables.startup(library, str) == ["Not measured yet."]
    assert all(chart.draw(library) is None for chart in plots.CHARTS.values())
    assert "![" not in "".join(tables.charts(library, str)) and "not measured yet" in tables.charts(library, str)[0]


def test_a_run_that_failed_is_in_no_table(tmp_path: Path) -> None:
    library = samples.checkout(tmp_path, samples.served() | {"error": "RuntimeError: died"})
    assert tables.startup(library, str) == ["Not measured yet."]


def peers(sides: dict[str, float]) -> dict:
    rates = {name: {"requests": {"1": {"decode_tokens_per_s": rate}}} for name, rate in sides.items()}
    return {"provenance": samples.PROVENANCE, "benchmark": "decode_rate", "layers": 8, "sides": rates}


def test_peers_are_ratios_to_stock(tmp_path: Path) -> None:
    sides = {"stock": 200.0, "stock-4-offloaded": 50.0, "ours-0-mapped": 250.0, "ours-4-mapped": 120.0}
    library = samples.checkout(tmp_path, peers(sides))
    assert tables.peers(library, str)[2:-2] == [
        "| experts | 1x, tokens/s | 1x, over stock |",
        "| --- | --- | --- |",
        "| stock MXFP4, in VRAM | 200.0 | 1.00 |",
        "| stock MXFP4, 4 layers offloaded by UVA | 50.0 | 0.25 |",
        "| ours, in VRAM | 250.0 | 1.25 |",
        "| ours, 4 layers mapped | 120.0 | 0.60 |",
    ]
    assert tables.peers(library, str)[-1] == "llama.cpp: not measured yet."
    assert plots.CHARTS["peers"].draw(library).count("<polyline") == 2


def test_llama_cpp_stands_beside_the_same_layers_on_the_same_machine(tmp_path: Path) -> None:
    sides = {"stock": 200.0, "stock-4-offloaded": 50.0, "ours-4-mapped": 120.0}
    older = samples.checkout(tmp_path / "older", peers({"stock": 200.0}), peers(sides))
    assert [line for line in tables.peers(older, str) if "not measured" in line] == ["llama.cpp: not measured yet."]
    llama = peers({"llama-0-on-cpu": 100.0, "llama-4-on-cpu": 10.0}) | {"benchmark": "llama_rate"}
    library = samples.checkout(tmp_path, peers(sides), llama, llama | {"layers": 4})
    lines = tables.peers(library, str)
    assert lines[0].endswith("[serving_1.json](bench/results/serving_1.json)")
    assert lines[-2:] == [
        "| llama.cpp, MXFP4, in VRAM | 100.0 | 0.50 |",
        "| llama.cpp, MXFP4, 4 layers computed by the CPU | 10.0 | 0.05 |",
    ]


def test_a_line_through_one_point_is_not_drawn(tmp_path: Path) -> None:
    library = samples.checkout(tmp_path, peers({"stock": 200.0, "ours-0-mapped": 250.0}))
    assert plots.CHARTS["peers"].draw(library) is None
    said = "stock with its experts offloaded, ours mapped, llama.cpp: not measured yet."
    assert tables.peers(library, str)[-1] == said


def test_charts_are_svg_with_a_point_for_each_value(library: Library) -> None:
    for name, points in {"decode_mapped": 6, "kv_mapped": 3}.items():
        drawn = ElementTree.fromstring(plots.CHARTS[name].draw(library))
        assert len(drawn.findall("{http://www.w3.org/2000/svg}circle")) == points
    bars = plots.CHARTS["startup"].draw(library)
    assert bars.count("<rect") == 1 + 3 * 3 and "imports, engine, API 40.0 s" in bars


def test_the_phases_of_a_start_add_up_to_it() -> None:
    one = served.Served(Result(Path("x"), samples.served()))
    assert one.start() == [("planes", 15.0), ("graphs", 25.0), ("imports, engine, API", 40.0)]
    assert one.longest_prefill()["client"]["prompt_tokens"] == 250000
    assert served.prefix_hit_rate(one.document["phases"]["repeated_32768"]) == pytest.approx(32512 / 32768)


def test_only_what_git_knows_counts(tmp_path: Path) -> None:
    import subprocess

    samples.checkout(tmp_path, samples.served())
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    assert Library(tmp_path).results == []
    subprocess.run([*git, "add", "bench/results/serving_0.json"], check=True)
    assert [result.path.name for result in Library(tmp_path).results] == ["serving_0.json"]
