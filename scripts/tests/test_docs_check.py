"""`make docs-check`: the documents of this tree hold, and each kind of mistake in a document is found."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

import docs_check
import docs_commands
import docs_facts
import docs_figures
import docs_links
import docs_messages
import docs_numbers
import docs_programs
import docs_quotes
import docs_settings
import docs_source
import docs_words
import pytest
from docs_quotes import Quote
from docs_source import ROOT, Document

GATES = (docs_links, docs_commands, docs_numbers, docs_messages)


def found(text: str, name: str = "README.md", *, gate: object) -> list[str]:
    """What one gate says of a document's text, without places."""
    faults = list(gate.faults(Document(name, text)))
    assert all(fault.path == name and 1 <= fault.line <= text.count("\n") + 1 for fault in faults)
    return [fault.text for fault in faults]


def test_the_documents_of_this_tree_hold() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "lib" / "docs_check.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "clean" in done.stdout and not done.stderr


def test_a_fault_is_status_1_and_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    broken = Document("docs/x.md", "See [it](gone.md).\n")
    monkeypatch.setattr(docs_check, "documents", lambda: [broken])
    assert docs_check.main([]) == 1
    assert capsys.readouterr().err == "docs/x.md:1: link to gone.md: docs/gone.md is not in the tree\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("See\n[it](docs/gone.md).", "docs/gone.md is not in the tree"),
        ("![it](docs/figures/gone.svg)", "docs/figures/gone.svg is not in the tree"),
        ("[here](#nowhere)\n\n# Somewhere", "README.md has no heading for #nowhere"),
        ("[there](docs/dsml.md#nowhere)", "docs/dsml.md has no heading for #nowhere"),
        ("[built](.native/venv-cpu)", ".native/venv-cpu is not in the tree"),
        ("in `runtime_ext/src/moet_w2/gone.py`", "is no file or folder of the tree"),
        ("in `gone_too.py`", "`gone_too.py` is no file of the tree"),
        ("in `suites/NAME.sh`", "`suites/NAME.sh` is no file or folder of the tree"),
        ("in `bench/recipes/gone-*.yaml`", "is no file or folder of the tree"),
        ("set `VLLM_MOE_W2_MAPED_LAYERS=1`", "`VLLM_MOE_W2_MAPED_LAYERS` is no variable"),
        ("give `--gpu-memory-utilisation`", "`--gpu-memory-utilisation` is no option"),
    ],
)
def test_a_thing_that_is_not_there_is_found(text: str, fault: str) -> None:
    (told,) = found(text, gate=docs_links)
    assert fault in told


def test_things_that_are_there_pass() -> None:
    text = """# Some `code` here

[a](docs/dsml.md#how-it-reads) [b](#some-code-here) [c](https://example.org/x.md) `planner/costs.py` `moet_w2/kernels/`
`bench/recipes/pro6000-*.yaml` `MOET_STORE_DIR=/x` `--kv-cache-dtype` `--recipe FILE` `chat/completions` `audit.json`
`bench/recipes/NAME.yaml`
"""
    assert found(text, gate=docs_links) == []


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        ("make nothing", "nothing is no verb of the Makefile"),
        ("make serve-demo NOT_A_VARIABLE=1", "NOT_A_VARIABLE is no variable"),
        ("moet serve --recipe a.yaml --dry", "unrecognized arguments: --dry"),
        ("moet cache verify", "the following arguments are required"),
        ("moet serve --recipe bench/recipes/gone.yaml --dry-run", "bench/recipes/gone.yaml is not in the tree"),
        ("PORT=99999 moet serve --recipe bench/recipes/demo-cpu.yaml --dry-run", "PORT=99999 is out of range"),
        ("moet plan --context 0", "ends with status"),
        ("scripts/gone.sh", "scripts/gone.sh is not in the tree"),
        ("scripts/build-native.sh cuda --fast", "unrecognized arguments: --fast"),
        ("scripts/build-native.sh gpu", "invalid choice: 'gpu'"),
        ("scripts/serve-pro6000-ds4flash.sh --profil 512k", "unrecognized arguments: --profil 512k"),
        ("scripts/validate-api.sh --recipes x", "unrecognized arguments: --recipes x"),
        ("scripts/serve-pro6000-ds4flash.sh fast", "unrecognized arguments: fast"),
        ("scripts/serve-demo.sh --background --fast", "unrecognized arguments: --fast"),
        ("scripts/container.sh start", "invalid choice: 'start'"),
        ("scripts/clean.sh --all", "scripts/clean.sh takes no --all"),
        ("python bench/kernels.py fast", "invalid choice: 'fast'"),
        ("bench/kernels.py speed", "is not executable; write python before it"),
        ("python bench/gone.py", "bench/gone.py is not in the tree"),
        ("python -m pytest gone_tests", "gone_tests is not in the tree"),
        ("python -m demo.make.train --out x --epochs 3", "unrecognized arguments"),
        ("git status && make nothing", "nothing is no verb"),
        ("cd $(make nowhere)", "nowhere is no verb"),
        ("python3 scripts/lib/pins.py fetch x", "scripts/lib/pins.py knows no fetch"),
        ("make help | bench/none.sh", "bench/none.sh is not in the tree"),
        ("MOET_STORE_DRI=/x make demo", "MOET_STORE_DRI is no variable"),
        ("make demo 'unclosed", "bash cannot parse the block"),
        ("mkae demo", "begins with no known program, and is no drawing"),
    ],
)
def test_a_wrong_command_is_found(block: str, fault: str) -> None:
    for text in (f"Say:\n\n    {block}\n", f"```sh\n{block}\n```\n"):
        if block.startswith("mkae") and text.startswith("```"):
            continue
        assert any(fault in told for told in found(text, gate=docs_commands)), text


