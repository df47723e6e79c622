from pathlib import Path

import pytest

from moet_w2 import config, envs
from moet_w2.errors import ConfigError


def parse(**environ: str) -> config.W2Config:
    return config.parse(envs.read({f"VLLM_MOE_W2{name}": value for name, value in environ.items()}))


def test_nothing_set_serves_everything_from_the_device() -> None:
    assert parse() == config.W2Config()
    assert parse(_MAPPED_LAYERS="", _MAPPED_NUMA_NODE=" ") == config.W2Config()


def test_every_setting_is_read() -> None:
    values = {
        "": "0",
        "_MAPPED_LAYERS": "45, 43",
        "_DELTA_EXCLUDE_LAYERS": "44",
        "_MAPPED_NUMA_NODE": "1",
        "_MAPPED_PCI": "31:00.0",
        "_MAPPED_AUDIT_PATH": "/a/b.json",
        "_DELTA_GB": "0.5",
        "_DELTA_POLICY": "lru",
        "_PREFILL_FP4": "0",
        "_STORE_DIR": "/s",
        "_PLANES_CACHE": "/c",
        "_FAST_LOAD_WORKERS": "8",
        "_FAST_LOAD_BATCH_LAYERS": "3",
        "_CPU_ISA": "avx2",
        "_TRACE": "/t",
        "_BLOCK_SCALED": "1",
        "_PROFILE": "mine",
    }
    assert {f"VLLM_MOE_W2{name}" for name in values} == set(envs.SETTINGS)
    assert parse(**values) == config.W2Config(
        False,
        (43, 45),
        (44,),
        1,
        "0000:31:00.0",
        Path("/a/b.json"),
        0.5,
        "lru",
        False,
        Path("/s"),
        Path("/c"),
        8,
        3,
        "avx2",
        trace=Path("/t"),
        block_scaled=True,
        profile="mine",
    )


def test_other_programs_variables_are_none_of_our_business() -> None:
    assert envs.read({"VLLM_CPU_KVCACHE_SPACE": "1", "PATH": "/bin"}) == envs.Settings()


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("_MAPPED_LAYER", "VLLM_MOE_W2_MAPPED_LAYERS"),
        ("_MAPED_AUDIT_PATH", "VLLM_MOE_W2_MAPPED_AUDIT_PATH"),
        ("_DELTA_EXCLUDE", "VLLM_MOE_W2_DELTA_EXCLUDE_LAYERS"),
        ("2", "VLLM_MOE_W2"),
    ],
)
def test_an_unknown_name_is_an_error_with_a_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(ConfigError, match=rf"VLLM_MOE_W2{name}='1' is not a setting.*did you mean {suggestion}\?"):
        parse(**{name: "1"})


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("", "yes", "VLLM_MOE_W2='yes'.*0, 1"),
        ("_MAPPED_LAYERS", "42,x", "'x' is not a layer key"),
        ("_MAPPED_LAYERS", "42,,43", "'' is not a layer key"),
        ("_MAPPED_LAYERS", "-1", "'-1' is not a layer key"),
        ("_MAPPED_LAYERS", "1-3", "'1-3' is not a layer key"),
        ("_MAPPED_LAYERS", "²", "is not a layer key"),
        ("_MAPPED_LAYERS", "42,43,42", "42 is named twice"),
        ("_DELTA_EXCLUDE_LAYERS", "7,7", "7 is named twice"),
        ("_MAPPED_NUMA_NODE", "-1", "not a NUMA node"),
        ("_MAPPED_PCI", "31:00", "VLLM_MOE_W2_MAPPED_PCI: '31:00' is not a PCI address"),
        ("_DELTA_GB", "six", "DELTA_GB='six' is not a size"),
        ("_DELTA_GB", "-1", "DELTA_GB='-1' is not a size"),
        ("_DELTA_GB", "nan", "DELTA_GB='nan' is not a size"),
        ("_DELTA_GB", "inf", "DELTA_GB='inf' is not a size"),
        ("_DELTA_GB", "AUTO", "DELTA_GB='AUTO' is not a size; give GiB, such as 6 or 0.25, auto, or 0"),
        ("_DELTA_POLICY", "random", "DELTA_POLICY='random' is not allowed; use one of freq, lru"),
        ("_PREFILL_FP4", "yes", "PREFILL_FP4='yes'.*0, 1"),
        ("_FAST_LOAD_WORKERS", "0", "FAST_LOAD_WORKERS='0' .* from 1 to 64"),
        ("_FAST_LOAD_BATCH_LAYERS", "13", "FAST_LOAD_BATCH_LAYERS='13' .* from 1 to 12"),
        ("_FAST_LOAD_WORKERS", "four", "'four' is not allowed"),
        ("_BLOCK_SCALED", "on", "BLOCK_SCALED='on'.*0, 1"),
        ("_CPU_ISA", "sse", "amx, avx512_bf16, avx512, avx2"),
    ],
)
def test_a_malformed_value_is_named(name: str, value: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse(**{name: value})


def test_correction_needs_a_store() -> None:
    with pytest.raises(ConfigError, match="VLLM_MOE_W2_DELTA_GB=6 needs VLLM_MOE_W2_STORE_DIR"):
        parse(_DELTA_GB="6")
    with pytest.raises(ConfigError, match="VLLM_MOE_W2_DELTA_GB=auto needs VLLM_MOE_W2_STORE_DIR"):
        parse(_DELTA_GB="auto")
    assert parse(_DELTA_GB="0").delta_gib == 0
    auto = parse(_DELTA_GB="auto", _STORE_DIR="/s")
    assert (auto.delta_auto, auto.delta_gib) == (True, 0)


def test_a_trace_needs_correction() -> None:
    with pytest.raises(ConfigError, match="VLLM_MOE_W2_TRACE=/t needs VLLM_MOE_W2_DELTA_GB"):
        parse(_TRACE="/t", _STORE_DIR="/s")
    assert parse(_TRACE="/t", _STORE_DIR="/s", _DELTA_GB="auto").trace == Path("/t")


@pytest.mark.parametrize("name", ["_PLANES_CACHE", "_STORE_DIR"])
def test_a_cache_or_store_needs_our_load_format(name: str) -> None:
    made = parse(**{name: "/c"})
    config.check_load_format(made, "moet")
    config.check_load_format(parse(), "auto")
    with pytest.raises(ConfigError, match=f"VLLM_MOE_W2{name}=/c needs --load-format moet, not auto"):
        config.check_load_format(made, "auto")


def test_the_environment_is_read_in_one_module_only() -> None:
    source = Path(envs.__file__).parent
    # The launcher and the CPU attachment hand variables on to other programs; nothing else may look at them.
    readers = {p.name for p in source.rglob("*.py") if "os.environ" in p.read_text() or "getenv" in p.read_text()}
    assert "envs.py" in readers
    assert not readers & {"config.py", "runtime.py", "moe_method.py", "plugin.py", "audit.py", "host_memory.py"}
