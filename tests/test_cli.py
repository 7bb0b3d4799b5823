"""`python -m labs train`, the contract for other tools: one JSON object, bad values in one sentence, torchrun too."""

import json
import os
import random
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from fake_runs import fake_result

from labs.__main__ import main
from labs.config import ModelTrainingConfig
from labs.records import STATES, RunResult
from labs.train_command import _progress, _report, build_parser, read_config

ROOT = Path(__file__).resolve().parent.parent


def train(*options):
    return main(["train", *options])


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    """One short run, printed as JSON and saved whole."""
    folder = tmp_path_factory.mktemp("run")
    command = [sys.executable, "-m", "labs", "train", "--strategy", "zero2", "--steps", "3", "--json"]
    command += ["--save", str(folder / "run.json"), "--no-use-mixed-precision", "--gradient-accumulation-steps", "2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=150)
    assert done.returncode == 0, done.stderr
    (folder / "printed.json").write_text(done.stdout)
    return folder


def test_json_prints_one_object_with_the_promised_fields(run_file):
    printed = json.loads((run_file / "printed.json").read_text())
    assert set(printed) == {
        "config", "losses", "grad_norms", "eval", "memory", "traffic", "startup_seconds", "steps_per_second"
    }  # fmt: skip
    assert len(printed["losses"]) == len(printed["grad_norms"]) == printed["config"]["steps"] == 3
    assert all(isinstance(value, float) for value in printed["losses"] + printed["grad_norms"])
    assert len(printed["memory"]) == len(printed["traffic"]) == 2
    for states in printed["memory"]:
        assert set(states) == set(STATES)
        assert all(set(state) == {"predicted_bytes", "measured_bytes"} for state in states.values())
    for traffic in printed["traffic"]:
        assert set(traffic) == {"sent_bytes", "received_bytes", "predicted_bytes", "theory_bytes", "collectives"}
    assert printed["eval"][-1]["step"] == 2
    assert {"validation_loss", "baseline_loss"} <= set(printed["eval"][-1])


def test_a_saved_run_is_read_back_whole(run_file):
    run = RunResult.load(run_file / "run.json")
    assert json.loads(json.dumps(run.to_dict())) == json.loads((run_file / "run.json").read_text())
    assert run.config.gradient_accumulation_steps == 2


def test_every_field_of_the_config_is_an_option(capsys):
    with pytest.raises(SystemExit):
        train("--help")
    text = capsys.readouterr().out
    for name, field in ModelTrainingConfig.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        if field.annotation is bool:
            assert f"--no-{name.replace('_', '-')}" in text


BAD = {
    "--batch-size 33": "batch_size 33 does not divide",
    "--batch-size many": "invalid int value: 'many'",
    "--strategy zero4": "'zero4' is refused",
    "--strategy single --world-size 2": "runs on one rank, not 2",
    "--strategy hsdp --world-size 3": "must be even",
    "--offload": "would be ignored",
    "--model huge": "the known names are",
    "--data digits --model tiny": "is a table",
    "--learning-rate nan": "finite number",
    "--num-heads 5": "does not split into 5 heads",
    "--no-such-option": "unrecognized arguments",
    "--config no_such_file.json": "no_such_file.json",
    "--plot no_such_folder/run.png": "does not exist",
    "--steps 0": "steps=0 is refused",
    "--max-grad-norm -1": "max_grad_norm=-1.0 is refused",
    "--max-grad-norm some": "neither a number nor none",
    "--timeout-seconds nan": "no number of seconds above 0",
    "--timeout-seconds 0": "no number of seconds above 0",
    "--config pyproject.toml": "is not a JSON file",
    f"--config {shlex.quote(sys.executable)}": "is not a JSON file",
    "--save .": "is a folder",
    "--plot run.gpx": "ends in .gpx; the known kinds are",
    "--data wine --context 8 --num-heads 2": "--num-heads and --context would be ignored",
}


@pytest.mark.parametrize("options", BAD)
def test_a_bad_value_is_answered_in_one_sentence_and_status_2(options, capsys):
    try:
        status = train(*shlex.split(options))
    except SystemExit as end:
        status = end.code
    output = capsys.readouterr()
    assert status == 2
    assert BAD[options] in output.err
    assert len(output.err.strip().splitlines()) == 1 and output.out == ""


def test_a_config_file_is_changed_by_options(tmp_path):
    path = tmp_path / "run.json"
    saved = ModelTrainingConfig(strategy="zero3", world_size=4, model={"num_layers": 3}, steps=7)
    path.write_text(saved.model_dump_json())
    options = ["--config", str(path), "--steps", "9", "--hidden-size", "32", "--max-grad-norm", "none"]
    expected = saved.replace(steps=9, max_grad_norm=None, model=saved.model.replace(hidden_size=32))
    assert read_config(build_parser().parse_args(options)) == expected


@pytest.mark.parametrize(
    ("saved", "options", "expected"),
    [
        ({"data": "digits", "model": 5}, "--hidden-size 32", dict(num_layers=5, hidden_size=32, num_features=64)),
        ({"data": "digits", "model": 5}, "--data wine", dict(num_layers=5, num_features=13, num_classes=3)),
        ({"data": "digits", "model": 5}, "--data text", dict(kind="gpt", num_layers=4)),
        ({"data": "text", "model": 5}, "--data wine", dict(kind="mlp", num_layers=2, num_features=13)),
    ],
)
def test_options_keep_what_they_do_not_name_of_the_model_in_a_config_file(tmp_path, saved, options, expected):
    fresh = ModelTrainingConfig(data=saved["data"])
    saved = fresh.replace(model=fresh.model.replace(num_layers=saved["model"]))
    (tmp_path / "run.json").write_text(saved.model_dump_json())
    config = read_config(build_parser().parse_args(["--config", str(tmp_path / "run.json"), *options.split()]))
    assert {name: getattr(config.model, name) for name in expected} == expected


def test_a_file_of_a_run_that_says_a_thing_twice_is_refused(tmp_path, capsys):
    (tmp_path / "run.json").write_text('{"model": {"hidden_size": 32, "hidden_size": 64}}')
    assert train("--config", str(tmp_path / "run.json")) == 2
    assert "hidden_size twice" in capsys.readouterr().err


@pytest.mark.parametrize("content", ['{"model": 3}', '{"model": []}', '{"data": []}', '{"model": {"kind": {}}}', "[1]"])
@pytest.mark.parametrize("options", ["", "--hidden-size 32", "--data wine"])
def test_a_config_file_of_wrong_types_is_refused_in_words(content, options, tmp_path, capsys):
    (tmp_path / "run.json").write_text(content)
    status = train("--config", str(tmp_path / "run.json"), *options.split(), "--steps", "0")
    assert status == 2 and len(capsys.readouterr().err.splitlines()) == 1


def test_a_person_gets_a_table_and_a_picture(tmp_path, capsys):
    assert train("--strategy", "ddp", "--steps", "3", "--plot", str(tmp_path / "run.png")) == 0
    printed = capsys.readouterr().out
    assert "sockets" in printed and "baseline" in printed and "{" not in printed
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("options", [["--json"], []])
@pytest.mark.parametrize(("place", "words"), [("a pipe", ""), ("/dev/full", "the run is done, but cannot be written")])
def test_a_run_that_nobody_can_read_ends_with_status_1_and_no_traceback(options, place, words, capsys, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    given = build_parser().parse_args(options)
    with open(writer if place == "a pipe" else place, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert _report(given, fake_result(steps=2)) == 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())  # what is left in its buffer
    assert words in capsys.readouterr().err


def test_a_run_starts_without_a_place_for_its_progress(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with _progress(ModelTrainingConfig()) as show:
        show(0, fake_result(steps=1).steps[0])


def free_port():
    """Return a port outside the range from which systems hand out ports, so that nobody is given it meanwhile."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
                return port
            except OSError:  # somebody listens there
                continue
    raise AssertionError("none of 100 ports is free")


@pytest.mark.parametrize(("strategy", "ranks_per_node"), [("ddp", 2), ("zero3", 1)])
def test_two_torchrun_agents_train_as_one_job(strategy, ranks_per_node, tmp_path):
    """Two agents, as on two machines, give the losses of as many ranks launched from here."""
    config = ModelTrainingConfig(strategy=strategy, world_size=2 * ranks_per_node, steps=3, use_mixed_precision=False)
    (tmp_path / "run.json").write_text(config.model_dump_json())
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    command += ["--nproc-per-node", str(ranks_per_node), "--master-addr", "127.0.0.1"]
    command += ["--master-port", str(free_port())]
    job = ["-m", "labs", "train", "--config", str(tmp_path / "run.json"), "--json"]
    agents = [
        subprocess.Popen(
            [*command, "--node-rank", str(node), *job],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
        )
        for node in range(2)
    ]  # fmt: skip
    try:
        outputs = [agent.communicate(timeout=150) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    printed = json.loads(outputs[0][0])
    assert outputs[1][0] == ""  # only rank 0 speaks
    assert not any("Warning" in errors for _, errors in outputs), "ranks of torchrun are as quiet as those of a cell"
    from labs.launcher import launch

    here = launch(config)
    assert printed["losses"] == pytest.approx(here.losses, abs=1e-6)
    assert printed["grad_norms"] == pytest.approx(here.grad_norms, rel=1e-5)
    assert [rank["predicted_bytes"] for rank in printed["traffic"]] == [r.traffic.predicted_bytes for r in here.ranks]
    assert [rank["sent_bytes"] for rank in printed["traffic"]] == [r.traffic.sent_bytes for r in here.ranks]


@pytest.mark.parametrize("command", ["progress", "doctor --help"])
def test_a_reader_who_leaves_gets_no_traceback(command):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "labs", *command.split()], cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


@pytest.mark.parametrize("command", ["train", "explain x.json"])
def test_a_python_without_the_packages_names_the_command_that_brings_them(command):
    done = subprocess.run(
        [sys.executable, "-S", "-m", "labs", *command.split()], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode != 0 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "source .venv/bin/activate" in done.stderr and sys.executable in done.stderr
