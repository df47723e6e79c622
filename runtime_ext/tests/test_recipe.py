"""Recipes: what is read, and the one line that each mistake ends in."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest
from pydantic import ValidationError
from recipe_text import LAYER_BYTES, MISSING, VALID, broken, write

from moet_w2 import config, recipe
from moet_w2.errors import RecipeError

REPOSITORY = Path(__file__).resolve().parents[2]


def test_reads_every_section(tmp_path):
    loaded = recipe.load(write(tmp_path))
    assert loaded.name == "tiny"
    assert loaded.model.geometry.layer.nbytes == LAYER_BYTES
    assert loaded.w2.mapped_layers == (2, 3)
    assert loaded.w2.exclude_layers == (3,)
    assert list(loaded.engine)[:2] == ["max-model-len", "enable-prefix-caching"]
    assert dict(loaded.environment) == {"SOME_THREADS": "2", "SOME_WORDS": "a b"}
    assert loaded.expect.mapped_bytes == 2 * LAYER_BYTES


def test_paths_start_two_folders_above_the_recipe_or_at_root(tmp_path):
    path = write(tmp_path)
    assert recipe.load(path).model_path == tmp_path / "models" / "tiny"
    assert recipe.load(path, root=tmp_path / "else").model_path == tmp_path / "else" / "models" / "tiny"


def test_digest_follows_the_bytes(tmp_path):
    first = recipe.load(write(tmp_path)).digest
    assert recipe.load(write(tmp_path, broken("duration", "long"))).digest != first


def test_is_frozen(tmp_path):
    loaded = recipe.load(write(tmp_path))
    with pytest.raises(ValidationError):
        loaded.w2.mapped_layers = (1,)
    with pytest.raises(TypeError):
        loaded.engine["max-model-len"] = 1


MISTAKES = {
    "unknown key, close": ("discription", "x", ["discription = 'x'", "did you mean description?"]),
    "unknown key, far": ("w2/zzz", 1, ["w2.zzz = 1", "allowed here: mapped_layers, correction"]),
    "unknown nested key": ("w2/correction/gib", 6, ["w2.correction.gib = 6", "did you mean gb?"]),
    "missing key": ("expect/mapped_bytes", MISSING, ["expect.mapped_bytes is missing"]),
    "missing section": ("w2", MISSING, ["w2 is missing"]),
    "section of wrong type": ("model", "demo", ["model = 'demo'", "must be a valid dictionary"]),
    "wrong type": ("expect/max_model_len", "512", ["expect.max_model_len = '512'", "valid integer"]),
    "boolean as integer": ("expect/w2_layers", True, ["expect.w2_layers = True", "valid integer"]),
    "empty text": ("model/served_name", "", ["model.served_name = ''", "at least 1 character"]),
    "name not a slug": ("name", "My Recipe", ["name = 'My Recipe'", "pattern"]),
    "layer list not a list": ("w2/mapped_layers", 2, ["w2.mapped_layers = 2"]),
    "layer key not a number": ("w2/mapped_layers", [2, "x"], ["w2.mapped_layers[1] = 'x'", "valid integer"]),
    "layer key negative": (
        "w2/mapped_layers",
        [-1],
        ["w2.mapped_layers[0] = -1", "greater than or equal to 0"],
    ),
    "layer key twice": ("w2/mapped_layers", [3, 2, 3], ["w2.mapped_layers", "layer key 3 is named twice"]),
    "excluded key out of range": (
        "w2/correction/exclude_layers",
        [4],
        ["layer key 4 is out of range", "expect.w2_layers = 4 allows 0 to 3"],
    ),
    "correction below zero": ("w2/correction/gb", -1, ["w2.correction.gb: -1 is not a size", "6 or 0.25, auto"]),
    "correction of another word": ("w2/correction/gb", "most", ["w2.correction.gb: 'most' is not a size"]),
    "correction switched on": ("w2/correction/gb", True, ["w2.correction.gb: True is not a size"]),
    "correction policy": ("w2/correction/policy", "lfu", ["w2.correction.policy = 'lfu'", "'freq' or 'lru'"]),
    "prefill not a boolean": ("w2/correction/prefill_fp4", 1, ["w2.correction.prefill_fp4 = 1", "valid boolean"]),
    "device of another kind": ("device", {"kind": "rocm"}, ["device.kind = 'rocm'", "'cuda' or 'cpu'"]),
    "device with an unknown key": ("device", {"kind": "cuda", "vram": 95}, ["did you mean vram_gib?"]),
    "capability not a version": ("device", {"kind": "cuda", "capability": ["sm_90"]}, ["capability[0] = 'sm_90'"]),
    "capability as a number": ("device", {"kind": "cuda", "capability": [9.0]}, ["device.capability[0] = 9.0"]),
    "a cpu with VRAM": ("device", {"kind": "cpu", "vram_gib": 1}, ["device: a cpu has neither capability nor"]),
    "mapped layers differ": (
        "expect/mapped_layers",
        [2],
        ["expect.mapped_layers = [2]", "must equal w2.mapped_layers = [2, 3]"],
    ),
    "mapped bytes differ": (
        "expect/mapped_bytes",
        7,
        ["expect.mapped_bytes = 7", f"2 layers of {LAYER_BYTES} bytes = {2 * LAYER_BYTES}"],
    ),
    "limit differs": (
        "expect/max_model_len",
        1024,
        ["expect.max_model_len = 1024", "must equal engine.max-model-len = 512"],
    ),
    "limit absent from engine": ("engine/max-model-len", MISSING, ["must equal engine.max-model-len = None"]),
    "geometry not packable": ("model/geometry/width", 96, ["model.geometry", "multiple of 128, got 96"]),
    "engine not a mapping": ("engine", ["enforce-eager"], ["engine: must be a mapping"]),
    "engine key with dashes": ("engine/--enforce-eager", True, ["'--enforce-eager'", "long name"]),
    "engine key with underscore": ("engine/max_num_seqs", 4, ["'max_num_seqs'", "as in max-model-len"]),
    "engine value empty": ("engine/max-num-seqs", None, ["engine: max-num-seqs: None is neither"]),
    "environment not a mapping": ("environment", "A=1", ["environment: must be a mapping"]),
    "environment name": ("environment/2x", "1", ["'2x' is not the name of an environment variable"]),
    "environment boolean": ("environment/FLAG", True, ["FLAG: True must be text or a number", "quote words"]),
    "environment holds a W2 setting": (
        "environment/VLLM_MOE_W2_MAPPED_LAYERS",
        "2",
        ["VLLM_MOE_W2_MAPPED_LAYERS does not belong here", "under w2"],
    ),
    "environment holds a secret": ("environment/VLLM_API_KEY", "k", ["VLLM_API_KEY does not belong here"]),
} | {
    f"engine key of the launcher: {key}": (
        f"engine/{key}",
        "x",
        [f"engine: {key} is written by the launcher"],
    )
    for key in ("model", "served-model-name", "host", "port", "quantization", "api-key")
}


@pytest.mark.parametrize(("place", "value", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_ends_in_one_line_that_names_it(tmp_path, place, value, words):
    path = write(tmp_path, broken(place, value))
    with pytest.raises(RecipeError) as caught:
        recipe.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_made_up_weights_have_one_load_format(tmp_path):
    data = broken("model/synthetic", True)
    data["engine"]["load-format"] = "moet"
    with pytest.raises(RecipeError, match="engine.load-format = 'moet' contradicts model.synthetic = True; remove one"):
        recipe.load(write(tmp_path, data))


def test_correction_sizes(tmp_path):
    def loaded(size):
        return recipe.load(write(tmp_path, broken("w2/correction/gb", size))).w2.correction

    assert [loaded(size).nbytes for size in (0, 0.25, 6, "auto")] == [0, 2**28, 6 * 2**30, None]
    assert (loaded(6).policy, loaded(6).prefill_fp4) == ("freq", True)
    assert typing.get_args(type(loaded(6)).model_fields["policy"].annotation) == config.DELTA_POLICIES


def extending(tmp_path, text: str, name: str = "mine.yaml") -> Path:
    """A recipe beside the valid one, with ``extends: tiny.yaml`` unless the text says otherwise."""
    path = write(tmp_path).with_name(name)
    path.write_text(text if "extends:" in text else f"extends: tiny.yaml\n{text}")
    return path


def test_extends_takes_over_key_by_key(tmp_path):
    path = extending(
        tmp_path,
        "name: mine\nw2: {mapped_layers: [1]}\nexpect: {mapped_layers: [1], mapped_bytes: 1769472}\n"
        "engine: {cudagraph-capture-sizes: [8], speculative-config: {num_speculative_tokens: 2}, block-size: 64}\n",
    )
    base, mine = recipe.load(path.with_name("tiny.yaml")), recipe.load(path)
    assert (mine.name, mine.file, mine.root) == ("mine", path, tmp_path)
    assert mine.w2.mapped_layers == (1,) and mine.w2.correction == base.w2.correction
    changed = {"cudagraph-capture-sizes": [8], "block-size": 64}
    changed["speculative-config"] = {"method": "dspark", "num_speculative_tokens": 2}
    assert dict(mine.engine) == dict(base.engine) | changed
    assert mine.model == base.model and mine.environment == base.environment


def test_digest_follows_what_is_extended(tmp_path):
    path = extending(tmp_path, "name: mine\n")
    first = recipe.load(path).digest
    write(tmp_path, broken("duration", "long"))
    assert recipe.load(path).digest != first


def test_a_recipe_may_extend_one_that_extends(tmp_path):
    extending(tmp_path, "name: middle\nduration: long\n", "middle.yaml")
    path = extending(tmp_path, "extends: middle.yaml\nname: mine\n")
    loaded = recipe.load(path)
    assert (loaded.name, loaded.duration, loaded.description) == ("mine", "long", VALID["description"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("extends: absent.yaml\n", "mine.yaml: extends absent.yaml: No such file or directory; name a recipe of this"),
        ("extends: ../tiny.yaml\n", "extends = '../tiny.yaml' is not the name of a recipe in this folder"),
        ("extends: [tiny.yaml]\n", "extends = ['tiny.yaml'] is not the name"),
        ("extends: mine.yaml\n", "extends goes in a circle: mine.yaml -> mine.yaml; take one out"),
        ("w2: {zzz: 1}\n", "mine.yaml (extends tiny.yaml): w2.zzz = 1 is not a key of a recipe"),
        ("w2: 1\n", "mine.yaml (extends tiny.yaml): w2 = 1 must be a valid dictionary"),
    ],
)
def test_mistakes_of_extending(tmp_path, text, words):
    with pytest.raises(RecipeError) as caught:
        recipe.load(extending(tmp_path, text))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_further_mistakes_are_counted(tmp_path):
    data = broken("name", 7) | {"duration": 8}
    with pytest.raises(RecipeError, match=r"name = 7 .*\(and 1 more\)$"):
        recipe.load(write(tmp_path, data))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a recipe is a mapping with keys such as name"),
        ("- a\n- b\n", "a recipe is a mapping"),
        ("name: [1\n", "not valid YAML"),
        ("name: a\nname: b\n", "key 'name' stands twice (line 2)"),
        ("w2: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
    ],
)
def test_text_that_is_no_recipe(tmp_path, text, words):
    with pytest.raises(RecipeError) as caught:
        recipe.load(write(tmp_path, text))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_file_that_cannot_be_read(tmp_path):
    with pytest.raises(RecipeError, match="absent.yaml: No such file"):
        recipe.load(tmp_path / "absent.yaml")
    with pytest.raises(RecipeError, match="Is a directory"):
        recipe.load(tmp_path)


def test_environment_and_correction_may_be_absent(tmp_path):
    data = broken("environment", MISSING)
    del data["w2"]["correction"]
    loaded = recipe.load(write(tmp_path, data))
    assert dict(loaded.environment) == {} and loaded.w2.correction.gb == 0


def test_geometry_may_be_absent(tmp_path):
    data = broken("model/geometry", MISSING)
    data["expect"] = VALID["expect"] | {"mapped_bytes": 1}
    assert recipe.load(write(tmp_path, data)).model.geometry is None


@pytest.mark.parametrize("path", sorted((REPOSITORY / "bench" / "recipes").glob("*.yaml")), ids=lambda p: p.name)
def test_committed_recipes_are_valid_and_named_by_their_file(path):
    assert recipe.load(path).name == path.stem


def test_relative_paths_start_at_the_checkout_or_else_at_the_current_folder(tmp_path, monkeypatch):
    inside = write(tmp_path / "checkout")
    assert recipe.load(inside).root == tmp_path / "checkout"
    outside = tmp_path / "mine.yaml"
    outside.write_bytes(inside.read_bytes())
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert recipe.load(outside).root == tmp_path / "here"
