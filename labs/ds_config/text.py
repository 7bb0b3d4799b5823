"""An explanation as text of 80 columns and as a card for a notebook: the same words in both. No torch."""

from __future__ import annotations

import textwrap
from html import escape

from labs.ds_config.memory import PLACES
from labs.ds_config.refusals import LEVELS, Finding
from labs.units import format_bytes, format_count

WIDTH = 80
SIGNS = {"error": "✗", "warning": "!", "note": "·"}
# JupyterLab's own colours, light and dark; the second is for a page without them.
COLORS = {
    "error": "var(--jp-error-color1, #d32f2f)",
    "warning": "var(--jp-warn-color1, #c77700)",
    "note": "var(--jp-content-font-color2, #767676)",
    "": "var(--jp-success-color1, #2e7d32)",
}


def headline(explanation) -> str:
    """Say in one line whether DeepSpeed takes the config, and what was found."""
    counts = {level: len(explanation.of_level(level)) for level in LEVELS}
    ranks = f"{explanation.world_size:,} rank{'' if explanation.world_size == 1 else 's'}"
    found = ", ".join(f"{n} {level}{'s' if n > 1 else ''}" for level, n in counts.items() if n) or "nothing to remark"
    verdict = "DeepSpeed refuses it" if counts["error"] else "DeepSpeed takes it"
    return f"{explanation.name} on {ranks}: {verdict}; {found}"


def as_text(explanation) -> str:
    """Write headline, findings, effective settings and bytes, each line at most 80 columns wide."""
    parts = [textwrap.fill(headline(explanation), WIDTH)]
    parts += [_finding_lines(finding) for finding in explanation.findings]
    parts.append(_columns("What holds", [(name, value_text(v)) for name, v in explanation.effective.items()]))
    if explanation.memory:
        parts.append(_columns(_memory_title(explanation), [(n, " + ".join(b)) for n, b in memory_rows(explanation)]))
    return "\n\n".join(parts)


def _finding_lines(finding: Finding) -> str:
    head = f"{SIGNS[finding.level]} {finding.level:<8}{finding.key}"[:WIDTH]
    body = f"{finding.what}: {finding.why}" if finding.why else finding.what
    lines = [head, _indented(body + "."), _indented(f"-> {finding.fix}")]
    return "\n".join(lines)


def _indented(text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=" " * 10, subsequent_indent=" " * 10)


def _columns(title: str, rows: list[tuple[str, str]]) -> str:
    wide = max(len(name) for name, _ in rows)
    return "\n".join([title, *(f"  {name:<{wide}}  {text}"[:WIDTH] for name, text in rows)])


def value_text(value) -> str:
    """Write a setting's value for people; None means that the config is refused there."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:g}" if abs(value) >= 1_000_000 or isinstance(value, float) else f"{value:,}"
    text = " ".join(str(value).split())
    return text if len(text) <= 40 else text[:40] + "..."


def _memory_title(explanation) -> str:
    return f"Bytes of one rank, {format_count(explanation.memory.num_parameters)} parameters (arithmetic)"


def memory_rows(explanation) -> list[tuple[str, list[str]]]:
    """List (state, [bytes in each place]) for the states that are held, their sum, and what comes and goes."""
    memory = explanation.memory
    rows = [(state.replace("_", " "), _places(places)) for state, places in memory.states.items()]
    rows.append(("all states", _places({place: memory.place_bytes(place) for place in PLACES})))
    return rows + [(f"{name}, passing", [f"up to {format_bytes(size)}"]) for name, size in memory.passing.items()]


def _places(places: dict[str, int]) -> list[str]:
    names = {"device": "", "host": " on the host", "nvme": " on NVMe"}
    found = [f"{format_bytes(size)}{names[place]}" for place, size in places.items() if size]
    return found or ["0 B"]


def as_html(explanation) -> str:
    """Write one card: a bar in the colour of the worst level, findings with sign and word, two tables side by side."""
    worst = next((level for level in LEVELS[:2] if explanation.of_level(level)), "")
    holds = [(name, value_text(value)) for name, value in explanation.effective.items()]
    tables = [_html_table("What holds", holds)]
    if explanation.memory:
        rows = [(name, " + ".join(sizes)) for name, sizes in memory_rows(explanation)]
        tables.append(_html_table(_memory_title(explanation), rows))
    found = "".join(_html_finding(finding) for finding in explanation.findings)
    columns = "display:flex; flex-wrap:wrap; align-items:flex-start; gap:0 2.5em"  # a short table stays at the top
    side_by_side = f"<div style='{columns}'>{''.join(tables)}</div>"
    style = f"border-left:5px solid {COLORS[worst]}; padding:0.2em 0.9em; margin:0.3em 0; line-height:1.4"
    return f"<div style='{style}'><b>{escape(headline(explanation))}</b>{found}{side_by_side}</div>"


def _html_finding(finding: Finding) -> str:
    color = COLORS[finding.level]
    sign = f"<b><span style='color:{color}'>{SIGNS[finding.level]}</span> {finding.level}</b>"
    key = f"<code style='background:none; padding:0'>{escape(finding.key)}</code>"
    body = f"{escape(finding.what)}: {escape(finding.why)}."
    style = "margin:0.35em 0; max-width:60em"
    return f"<div style='{style}'>{sign} {key}<br>{body} <i>{escape(_sentence(finding.fix))}</i></div>"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith("?") else ".")


def _html_table(title: str, rows: list[tuple[str, str]]) -> str:
    cell = "padding:0.1em 1.2em 0.1em 0; text-align:left; vertical-align:top; background:none"
    body = "".join(
        f"<tr style='background:none'><th scope='row' style='{cell}; font-weight:normal'>{escape(name)}</th>"
        f"<td style='{cell}'>{escape(text)}</td></tr>"
        for name, text in rows
    )
    caption = f"<caption style='text-align:left; white-space:nowrap; padding:0.3em 0'><b>{escape(title)}</b></caption>"
    return f"<table style='color:inherit; border-collapse:collapse; margin:0.4em 0'>{caption}{body}</table>"
