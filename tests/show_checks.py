"""Print every check with its wrong answers and the hint that each gets, as a Markdown table.

python tests/show_checks.py > checks.md
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ["LABS_PROGRESS_FILE"] = "off"


def main() -> None:
    """Judge every wrong answer and print a line for each."""
    from known_answers import mistakes, verdict_on

    print("| check | wrong answer | state | hint |\n|---|---|---|---|")
    for mistake in mistakes():
        verdict = verdict_on(mistake)
        name = mistake.answer.__name__.replace("_", " ").strip("<>")
        cells = f"`{mistake.exercise}`", name, verdict.state, verdict.hint.replace("\n", " ").replace("|", "\\|")
        print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
