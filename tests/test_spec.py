"""What a spec lists is what the built model has; what a name promises is what was published."""

import json

import pytest

from labs.config import ConfigError
from labs.named_models import NAMED_MODELS
from labs.spec import PRESETS, LlamaShape, ModelSpec, layer_of

# Origin: `safetensors.total` of each model on huggingface.co, or (GPT-2) the parameters of its tied PyTorch model.
# The hub's totals of Llama 2 also count a rotary buffer a layer (64 numbers), which is no parameter.
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_417_664 - 32 * 64,
    "llama-2-13b": 13_015_866_880 - 40 * 64,
    "llama-2-70b": 68_976_653_312 - 80 * 64,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-32b": 32_763_876_352,
}
SMALL = [
    ModelSpec(kind=kind, num_layers=2, hidden_size=8, num_heads=2, context=5, vocab_size=11, **switches)
    for kind in ("gpt", "mlp")
    for switches in ({}, {"tied_embedding": False}, {"norm": False}, {"norm": False, "tied_embedding": False})
]
LLAMA_JSON = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
GPT2_JSON = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}
QWEN_JSON = dict(hidden_size=3584, intermediate_size=18944, num_attention_heads=28, num_hidden_layers=28)
MISTRAL_JSON = dict(max_position_embeddings=32768, vocab_size=32000)
HF_CONFIGS = {
    "gpt2": GPT2_JSON,
    "llama-3-8b": LLAMA_JSON,
    "mistral-7b": {**LLAMA_JSON, **MISTRAL_JSON, "model_type": "mistral", "head_dim": None},
    "mixtral-8x7b": {
        **LLAMA_JSON,
        **MISTRAL_JSON,
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen2.5-7b": {
        **LLAMA_JSON,
        **QWEN_JSON,
        "model_type": "qwen2",
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "vocab_size": 152064,
    },
}


def write_config(folder, fields):
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return path


def test_every_named_model_has_its_published_number_of_parameters():
    assert {name: model.spec.num_parameters for name, model in NAMED_MODELS.items()} == PUBLISHED


def test_every_named_model_says_where_its_shape_is_published():
    assert [name for name, model in NAMED_MODELS.items() if "huggingface.co/" not in model.source] == []


def test_mixtral_computes_a_token_with_two_of_eight_experts():
    """By hand: 32 layers x 6 idle experts x 3 matrices of 4096 x 14336. arXiv 2401.04088 says 13 B are active."""
    idle = 32 * 6 * 3 * 4096 * 14336
    assert ModelSpec.from_name("mixtral-8x7b").num_active_parameters == 46_702_792_704 - idle == 12_879_925_248


def test_a_dense_model_computes_a_token_with_all_parameters():
    assert ModelSpec.from_name("llama-3-8b").num_active_parameters == 8_030_261_248


@pytest.mark.parametrize("spec", SMALL, ids=lambda s: f"{s.kind}-tied{s.tied_embedding}-norm{s.norm}")
def test_parameters_are_those_of_the_built_model_in_name_shape_and_order(spec):
    from labs.workload import build_model

    built = [(name, tuple(p.shape)) for name, p in build_model(spec).named_parameters()]
    assert [(p.name, p.shape) for p in spec.parameters()] == built


@pytest.mark.parametrize("spec", SMALL, ids=lambda s: f"{s.kind}-tied{s.tied_embedding}-norm{s.norm}")
def test_buffers_units_layers_and_decay_are_those_of_the_built_model(spec):
    from labs.strategies.base import parameter_groups
    from labs.workload import build_model

    model = build_model(spec)
    assert [(n, tuple(b.shape)) for n, b in model.named_buffers()] == list(spec.buffers())
    blocks = {f"blocks.{index}" for index in range(len(model.blocks))}
    children = blocks | {name for name, _ in model.named_children()}
    assert {layer_of(p.name) for p in spec.parameters()} <= children
    for p in spec.parameters():
        assert p.unit == (layer_of(p.name) if layer_of(p.name) in blocks else "root")
    decaying = parameter_groups(dict(model.named_parameters()), 0.1)[0]["params"]
    names = {id(p): name for name, p in model.named_parameters()}
    assert [names[id(p)] for p in decaying] == [p.name for p in spec.parameters() if p.decays]


