"""A verdict as a card for a notebook and as text for everywhere else: the same words in both."""

from __future__ import annotations

import html

from labs.checks.verdict import SIGNS, Row, Verdict

# JupyterLab's own colours, light and dark; the second is for a page without them.
COLORS = {
    "passed": "var(--jp-success-color1, #2e7d32)",
    "failed": "var(--jp-error-color1, #d32f2f)",
    "not attempted": "var(--jp-content-font-color2, #767676)",
    "blocked": "var(--jp-warn-color1, #c77700)",
}
COLUMNS = ("", "expected", "built")


def as_text(verdict: Verdict) -> str:
    """Write a verdict as lines: state and evidence, expected beside built, hint."""
    lines = [f"{SIGNS[verdict.state]} {verdict.exercise}: {verdict.state}. {verdict.found}"]
    if verdict.asked and verdict.state != "passed":
        lines.append(f"  asked: {verdict.asked}")
    for row in verdict.rows:
        lines += [f"  {row.what}", f"    expected: {row.expected}", f"    built:    {row.built}"]
    lines += [f"  {_name_of_hint(verdict).lower()}: {verdict.hint}"] if verdict.hint else []
    lines += [f"  note: {verdict.note}"] if verdict.note else []
    return "\n".join(lines)


def as_html(verdict: Verdict) -> str:
    """Write a verdict as one card: a bar in the colour of its state, the state in a word and a sign, the evidence."""
    color = COLORS[verdict.state]
    head = (
        f"<b><span style='color:{color}'>{SIGNS[verdict.state]}</span> {verdict.state}</b> "
        f"<code style='background:none; padding:0'>{html.escape(verdict.exercise)}</code>"
    )
    parts = [f"<div>{head}</div>"]
    if verdict.asked and verdict.state != "passed":
        parts.append(f"<div style='opacity:0.75'>{_escaped(verdict.asked)}</div>")
    parts.append(_found(verdict.found))
    if verdict.rows:
        parts.append(_table(verdict))
    if verdict.hint:
        parts.append(f"<div style='margin-top:0.4em'><b>{_name_of_hint(verdict)}</b> {_escaped(verdict.hint)}</div>")
    if verdict.note:
        parts.append(f"<div style='margin-top:0.4em; opacity:0.75'><b>Note</b> {_escaped(verdict.note)}</div>")
    style = f"border-left:5px solid {color}; padding:0.2em 0.9em; margin:0.3em 0; line-height:1.45; max-width:60em"
    return f"<div role='status' style='{style}'>{''.join(parts)}</div>"


def _name_of_hint(verdict: Verdict) -> str:
    return "To mend" if verdict.state == "blocked" else "Hint"


def _found(text: str) -> str:
    """The first line is a sentence; what follows, a traceback or a list by rank, keeps its columns."""
    sentence, _, rest = text.partition("\n")
    block = f"<pre style='margin:0.3em 0; white-space:pre-wrap'>{html.escape(rest)}</pre>" if rest else ""
    return f"<div>{html.escape(sentence)}</div>{block}"


def _table(verdict: Verdict) -> str:
    cell = "padding:0.15em 1.2em 0.15em 0; text-align:left; vertical-align:top; background:none"
    head = "".join(f"<th scope='col' style='{cell}'>{name}</th>" for name in COLUMNS)
    rows = "".join(
        f"<tr style='background:none'>"
        f"<td style='{cell}'><code style='background:none; padding:0'>{html.escape(row.what)}</code></td>"
        f"<td style='{cell}'>{_escaped(row.expected)}</td><td style='{cell}'>{_built(row)}</td></tr>"
        for row in verdict.rows
    )
    return f"<table style='margin:0.4em 0; color:inherit; border-collapse:collapse'><tr>{head}</tr>{rows}</table>"


def _built(row: Row) -> str:
    """Bold where it is not what was expected."""
    return _escaped(row.built) if row.built == row.expected else f"<b>{_escaped(row.built)}</b>"


def _escaped(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")
