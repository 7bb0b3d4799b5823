"""The choice of the controls as three lines of code, and as a file for the command line."""

from __future__ import annotations

from html import escape
from pathlib import Path

import ipywidgets as widgets

from labs.config import ModelTrainingConfig
from labs.spec import PRESETS, ModelSpec

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


class CodePanel:
    """Shows the code of the current choice, and saves the choice as JSON where the notebook runs."""

    def __init__(self):
        self._config: ModelTrainingConfig | None = None
        self.code = widgets.HTML()
        self.file_name = widgets.Text("run.json", description="file", layout={"width": "330px"})
        self.save_button = widgets.Button(description="Export config", icon="download")
        self.message = widgets.HTML()
        self.save_button.on_click(lambda button: self._save())
        row = widgets.HBox([self.file_name, self.save_button])
        self.screen = widgets.VBox([widgets.HTML("The same in three lines of code:"), self.code, row, self.message])

    def show(self, config: ModelTrainingConfig | None) -> None:
        """Show the code of a config; None while the choice cannot run."""
        self._config = config
        self.save_button.disabled = config is None
        text = "this choice cannot run; see above" if config is None else code_for(config)
        self.code.value = f"<pre>{escape(text)}</pre>"

    def _save(self) -> None:
        path = Path(self.file_name.value.strip() or "run.json")
        try:
            replaced = path.exists()
            path.write_text(self._config.model_dump_json(indent=1) + "\n")
        except OSError as problem:
            self.message.value = escape(f"{path} could not be written: {problem.strerror}; try another file name")
            return
        done = "replaced" if replaced else "written"
        self.message.value = f"{done}; in a terminal: <code>python -m labs train --config {escape(str(path))}</code>"