@pytest.mark.parametrize("name", HF_CONFIGS)
def test_a_hugging_face_config_describes_the_same_model_as_its_name(name, tmp_path):
    path = write_config(tmp_path, HF_CONFIGS[name])
    assert ModelSpec.from_hf_config(path) == ModelSpec.from_hf_config(tmp_path) == ModelSpec.from_name(name)


def test_biases_of_a_llama_config_are_counted(tmp_path):
    path = write_config(tmp_path, {**LLAMA_JSON, "attention_bias": True, "mlp_bias": True})
    biases = 32 * (4096 + 1024 + 1024 + 4096 + 14336 + 14336 + 4096)
    assert ModelSpec.from_hf_config(path).num_parameters == 8_030_261_248 + biases


def test_a_head_size_of_its_own_widens_attention_alone(tmp_path):
    path = write_config(tmp_path, {**LLAMA_JSON, "head_dim": 256})
    assert ModelSpec.from_hf_config(path).num_parameters == 8_030_261_248 + 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024)


REFUSED_FILES = [
    ({"model_type": "t5"}, r"'t5'.*known types are gpt2, llama, mistral, mixtral, qwen2"),
    ({**LLAMA_JSON, "model_type": "llama", "hidden_size": "wide"}, r"hidden_size='wide'"),
    ({k: v for k, v in LLAMA_JSON.items() if k != "vocab_size"}, r"no field 'vocab_size'.*'llama' needs"),
    ({**GPT2_JSON, "n_inner": 100}, r"n_inner 100 is not 4 x n_embd 768"),
    ({**GPT2_JSON, "n_embd": None}, r"not a number where one is needed"),
    ([1, 2], r"holds a list.*give a config.json"),
]


@pytest.mark.parametrize("fields, sentence", REFUSED_FILES)
def test_a_config_that_cannot_be_used_is_refused_in_words(fields, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        ModelSpec.from_hf_config(write_config(tmp_path, fields))


def test_a_file_that_is_not_json_is_refused_with_its_name(tmp_path):
    (tmp_path / "notes.txt").write_text("not json")
    with pytest.raises(ConfigError, match=r"notes.txt cannot be read as JSON.*give the path of a config.json"):
        ModelSpec.from_hf_config(tmp_path / "notes.txt")
    with pytest.raises(ConfigError, match="cannot be read"):
        ModelSpec.from_hf_config(tmp_path / "missing.json")


def test_an_unknown_name_lists_the_known_ones_nearest_first():
    with pytest.raises(ConfigError) as refusal:
        ModelSpec.from_name("llama3-8b")
    listed = str(refusal.value).split("known names are ")[1].split(", ")
    assert listed[0] == "llama-3-8b"
    assert sorted(listed) == sorted([*PRESETS, *NAMED_MODELS])


@pytest.mark.parametrize("name", [*PRESETS, "llama-3-8b"])
def test_a_name_can_be_taken_with_a_changed_field(name):
    assert ModelSpec.from_name(name, num_layers=1).num_layers == 1


SHAPE = LlamaShape(intermediate_size=16, num_kv_heads=2)
REFUSED_SPECS = [
    (dict(hidden_size=66), r"66 does not split into 4 heads.*num_heads=3"),
    (dict(kind="llama"), r"'llama' needs llama=LlamaShape.*from_name\('llama-3-8b'\)"),
    (dict(llama=SHAPE), r"'gpt' has no use for llama="),
    (dict(kind="llama", llama=SHAPE, norm=False), r"residual, norm and init_scale.*try kind='gpt'"),
    (dict(kind="llama", llama=SHAPE.replace(num_kv_heads=3)), r"4 query heads.*num_kv_heads 3; try num_kv_heads=2"),
    (dict(kind="llama", llama=SHAPE.replace(experts_per_token=2)), r"experts_per_token 2.*try experts_per_token=1"),
    (dict(num_layer=3), r"no field 'num_layer'; did you mean num_layers"),
    (dict(num_layers=0), r"num_layers=0 is refused"),
]


@pytest.mark.parametrize("fields, sentence", REFUSED_SPECS)
def test_a_spec_that_makes_no_model_is_refused_in_words(fields, sentence):
    with pytest.raises(ConfigError, match=sentence):
        ModelSpec(**fields)


@pytest.mark.parametrize("spec", [ModelSpec(), SMALL[4], ModelSpec.from_name("mixtral-8x7b")], ids=lambda s: s.kind)
def test_a_spec_survives_json(spec):
    assert ModelSpec(**json.loads(spec.model_dump_json())) == spec
