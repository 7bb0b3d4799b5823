"""A choice, or a kept run, to take away: three lines of code, commands for a terminal, a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from shlex import quote

import ipywidgets as widgets

from labs.config import ModelTrainingConfig
from labs.records import RunResult
from labs.spec import PRESETS, ModelSpec
from labs.whole import write_whole
from labs.widgets.pictures import line
from labs.widgets.shown import name_now

CHOICE = "the choice above"
COLUMN = {"flex": "1 1 350px"}
_ALWAYS_SHOWN = ("strategy", "world_size")


def code_for(config: ModelTrainingConfig) -> str:
    """Write the cell that does what the Run button does; fields at their defaults are left out."""
    arguments = [f"{name}={_expression(value)}" for name, value in needed_fields(config).items()]
    call = f"config = ModelTrainingConfig({', '.join(arguments)})"
    if len(call) > 88:
        call = "config = ModelTrainingConfig(\n" + "".join(f"    {argument},\n" for argument in arguments) + ")"
    names = "ModelSpec, ModelTrainingConfig" if "ModelSpec(" in call else "ModelTrainingConfig"
    return f"from labs import {names}, launch, plot_run\n\n{call}\nresult = launch(config)\nplot_run(result)"


def needed_fields(config: ModelTrainingConfig) -> dict:
    """Return the fewest fields from which ModelTrainingConfig rebuilds this config."""
    fields = {name: getattr(config, name) for name in type(config).model_fields}
    for name in [name for name in fields if name not in _ALWAYS_SHOWN]:
        without = {other: value for other, value in fields.items() if other != name}
        if _rebuilds(config, without):
            fields = without
    return dict(sorted(fields.items(), key=lambda item: item[0] not in _ALWAYS_SHOWN))


def _rebuilds(config: ModelTrainingConfig, fields: dict) -> bool:
    try:
        return type(config)(**fields) == config
    except ValueError:
        return False


def _expression(value) -> str:
    if not isinstance(value, ModelSpec):
        return repr(value)
    for name in PRESETS:
        if value == ModelSpec.from_name(name):
            return repr(name)
    changed = {field: getattr(value, field) for field in ModelSpec.model_fields}
    defaults = ModelSpec()
    arguments = [f"{field}={got!r}" for field, got in changed.items() if got != getattr(defaults, field)]
    return f"ModelSpec({', '.join(arguments)})"


def commands_for(config: ModelTrainingConfig, file_name: str) -> str:
    """Write what runs an exported file in a terminal: here, by torchrun, and on two machines where it can."""
    train = f"-m labs train --config {quote(file_name)}"
    lines = [
        "# the same launcher as here",
        f"python {train}",
        "# torchrun, one machine",
        f"torchrun --standalone --nproc-per-node {config.world_size} {train}",
    ]
    if config.world_size % 2 == 0:
        lines += [
            "# torchrun, on each of two machines; HOST is the name of the first",
            f"torchrun --nnodes 2 --nproc-per-node {config.world_size // 2} --rdzv-backend c10d "
            f"--rdzv-endpoint HOST:29500 {train}",
        ]
    return "\n".join(lines)


class ExportPage:
    """Shows a choice or a kept run as code and as commands, and saves it as JSON where the notebook runs."""

    def __init__(self):
        self._config: ModelTrainingConfig | None = None
        self._results: Mapping[str, RunResult] = {}
        look = {"style": {"description_width": "initial"}}
        self.what = widgets.Dropdown(options=[CHOICE], description="export", layout={"width": "330px"}, **look)
        self.file_name = widgets.Text("run.json", description="file", layout={"width": "260px"}, **look)
        self.save_button = widgets.Button(description="Save", icon="download", layout={"width": "110px"})
        self.code, self.commands, self.message = widgets.HTML(), widgets.HTML(), line()
        row = widgets.HBox([self.what, self.file_name, self.save_button], layout={"flex_flow": "row wrap"})
        here = widgets.VBox([widgets.HTML("In a notebook, in three lines:"), self.code], layout=COLUMN)
        there = widgets.VBox([widgets.HTML("In a terminal, with the file:"), self.commands], layout=COLUMN)
        columns = widgets.HBox([here, there], layout={"flex_flow": "row wrap"})
        self.screen = widgets.VBox([row, self.message, columns])
        self.save_button.on_click(lambda button: self._save())
        self.what.observe(lambda change: self._show(), names="value")
        self.file_name.observe(lambda change: self._show(), names="value")

    def offer(self, config: ModelTrainingConfig | None, results: Mapping[str, RunResult]) -> None:
        """Offer the choice of the controls (None while it cannot run) and the kept runs."""
        name = name_now(self.what.value, self._results, results)
        self._config, self._results = config, dict(results)
        options = (CHOICE, *self._results)
        if self.what.options != options:
            self.what.options = options
            self.what.value = name if name in options else CHOICE
        self._show()

    @property
    def chosen(self) -> ModelTrainingConfig | None:
        run = self._results.get(self.what.value)
        return run.config if run else self._config

    def _show(self) -> None:
        config = self.chosen
        self.save_button.disabled = config is None
        if config is None:
            self.code.value = self.commands.value = "this choice cannot run; see above"
            return
        self.code.value = _copied(code_for(config))
        self.commands.value = _copied(commands_for(config, str(self._path)))

    @property
    def _path(self) -> Path:
        return Path(self.file_name.value.strip() or "run.json")

    def _save(self) -> None:
        path, run = self._path, self._results.get(self.what.value)
        if self.chosen is None:  # the click was under way when the button was disabled
            return
        try:
            replaced = path.exists()
            if replaced and not _is_ours(path):
                self.message.value = escape(f"{path} holds something else, and was left alone; try another file name")
                return
            if run:
                run.save(path)
            else:
                write_whole(path, self._config.model_dump_json(indent=1) + "\n")
        except OSError as problem:
            self.message.value = escape(f"{path} could not be written: {problem.strerror}; try another file name")
            return
        what = "the run, with all that was measured" if run else "the choice"
        self.message.value = escape(f"{'replaced' if replaced else 'written'}: {path} holds {what}")


def _is_ours(path: Path) -> bool:
    """Whether a file holds a run or the description of one, so that another may take its place. Raises OSError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return False
    config = data.get("config", data) if isinstance(data, dict) else None
    return isinstance(config, dict) and "architecture_name" in config


def _copied(text: str) -> str:
    return f'<pre class="labs-code" tabindex="0">{escape(text)}</pre>'
