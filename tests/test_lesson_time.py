"""Laws of the minutes: a header states what can be counted, and README adds up what the headers state."""

import re

import pytest

from labs import lesson_time
from labs.lessons import ROOT, LessonError, execute, find_lessons, read_source

LESSONS = find_lessons()
README = (ROOT / "README.md").read_text()
ROW = re.compile(r"^\| (\d\d) \| \[\w+\]\(\S+\) \| [^|]+ \| (\d+) \| (\d+) s \|", re.M)
WITHIN_MINUTES = 5  # a header states multiples of five or the like; two people who read do not differ by less

SOURCE = """**Time** 7 minutes: 4 of reading and running, 3 of exercises.

**Predict.** Is 3 < 4, <b>or</b> [not so](a_long_address.ipynb), and 5 > 4?

```{code-cell} ipython3
import time

time.sleep(0.3)
```

```{code-cell} ipython3
### BEGIN SOLUTION
answer = 1
### END SOLUTION
check = print
check("a.b", answer)
```
"""


@pytest.fixture
def made(tmp_path):
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "00_small.md").write_text(SOURCE)
    return find_lessons(tmp_path)[0]


def stated():
    """Minutes that each lesson's header states, by the lesson's number."""
    return {lesson.name[:2]: lesson_time.count(lesson).stated_minutes for lesson in LESSONS}


@pytest.mark.parametrize("lesson", LESSONS, ids=[lesson.name for lesson in LESSONS])
def test_a_header_states_the_minutes_that_reading_takes_and_adds_them_up(lesson):
    time = lesson_time.count(lesson)
    assert abs(time.stated_reading_minutes - time.reading_minutes) <= WITHIN_MINUTES, time
    parts = time.stated_reading_minutes, time.stated_lab_minutes, time.stated_exercise_minutes
    assert time.stated_minutes == sum(parts), time
    assert time.num_exercises >= 1 and time.stated_exercise_minutes >= 2 * time.num_exercises, time


def test_readme_gives_each_lesson_the_minutes_of_its_header():
    assert {number: int(minutes) for number, minutes, _ in ROW.findall(README)} == stated()


@pytest.mark.parametrize(("path", "also"), [("Half a day", ()), ("One day", ("Half a day",))])
def test_a_path_of_readme_takes_the_minutes_of_its_lessons(path, also):
    numbers = set()
    for name in (*also, path):
        numbers |= set(re.findall(r"\b\d\d\b", re.search(rf"\*\*{name}[^:]*: ([^.]*)", README, re.M).group(1)))
    hours, minutes = map(int, re.search(rf"\*\*{path}[^(]*\((\d+) h (\d+) min\)", README).groups())
    assert 60 * hours + minutes == sum(stated()[number] for number in numbers) and len(numbers) >= 4


def test_the_lessons_fit_the_computing_that_the_course_promises():
    """README keeps what `python -m labs.lesson_time` measured; nothing here takes the time again."""
    seconds = [int(seconds) for _, _, seconds in ROW.findall(README)]
    assert len(seconds) == len(LESSONS) and max(seconds) < 60 and sum(seconds) < 600


def test_what_can_be_counted_is_counted(made):
    time = lesson_time.count(made)
    counted = (time.num_words, time.num_code_lines, time.num_code_cells, time.num_predictions, time.num_exercises)
    assert counted == (24, 5, 2, 1, 1)
    assert (time.stated_minutes, time.stated_reading_minutes, time.stated_exercise_minutes) == (7, 4, 3)
    assert time.reading_minutes == pytest.approx(24 / 150 + 5 / 20 + 2 * 0.2 + 0.5)


def test_time_in_the_lab_is_stated_beside_reading(made):
    made.source.write_text(
        SOURCE.replace("7 minutes: 4 of reading and running,", "9 minutes: 4 of reading and running, 2 in the lab,")
    )
    time = lesson_time.count(made)
    assert (time.stated_minutes, time.stated_reading_minutes, time.stated_lab_minutes) == (9, 4, 2)


def test_a_header_without_minutes_is_refused_with_the_form_it_needs(made):
    made.source.write_text(SOURCE.replace("of exercises", "of fun"))
    with pytest.raises(LessonError, match="00_small.md does not say.*60 minutes: 30 of reading and running"):
        lesson_time.count(made)


def test_the_command_prints_a_row_for_each_lesson_it_is_given(made, monkeypatch, capsys):
    monkeypatch.setattr(lesson_time, "find_lessons", lambda names: [made])
    assert lesson_time.main(["00"]) == 0
    heading, row, total = capsys.readouterr().out.splitlines()
    assert row.split()[:5] == ["00_small", "24", "5", "1", "1"] and "4 of 7" in row
    assert total.startswith("computing, all of them: ")


def test_the_command_refuses_an_unknown_lesson_with_the_known_ones(capsys):
    assert lesson_time.main(["99"]) == 1
    assert "'99'" in (said := capsys.readouterr().err) and "00_start_here" in said


def test_seconds_are_those_of_the_cells(made):
    slept, ran = lesson_time.computing_seconds(execute(read_source(made.source), made.source.parent, True))
    assert slept >= 0.3 > ran
