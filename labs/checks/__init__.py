"""Judges of exercises: `check("lesson.exercise", answer)` runs an answer and says what is right, wrong, and why.

How to write a judge. One file a lesson, labs/checks/<lesson>.py, with a dict EXERCISES; no torch at its top:

    from labs.checks import Exercise, compare, draw
    from labs.checks.reference import memory_math as right

    def gradient_bytes(num_params, precision):
        return num_params * (2 if precision == "bf16" else 4)

    def judge_gradient_bytes(answer):
        return compare(
            answer,
            right.gradient_bytes,
            cases=[(7, "fp32"), *draw(12, num_params=range(1, 10**10), precision=("fp32", "bf16"))],
            misconceptions=[(lambda num_params, precision: 4 * num_params, "In bf16 an element takes 2 bytes.")],
        )

    EXERCISES = {
        "gradient_bytes": Exercise(
            asked="Bytes of the gradients of a model, in fp32 or bf16.",
            judge=judge_gradient_bytes,
            hints=("How many bytes has one element?", "One gradient for each parameter.", "num_params * (2 or 4)"),
        ),
    }

- `compare` is exact unless `tolerance` says otherwise. Any other judge looks for itself and returns `passed(found)`,
  `failed(found, hint, row(what, expected, built), ...)` or `blocked(found, mend)`.
- `answer(...)` in a judge runs on a process of its own with a limit: it may raise, loop for ever or return nonsense.
- `on_ranks(answer, arguments_by_rank)` runs it on real ranks and returns for each rank what can be counted: its value,
  bytes on its sockets, collectives in order, messages, bytes held. Judge counted facts, never seconds.
- The course's own solution is labs/checks/reference/<lesson>.py, a function with the name of the exercise: `solved`
  gives it to a learner who goes on without an answer.
- No answer that takes less work than the exercise may pass: who replaces a meter is found (`sealed`), who calls the
  course's own solution as well (borrowed.py), and who says what it cannot have heard. Beyond that nothing is chased:
  with more work than the exercise asks for, Python lets anybody read the check and write what it wants to see.
- Behind every exercise stand wrong answers, each with the hint that it must get: tests/wrong_answers/<lesson>.py.
"""

from labs.checks.answer import STUB_TEXT, Answer, bare
from labs.checks.compare import EXACT, agree, compare, draw
from labs.checks.exercise import Exercise, all_exercises, exercises_of, find_exercise
from labs.checks.hints import hint
from labs.checks.ranks import Call, Message, RankFacts, on_ranks
from labs.checks.session import check, solved
from labs.checks.verdict import Blocked, Row, Verdict, blocked, failed, not_attempted, passed, row

__all__ = [
    "EXACT",
    "STUB_TEXT",
    "Answer",
    "Blocked",
    "Call",
    "Exercise",
    "Message",
    "RankFacts",
    "Row",
    "Verdict",
    "agree",
    "all_exercises",
    "bare",
    "blocked",
    "check",
    "compare",
    "draw",
    "exercises_of",
    "failed",
    "find_exercise",
    "hint",
    "not_attempted",
    "on_ranks",
    "passed",
    "row",
    "solved",
]
