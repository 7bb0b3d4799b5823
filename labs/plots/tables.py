"""The same numbers as the plots, to be read, copied, or heard."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape

from labs.plots.view import RunView, model_state_bytes, run_name, sent_bytes_per_step, view_of, views_of
from labs.records import STATES, RunResult
from labs.units import format_bytes, format_figures, format_seconds


@dataclass(frozen=True)
class Table:
    """A table of text: `print` aligns its columns, a notebook shows it as HTML."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(line[index]) for line in lines) for index in range(len(self.columns))]
        return "\n".join([self.caption, *(_aligned(line, widths) for line in lines)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(_html_cell("th", name, index, "col") for index, name in enumerate(self.columns))
        body = "".join(f"<tr>{_html_row(row)}</tr>" for row in self.rows)
        caption = (
            f'<caption style="text-align:left;font-weight:bold;white-space:nowrap">{escape(self.caption)}</caption>'
        )
        style = "border-collapse:collapse;line-height:1.3;margin:8px 0"
        return f'<table style="{style}">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _aligned(line: tuple[str, ...], widths: list[int]) -> str:
    first, *others = zip(line, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()


def _html_row(row: tuple[str, ...]) -> str:
    first, *others = row
    return _html_cell("th", first, 0, "row") + "".join(_html_cell("td", cell, 1) for cell in others)


def _html_cell(tag: str, text: str, index: int, scope: str = "") -> str:
    """Write one cell; styles stand in it because a notebook page keeps no style sheet of ours."""
    side = "right" if index else "left"
    style = f"text-align:{side};padding:2px 10px;border-top:1px solid #ddd"
    body = escape(text) if scope == "col" else _unbroken(text)
    scope = f'scope="{scope}" ' if scope else ""
    return f'<{tag} {scope}style="{style}">{body}</{tag}>'


def _unbroken(text: str) -> str:
    """Keep a number with its unit on one line: where the page is narrow, a cell breaks after "/" and "," alone."""
    parts = [f'<span style="white-space:nowrap">{escape(part)}</span>' for part in re.split(r"(?<=[/,]) ", text)]
    return " ".join(parts)


def table_memory(run) -> Table:
    """List the bytes of each state on each rank, predicted / measured, and the difference of the totals."""
    view = view_of(run)
    used = [state for state in STATES if any(states.get(state) for states in (*view.predicted, *view.measured))]
    rows = [_memory_row(view, rank, used) for rank in range(len(view.predicted))]
    columns = ("rank", *(state.replace("_", " ") for state in used), "total", "difference", "peak parameters")
    return Table("Bytes held, predicted / measured", columns, tuple(rows))


def _memory_row(view: RunView, rank: int, used: list[str]) -> tuple[str, ...]:
    predicted = view.predicted[rank]
    measured = view.measured[rank] if rank < len(view.measured) else None
    cells = [_pair(predicted.get(state, 0), measured and measured.get(state, 0)) for state in used]
    total, held = sum(predicted.values()), measured and sum(measured.values())
    difference = "-" if measured is None else f"{held - total:+,} B"
    peak = view.peaks[rank] if rank < len(view.peaks) else None
    peaks = _pair(peak.predicted_bytes, peak.measured_bytes) if peak else "-"
    return (f"rank {rank}", *cells, _pair(total, held), difference, peaks)


def _pair(predicted: int, measured: int | None) -> str:
    return f"{format_bytes(predicted)} / {'-' if measured is None else format_bytes(measured)}"


def table_traffic(run) -> Table:
    """List the bytes that each rank sent: ideal ring, gloo predicted, sockets measured."""
    rows = tuple(_traffic_row(rank, record) for rank, record in enumerate(view_of(run).traffic))
    columns = ("rank", "ideal ring (theory)", "gloo (predicted)", "sockets (measured)", "off by", "collectives")
    return Table("Bytes sent over all training steps", columns, rows)


def _traffic_row(rank: int, record) -> tuple[str, ...]:
    sent, predicted = record.sent_bytes, record.predicted_bytes
    off = "-" if not sent or not predicted else f"{sent / predicted - 1:+.2%}"
    measured = "not measured" if sent is None else format_bytes(sent)
    collectives = ", ".join(f"{count} {kind}" for kind, count in record.collectives.items()) or "none"
    return (f"rank {rank}", format_bytes(record.theory_bytes), format_bytes(predicted), measured, off, collectives)


def table_loss(runs) -> Table:
    """List first and last training loss, last validation loss and its baseline [nats] of each run."""
    rows = tuple(_loss_row(name, view) for name, view in views_of(runs).items())
    return Table("Loss [nats]", ("run", "steps", "first loss", "last loss", "validation", "baseline"), rows)


def _loss_row(name: str, view: RunView) -> tuple[str, ...]:
    losses = [f"{view.steps[index].loss:.4f}" for index in (0, -1)] if view.steps else ["-", "-"]
    last = view.evals[-1] if view.evals else None
    evaluated = [f"{last.validation_loss:.4f}", f"{last.baseline_loss:.4f}"] if last else ["-", "-"]
    return (name, str(len(view.steps)), *losses, *evaluated)


def table_layer_norms(run) -> Table:
    """List the gradient norm of each layer before clipping at the first, the middle and the last step."""
    steps = view_of(run).steps
    chosen = [steps[index] for index in sorted({0, len(steps) // 2, len(steps) - 1})] if steps else []
    layers = list(chosen[0].layer_grad_norms) if chosen else []
    rows = [(layer, *(format_figures(record.layer_grad_norms[layer]) for record in chosen)) for layer in layers]
    if chosen:
        rows.append(("all (global norm)", *(format_figures(record.grad_norm) for record in chosen)))
    return Table("Gradient norm by layer", ("layer", *(f"step {record.step + 1}" for record in chosen)), tuple(rows))


def table_comparison(runs) -> Table:
    """List kept runs: last loss, bytes of the fullest rank, bytes sent a step by one rank, steps a second."""
    rows = tuple(_comparison_row(name, view) for name, view in views_of(runs).items())
    columns = ("run", "last loss", "validation", "states held", "activations", "sent a step", "steps a second")
    return Table("Kept runs, measured; bytes of the fullest rank", columns, rows)


def _comparison_row(name: str, view: RunView) -> tuple[str, ...]:
    _, _, _, last, validation, _ = _loss_row(name, view)
    held = max(map(model_state_bytes, view.measured), default=0)
    activations = max((states.get("activations", 0) for states in view.measured), default=0)
    sent = sent_bytes_per_step(view)
    sent_text = "not measured" if sent is None else format_bytes(sent)
    speed = len(view.steps) / sum(step.seconds for step in view.steps) if view.steps else 0
    return (name, last, validation, format_bytes(held), format_bytes(activations), sent_text, f"{speed:.1f}")


def describe_run(run: RunResult) -> str:
    """Return a finished run as text for a terminal: its name and speed, then the tables of loss, memory and traffic."""
    speed = f"started in {format_seconds(run.startup_seconds)}, {run.steps_per_second:.1f} steps a second"
    if len(run.steps) < run.config.steps:
        speed += f"\nended {run.ended_because}"
    parts = [
        f"{run_name(run.config)}: {speed}",
        table_loss(run),
        table_layer_norms(run),
        table_memory(run),
        table_traffic(run),
    ]
    return "\n\n".join(str(part) for part in parts)