def test_a_wrong_command_in_a_sentence_is_found() -> None:
    assert "invalid choice: 'verfy'" in found("use `moet cache ls|verfy`", gate=docs_commands)[0]
    assert found("use `moet cache ls|verify`, `moet audit check FILE --recipe FILE`", gate=docs_commands) == []


def test_a_program_that_nobody_knows_is_found_beside_one_that_is() -> None:
    assert "is no program of this tree" in found("    make help\n    frobnicate x\n", gate=docs_commands)[0]


def test_commands_with_continuations_comments_and_redirections_pass() -> None:
    text = """Say:

    # what it does
    MODEL_PATH=/path/to/checkpoint moet serve \\
      --recipe bench/recipes/demo-cpu.yaml --dry-run >command.txt    # prints
    curl -s http://127.0.0.1:8000/metrics | grep moet_ && make help

and a drawing:

    one --> two
"""
    assert found(text, gate=docs_commands) == []


def test_words_of_a_shell_script_are_those_of_its_cases() -> None:
    script = """case "$1" in
      build | run) "$@" ;;
      --port) port="$2" ;;
      --quick | --now) now=1 ;;
      --) break ;;  # -- OPTION
    esac
    """

    def left(words: str) -> list[str]:
        return list(docs_programs._not_its_own(script, words.split()))

    assert left("run a b --port 1 --quick -- --anything") == left("build --now") == []
    assert left("start") == ["start"] and left("run --prot 1") == ["--prot"] and left("--quick 1") == ["1"]


def test_scripts_that_serve_name_the_recipe_that_is_said() -> None:
    for script, recipe in docs_programs.SERVING.items():
        text = (ROOT / "scripts" / script).read_text()
        assert Path(recipe).name in text or "pro6000-$profile.yaml" in text and "512k" in text


def numbers(
    text: str, quotes: tuple[Quote, ...], monkeypatch: pytest.MonkeyPatch, name: str = "README.md"
) -> list[str]:
    monkeypatch.setattr(docs_quotes, "QUOTES", quotes)
    return found(text, name, gate=docs_numbers)


def test_a_number_beside_a_result_must_be_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "It took 12\nsteps ([result](bench/results/kernels_h200.json))."
    for name in ("README.md", "docs/other.md"):
        assert "no quote accounts for '12'" in numbers(text, (), monkeypatch, name)[0]
        assert len(numbers(f"{text}\n\n| a | b |\n| --- | --- |\n| 13 | x |", (), monkeypatch, name)) == 2
        assert len(numbers(f"{text}\n\nIn 14 parts:\n\n| 13 | x |", (), monkeypatch, name)) == 1
    quote = Quote("README.md", "profiles", lambda _: "It took 12 steps")
    assert numbers(text, (quote,), monkeypatch) == []
    assert numbers(text, (quote,), monkeypatch, "docs/other.md")  # it is another document's


def test_a_number_with_a_unit_must_be_quoted_in_the_front_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("It takes 3 s.", "1.5 GiB/s", "7,247 bytes", "up to 98.4% of it", "128 tokens"):
        assert len(numbers(text, (), monkeypatch)) == 1, text
        assert numbers(text, (), monkeypatch, "docs/other.md") == []
    for text in ("sm_90a, FP4, H200, e4m3", "`--slots 12 GiB`", "in 2026, part 3", "DeepSeek-V4-Flash-0731"):
        assert numbers(text, (), monkeypatch) == [], text


