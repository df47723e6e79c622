import pytest

from moet_w2.config import W2Config
from moet_w2.errors import ConfigError, UnsupportedError
from moet_w2.placement import Placement, layer_key, plan


def test_keys_are_placed_as_configured() -> None:
    layers = plan(W2Config(mapped_layers=(42, 43, 44, 45), delta_exclude_layers=(43, 44, 45)), 43, 3)
    assert [layers.placement(key) for key in (41, 42, 45)] == [Placement.DEVICE, Placement.MAPPED, Placement.MAPPED]
    assert [layers.correctable(key) for key in (41, 42, 43, 45)] == [True, True, False, False]


@pytest.mark.parametrize("field", ["mapped_layers", "delta_exclude_layers"])
def test_a_key_beyond_the_model_is_refused(field: str) -> None:
    name = {"mapped_layers": "MAPPED_LAYERS", "delta_exclude_layers": "DELTA_EXCLUDE_LAYERS"}[field]
    with pytest.raises(ConfigError, match=f"{name}: layer key 4 is out of range.*target layers 0..3 and no draft"):
        plan(W2Config(**{field: (3, 4)}), 4)
    with pytest.raises(ConfigError, match=r"layer key 46 .*0\.\.42 and draft layers 43\.\.45"):
        plan(W2Config(**{field: (46,)}), 43, 3)


def test_layer_keys_come_from_vllm_prefixes() -> None:
    assert layer_key("model.layers.3.ffn.experts") == 3
    assert layer_key("layers.45.ffn.experts.routed_experts") == 45
    with pytest.raises(UnsupportedError, match="names no layer"):
        layer_key("model.mtp_layers.ffn.experts")
