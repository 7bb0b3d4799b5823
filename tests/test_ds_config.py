"""`explain`: an error exactly where the live DeepSpeed refuses, a warning where it does something else, no crash."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ds_config_cases import ADAM, CPU, FOUND, GOOD, MICRO, any_json, configs, zero
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from live_ds_config import accept, refusal

from labs.__main__ import main
from labs.ds_config import explain
from labs.ds_config.memory import STATES
from labs.ds_layout import state_bytes
from labs.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent
many = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


def judge(config, world_size=4, **options):
    return explain(config, world_size, accelerator="cpu", **options)


def say_everything(found):
    """Write an explanation in every form; return it."""
    assert max(map(len, str(found).splitlines())) <= 80
    json.loads(found.to_json())
    str(found).encode(), found._repr_html_().encode()
    return found


@pytest.mark.parametrize("name", GOOD)
def test_a_good_config_gets_no_error_and_no_warning(name):
    assert refusal(GOOD[name], 4) is None
    found = judge(GOOD[name])
    assert found.of_level("error") + found.of_level("warning") == ()


@pytest.mark.parametrize("name", FOUND)
def test_what_is_wrong_is_found_with_its_key(name):
    config, level, key = FOUND[name]
    found = say_everything(judge(config))
    assert bool(refusal(config, 4)) == (level == "error")
    assert [(f.level, f.key) for f in found.findings if f.level in ("error", "warning")] == [(level, key)]
    assert all(f.what and f.why and f.fix for f in found.findings)


@pytest.mark.parametrize(("misspelt", "meant"), [
    ("zero_optimisation", "zero_optimization"), ("gradient_acumulation_steps", "gradient_accumulation_steps"),
    ("train_micro_batch_size", "train_micro_batch_size_per_gpu"), ("Gradient_Clipping", "gradient_clipping"),
    ("stage3_param_persistance_threshold", "stage3_param_persistence_threshold"), ("bf_16", "bf16"),
])  # fmt: skip
def test_a_misspelt_key_is_answered_with_the_nearest_right_one(misspelt, meant):
    assert meant in judge({**MICRO, misspelt: 1}).of_level("warning")[0].fix


@many
@given(configs(), st.sampled_from([1, 2, 8]))
@example({"train_batch_size": 8, "sequence_parallel_size": 2, "train_micro_batch_size_per_gpu": 1}, 8)
@example({"train_micro_batch_size_per_gpu": 1, "sequence_parallel_size": float("nan")}, 2)
@example({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"leaf_module": None}}, 1)
def test_an_error_stands_exactly_where_deepspeed_refuses(config, world_size):
    before = repr(config)
    found = say_everything(judge(config, world_size, params=7e9))
    assert found.is_refused == bool(refusal(config, world_size)), refusal(config, world_size)
    assert repr(config) == before


@many
@given(st.dictionaries(st.sampled_from(["zero_optimization", "fp16", "aio", "optimizer", "x"]) | st.text(), any_json))
def test_no_object_of_json_makes_it_crash(config):
    found = say_everything(judge({"train_batch_size": 8, **config}, params=1))
    assert found.is_refused == bool(refusal({"train_batch_size": 8, **config}, 4))


@pytest.mark.parametrize("config", GOOD.values(), ids=GOOD)
@pytest.mark.parametrize("world_size", [1, 4])
def test_the_effective_settings_are_those_of_the_live_config(config, world_size):
    if refusal(config, world_size):
        return
    live, found = accept(config, world_size), judge(config, world_size).effective
    assert (found["train_batch_size"], found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"]) \
        == (live.train_batch_size, live.train_micro_batch_size_per_gpu, live.gradient_accumulation_steps)  # fmt: skip
    assert found["zero_stage"] == live.zero_optimization_stage and found["gradient_clipping"] == live.gradient_clipping
    enabled = [name for name in ("fp16", "bf16") if getattr(live, name.replace("bf", "bfloat").replace("fp", "float")
                                                            + "_config").enabled]  # fmt: skip
    assert found["precision"] == (enabled or ["fp32"])[0]
    sizes = [name for name in found if hasattr(live.zero_config, name) and not name.startswith("offload")]
    assert {name: found[name] for name in sizes} == {name: getattr(live.zero_config, name) for name in sizes}
    assert len(sizes) == (0 if not live.zero_optimization_stage else 9 if live.zero_optimization_stage == 3 else 6)


# The ZeRO paper's formulas with 12 bytes of optimizer and masters, for 8e6 parameters that 4 ranks divide.
@pytest.mark.parametrize(("stage", "bytes_each"), [(0, 16), (1, 2 + 2 + 12 / 4), (2, 2 + 14 / 4), (3, 16 / 4)])
def test_the_bytes_of_states_are_those_of_the_paper(stage, bytes_each):
    found = judge({**zero(stage, reduce_bucket_size=1000), "bf16": {"enabled": True}}, params=8e6).memory
    bucket = 2 * 1000 if stage == 3 else 0  # DeepSpeed's own, which stays
    assert found.place_bytes("device") == 8e6 * bytes_each + bucket and found.place_bytes("host") == 0


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"])
@pytest.mark.parametrize("offload", [False, True])
def test_the_bytes_of_states_are_those_of_the_engine_but_for_its_buffers(strategy, offload):
    """labs/ds_layout.py is exact for live ranks; one parameter of a size that divides leaves no padding."""
    from labs.config import ModelTrainingConfig
    from labs.spec import ParameterSpec

    run = ModelTrainingConfig(strategy=strategy, world_size=4, offload=offload)
    exact = state_bytes(run, 0, [ParameterSpec("all", (8, 1000), "root")])
    places = {"offload_optimizer": CPU, **({"offload_param": CPU} if strategy == "zero3" else {})} if offload else {}
    found = judge({**zero(int(strategy[-1]), **places), "bf16": {"enabled": True}}, params=8000).memory
    sums = {state: sum(found.states[state].values()) for state in STATES}
    assert [sums[s] for s in STATES if s != "gradients"] == [exact[s] for s in STATES if s != "gradients"]


def test_half_of_the_optimizer_stays_when_half_is_offloaded():
    found = judge(zero(3, offload_optimizer={**CPU, "ratio": 0.5}), params=8e6).memory
    assert found.states["optimizer"]["device"] == found.states["optimizer"]["host"] == 8e6 * 8 / 4 / 2


def test_nvme_holds_what_is_offloaded_there():
    found = judge(GOOD["stage 3 on NVMe"], params=8e6).memory
    assert found.place_bytes("nvme") == 8e6 * (4 + 8 + 4) / 4 and found.place_bytes("device") == 8e6 + 4 * 5e8


def test_a_trainer_fills_in_what_is_auto():
    config = {**zero(2, reduce_bucket_size="auto"), "gradient_clipping": "auto", "train_batch_size": "auto",
              "train_micro_batch_size_per_gpu": "auto"}  # fmt: skip
    assert judge(config).is_refused
    found = judge(config, trainer=True)
    assert found.of_level("error") + found.of_level("warning") == ()
    assert found.effective["train_batch_size"] == "auto" and found.effective["reduce_bucket_size"] == "auto"
    assert [f.key for f in found.findings] == ["auto"]


FILES = {
    "": "is empty",
    " \n": "is empty",
    "[1, 2]": "holds a list",
    '"a text"': "holds a text",
    "17": "holds a number",
    "null": "holds null",
    '{"a": ': "is not a JSON file",
    '{"a": NaN}': "is not a JSON file",
    '{"a": 1e400}': "too large for a float",
    "\x00\x01": "holds a text",
    "[" * 5000: "nested too deeply",
    '{"a":' * 5000: "nested too deeply",
    b"\xff\xfe\x00": "no text in UTF-8",
}


@pytest.mark.parametrize("content", FILES, ids=lambda content: repr(content[:12]))
def test_a_file_that_holds_no_config_is_refused_in_one_sentence_and_status_2(content, tmp_path, capsys):
    path = tmp_path / "ds_config.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    status = main(["explain", str(path)])
    error = capsys.readouterr().err
    assert status == 2 and FILES[content] in error and len(error.splitlines()) == 1


BAD = {
    "no_such.json": "does not exist",
    ".": "is a folder",
    "": "is a folder",
    "good.json --world-size 0": "no number of ranks",
    "good.json --world-size many": "invalid int value",
    "good.json --params none": "no number of parameters",
    "good.json --params nan": "no number of parameters",
    "good.json --params -7": "no number of parameters",
    "good.json --accelerator tpu": "invalid choice",
    "good.json --quiet": "unrecognized arguments",
    "/dev/zero": "more than 10,000,000 characters",
}


@pytest.mark.parametrize("options", BAD)
def test_an_option_that_cannot_be_is_refused_in_one_sentence_and_status_2(options, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("good.json").write_text(json.dumps(GOOD["the least"]))
    try:
        status = main(["explain", *(options.split() or [""])])
    except SystemExit as end:
        status = end.code
    error = capsys.readouterr().err
    assert status == 2 and BAD[options] in error and len(error.splitlines()) == 1


@pytest.mark.parametrize("key", [1, None, True, ("a",), 1.5])
def test_a_key_that_is_no_text_is_a_key_that_deepspeed_ignores(key):
    for config in ({**MICRO, key: 2}, {**MICRO, "aio": {key: 2}}, {**MICRO, "optimizer": {"type": "Adam", key: 2}}):
        assert refusal(config) is None
        assert say_everything(judge(config)).of_level("warning")[0].what == "it has no effect"


@pytest.mark.parametrize("source", [None, 5, [MICRO], b"x.json", "\x00", "x" * 5000])
def test_what_is_neither_a_config_nor_a_path_is_refused_in_words(source):
    with pytest.raises(ConfigError):
        explain(source)


@many
@given(st.text() | any_json.map(lambda value: json.dumps(value)) | st.binary())
def test_no_file_makes_it_crash(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="replace"))
    try:
        found = say_everything(judge(path))
    except ConfigError as error:
        assert "\n" not in str(error).strip()
        assert refusal(str(path))
    else:
        assert found.is_refused == bool(refusal(str(path), 4))


@pytest.mark.parametrize("content", [
    '\ufeff{"train_batch_size": 8}', '// words\n{"train_batch_size": 8 /* more */}', "{train_batch_size: 8,}",
])  # fmt: skip
def test_a_file_is_read_with_the_freedom_that_deepspeed_gives(content, tmp_path):
    (tmp_path / "ds.json").write_text(content, encoding="utf-8")
    assert judge(tmp_path / "ds.json").effective["train_batch_size"] == 8
    assert accept(str(tmp_path / "ds.json"), 4).train_batch_size == 8


def test_a_key_that_stands_twice_is_an_error_beside_all_else_that_is_found(tmp_path):
    text = '{"train_batch_size": 8, "bf16": {"enabled": true, "enabled": false}, "zero": 1, "zero": 2}'
    (tmp_path / "ds.json").write_text(text)
    found = judge(tmp_path / "ds.json")
    assert [f.key for f in found.of_level("error")] == ["enabled", "zero"] and refusal(str(tmp_path / "ds.json"))
    assert [f.key for f in found.of_level("warning")] == ["zero"]


def test_the_command_prints_text_of_80_columns_or_one_json_object_and_says_in_its_status_what_was_found(tmp_path):
    (tmp_path / "good.json").write_text(json.dumps(GOOD["stage 2 offloaded"]))
    (tmp_path / "bad.json").write_text(json.dumps({**zero(2), **ADAM, "gradient_allreduce_op": "max"}))
    for name, options, status in (("good", [], 0), ("bad", [], 1), ("good", ["--json"], 0), ("bad", ["--json"], 1)):
        command = [sys.executable, "-m", "labs", "explain", str(tmp_path / f"{name}.json"), "--world-size", "8"]
        done = subprocess.run([*command, "--params", "7e9", *options], capture_output=True, text=True, cwd=ROOT)
        assert (done.returncode, done.stderr) == (status, "")
        if options:
            printed = json.loads(done.stdout)
            assert set(printed) == {"effective", "memory", "findings"}
            assert printed["memory"]["device_bytes"] > 0 and printed["effective"]["world_size"] == 8
            assert all(set(f) == {"level", "key", "what", "why", "fix"} for f in printed["findings"])
            assert ("error" in [f["level"] for f in printed["findings"]]) == bool(status)
        else:
            assert max(map(len, done.stdout.splitlines())) <= 80


def test_explaining_imports_no_torch():
    program = "import sys, labs.ds_config as d; d.explain({'train_batch_size': 1}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "False", done.stderr