def test_words_that_the_result_no_longer_gives_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    result = docs_facts.content("kernels_h200.json")
    quote = Quote("HOW-IT-WORKS.md", "kernels_h200.json", docs_words.kernel_rows)
    text = "| | |\n| --- | --- |\n" + "\n".join(quote.words())
    assert numbers(text, (quote,), monkeypatch, "HOW-IT-WORKS.md") == []
    slower = [entry | {"microseconds": {name: 1.5 * us for name, us in entry["microseconds"].items()}}
              for entry in result["tokens"]]  # fmt: skip
    monkeypatch.setattr(docs_quotes, "content", lambda _: result | {"tokens": slower})
    told = numbers(text, (quote,), monkeypatch, "HOW-IT-WORKS.md")
    lost = [line for line in told if line.endswith("which is what kernels_h200.json gives")]
    assert len(lost) == len(quote.words()) and len(told) > len(lost)  # and the old numbers have no source


def test_every_quote_belongs_to_a_document_and_every_exception_to_a_test() -> None:
    assert {quote.document for quote in docs_quotes.QUOTES} <= {each.name for each in docs_source.documents()}
    for document, test in docs_numbers.HELD_ELSEWHERE.items():
        assert docs_links.exists(document) and Path(document).name in (ROOT / test).read_text()


def test_what_bench_renders_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a\n\n<!-- bench:x -->\n12 GiB [r](bench/results/a.json)\n<!-- /bench:x -->\n\n13 GiB"
    (told,) = numbers(text, (), monkeypatch)
    assert "no quote accounts for '13 GiB'" in told
    assert [fault.line for fault in docs_numbers.faults(Document("README.md", text))] == [7]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("is not a setting of moet_w2: did you mean", True),
        ("mapped layers need ... bytes of locked host memory", True),
        ("free at ..., ... to be written", True),
        ("bytes of locked host memory ... mapped layers need", False),
        ("Engine core initialization failed", True),
        ("something that no program says", False),
        ("...", False),
    ],
)
def test_messages_are_those_of_the_code(message: str, said: bool) -> None:
    assert docs_messages.said(message) is said
    text = f"## Troubleshooting by message\n\n### One\n\n| message | x |\n| --- | --- |\n| `{message}` | do |\n"
    told = found(text, "BUILD-AND-RUN.md", gate=docs_messages)
    assert told == ([] if said else [f"no code says `{message}`"])


def test_a_document_without_its_messages_is_found() -> None:
    assert "no messages are quoted" in found("# Build\n", "BUILD-AND-RUN.md", gate=docs_messages)[0]


def test_tables_of_settings_are_complete() -> None:
    whole = (ROOT / "README.md").read_text()
    assert list(docs_settings.faults([Document("README.md", whole)])) == []
    row = next(line for line in whole.splitlines() if line.startswith("| `VLLM_MOE_W2_TRACE`"))

    def told(text: str) -> list[str]:
        return [fault.text for fault in docs_settings.faults([Document("README.md", text)])]

    assert told(whole.replace(row + "\n", "")) == ["VLLM_MOE_W2_TRACE is missing from this table"]
    assert told(whole.replace(row, f"{row}\n{row}")) == ["VLLM_MOE_W2_TRACE stands in this table twice"]
    assert told(whole.replace(row, row + "\n| `VLLM_MOE_W2_X` | x |"))[0].startswith("VLLM_MOE_W2_X is none of the")
    assert "there is no table" in told("# nothing")[0]


def test_figures_are_those_that_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(docs_figures.faults()) == []
    monkeypatch.setattr(docs_figures, "PROFILE", "bench/recipes/pro6000-300k.yaml")
    assert [fault.path for fault in docs_figures.faults()] == ["docs/figures/memory-map.svg"]


def test_every_folder_of_tests_is_told_of() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "pytest.ini")
    links = {target for _, target in Document("VALIDATION.md", (ROOT / "VALIDATION.md").read_text()).links}
    assert set(config["pytest"]["testpaths"].split()) <= links


def test_a_document_is_cut_into_what_it_is() -> None:
    text = "# A `b` [c](d)\ntext `x\ny` on\n\n    code\n\n    more\n\n- item\n  goes on\n\n```sh\nmake\n```\nend"
    document = Document("x.md", text)
    assert [(block.line, block.language, block.text) for block in document.blocks] == [
        (5, "", "code\n\nmore"),
        (13, "sh", "make"),
    ]
    assert document.spans == [(1, "b"), (2, "x y")] and document.anchors == {"a-b-c"}
    assert [paragraph.line for paragraph in document.paragraphs] == [1, 2, 9, 15]
