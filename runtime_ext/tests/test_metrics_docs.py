"""docs/metrics.md, the dashboard and the alert rules name metrics that exist, with labels that they have."""

import json
import re
from pathlib import Path

import pytest
import yaml

from moet_w2.metrics import collector, table
from moet_w2.metrics.table import METRICS

DOCS = Path(__file__).resolve().parents[2] / "docs"
MONITORING = DOCS / "monitoring"
DASHBOARD = json.loads((MONITORING / "grafana-dashboard.json").read_text())
RULES = yaml.safe_load((MONITORING / "alerts.yml").read_text())

PROMETHEUS_LABELS = {"instance", "job"}
"""What Prometheus adds to every series."""
PANELS = {"row", "stat", "timeseries", "bargauge"}
FUNCTIONS = {"rate", "increase", "sum", "max", "min", "histogram_quantile", "time", "by", "without", "and", "or", "on"}
"""Words of the query language that our expressions may use."""
_VLLM_METRIC = re.compile(r'_(gauge|counter|histogram)_cls\(\s*(?:name=)?"(vllm:\w+)"')


def vllm_metrics() -> set[str]:
    """Names that a scrape of the pinned vLLM shows, from its source: making its loggers would take an engine."""
    import vllm.v1

    names = {f"{name}_total" for name in _speculative_counters()}
    for path in Path(vllm.v1.__path__[0]).rglob("*.py"):
        for kind, name in _VLLM_METRIC.findall(path.read_text()):
            names |= {
                "gauge": {name},
                "counter": {f"{name}_total"},
                "histogram": {f"{name}_bucket", f"{name}_sum", f"{name}_count"},
            }[kind]
    return names


def _speculative_counters() -> list[str]:
    """Counters that vLLM makes in a loop over pairs of name and text."""
    from vllm.v1.spec_decode import metrics

    return re.findall(r'\("(vllm:spec_decode_num_\w+)",', Path(metrics.__file__).read_text())


KNOWN = {metric.name: set(collector._labels(metric)) for metric in METRICS}
KNOWN |= {name: {"engine", "model_name", "le", "source"} for name in vllm_metrics()}


def faults(expression: str) -> list[str]:
    """What an expression names that is not there."""
    found = []
    text = re.sub(r'"[^"]*"', "", expression)
    used: set[str] = set()
    for name, selector in re.findall(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}", text):
        labels = set(re.findall(r"(\w+)\s*[=!]", selector))
        found += [f"{name} has no label {label}" for label in labels - KNOWN.get(name, set()) - PROMETHEUS_LABELS]
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", text)
    grouped = {label for group in re.findall(r"\b(?:by|without|on)\s*\(([^)]*)\)", text) for label in _words(group)}
    text = re.sub(r"\b(by|without|on)\s*\([^)]*\)", "", text)
    used = _words(text) - FUNCTIONS
    found += [f"no metric {name}" for name in sorted(used - KNOWN.keys())]
    labels = PROMETHEUS_LABELS.union(*(KNOWN.get(name, set()) for name in used))
    return found + [f"no label {label}" for label in sorted(grouped - labels)]


def _words(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w.])[a-zA-Z_:][\w:]*", text))


def queries() -> list[tuple[str, str]]:
    """(title of the panel, expression) of the whole dashboard."""
    return [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("rate(moet_stepz_total[5m])", "no metric moet_stepz_total"),
        ("moet_worker_up / vllm:nonsense", "no metric vllm:nonsense"),
        ('moet_worker_up{rang="0"}', "moet_worker_up has no label rang"),
        ("sum by (phase) (moet_worker_up)", "no label phase"),
        ("vllm:prompt_tokens", "no metric vllm:prompt_tokens"),
        ("sinus(moet_worker_up)", "no metric sinus"),
    ],
)
def test_a_wrong_name_is_found(expression: str, fault: str) -> None:
    assert faults(expression) == [fault]


def test_the_table_in_the_docs_is_the_tables() -> None:
    rows = re.findall(r"^\| `(moet_\w+)` \| (\w+) \| ([^|]*?) ?\| (.*) \|$", (DOCS / "metrics.md").read_text(), re.M)
    wanted = [(m.name, str(m.kind), ", ".join(collector._labels(m)), m.help) for m in METRICS]
    assert rows == wanted


def test_metrics_named_in_the_docs_exist() -> None:
    text = (DOCS / "metrics.md").read_text()
    assert {name for name in re.findall(r"\bmoet_\w+", text) if name not in KNOWN} == set()
    # vLLM's histograms are named without the suffixes of a scrape.
    series = KNOWN | {name.removesuffix("_bucket"): set() for name in KNOWN}
    assert {name for name in re.findall(r"vllm:\w+", text) if name not in series} == set()


def test_every_expression_of_the_dashboard_names_what_exists() -> None:
    assert len(queries()) > 20
    assert [(title, faults(expression)) for title, expression in queries() if faults(expression)] == []


def test_the_dashboard_shows_what_there_is() -> None:
    """Metrics that no panel shows are named here, each with its reason."""
    unshown = {
        table.WORKERS_EXPECTED.name,  # the alert is for it
        table.WORKER_INFO.name,  # labels only
        "moet_worker_start_time_seconds",  # restarts show in the age and in counters
        "moet_w2_layers",  # the bytes say the same
        "moet_w2_redundant_bytes",  # 0 or no server
        "moet_correction_active",  # the alert is for it
        "moet_correction_pool_bytes",
        "moet_correction_passes_total",
        "moet_last_step_timestamp_seconds",  # the alert is for it
        "moet_prefill_recomputed_tokens_total",
    }
    shown = {name for _, expression in queries() for name in re.findall(r"moet_\w+", expression)}
    assert {metric.name for metric in METRICS} - shown == unshown


def test_the_dashboard_is_one_that_grafana_loads() -> None:
    assert DASHBOARD["schemaVersion"] >= 36 and DASHBOARD["title"] and DASHBOARD["uid"]
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {"datasource", "instance"}
    taken = set()
    for panel in panels:
        assert panel["type"] in PANELS and panel["title"]
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
        if panel["type"] != "row":
            assert panel["targets"] and panel["datasource"]["uid"] == "${datasource}"
            references = [target["refId"] for target in panel["targets"]]
            assert len(set(references)) == len(references)


def test_alert_rules_are_rules() -> None:
    (group,) = RULES["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [
        "MoetWorkerDown",
        "MoetNoWorker",
        "MoetStalled",
        "MoetCorrectionReadErrors",
        "MoetCorrectionStopped",
    ]
    for rule in group["rules"]:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert faults(rule["expr"]) == [], rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            names = re.findall(r"moet_\w+", rule["expr"])
            assert label in PROMETHEUS_LABELS | KNOWN[names[0]], rule["alert"]


def test_the_scrape_example_loads_the_rules() -> None:
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    assert config["rule_files"] == ["alerts.yml"]
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "moet" and job.get("metrics_path", "/metrics") == "/metrics"
    (targets,) = job["static_configs"]
    from moet_w2.overrides import DEFAULT_HOST, DEFAULT_PORT

    assert targets["targets"] == [f"{DEFAULT_HOST}:{DEFAULT_PORT}"]
