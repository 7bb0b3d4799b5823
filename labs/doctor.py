"""Is this machine ready for the course, and if not, which command mends it? Answers before torch is installed too."""

from __future__ import annotations

import argparse
import html
import importlib.metadata
import importlib.util
import json
import math
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
import time
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from labs.units import GiB, MiB, format_bytes, format_seconds

State = Literal["ok", "warn", "fail"]
SIGNS = {"ok": "✓", "warn": "!", "fail": "✗"}
ROOT = Path(__file__).resolve().parent.parent
CGROUP = Path("/sys/fs/cgroup")
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)


@dataclass(frozen=True)
class Line:
    """One finding: what was examined, its state, what was found, and the command that mends it (empty when ok)."""

    name: str
    state: State
    found: str
    mend: str = ""


@dataclass(frozen=True)
class Report:
    """Everything that was examined, readable in a terminal, in a notebook and by a program."""

    lines: tuple[Line, ...]

    @property
    def state(self) -> State:
        """The worst state among the lines."""
        return max((line.state for line in self.lines), key=list(SIGNS).index, default="ok")

    def to_json(self) -> str:
        """Return the report as one JSON object: state, lines (name, state, found, mend)."""
        return json.dumps({"state": self.state, "lines": [asdict(line) for line in self.lines]}, indent=2)

    def __str__(self) -> str:
        width = max((len(line.name) for line in self.lines), default=0)
        rows = []
        for line in self.lines:
            rows.append(f"{SIGNS[line.state]} {line.state:<4}  {line.name:<{width}}  {line.found}")
            if line.mend:
                rows.append(f"{'':<{width + 10}}to mend: {line.mend}")
        return "\n".join([*rows, self._verdict()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "<tr>" + "".join(f"<th scope='col' style='text-align:left'>{name}</th>" for name in COLUMNS) + "</tr>"
        rows = "".join(_html_row(line) for line in self.lines)
        return f"<table><caption>{html.escape(self._verdict())}</caption>{head}{rows}</table>"

    def _verdict(self) -> str:
        return {
            "ok": "This machine is ready.",
            "warn": "This machine is ready, with limits.",
            "fail": "This machine is not ready yet: mend the lines that fail, then examine it again.",
        }[self.state]


COLUMNS = ("state", "examined", "found", "to mend")


def _html_row(line: Line) -> str:
    mend = f"<code>{html.escape(line.mend)}</code>" if line.mend else ""
    cells = (f"{SIGNS[line.state]} {line.state}", html.escape(line.name), html.escape(line.found), mend)
    return "<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in cells) + "</tr>"


def examine() -> Report:
    """Examine this machine, up to two ranks that meet and agree; takes a few seconds, and never raises."""
    return Report(tuple(_guarded(check) for check in CHECKS))


def _guarded(check: Callable[[], Line]) -> Line:
    try:
        return check()
    except Exception as error:  # a broken machine breaks checks in ways nobody foresees: that is a finding too
        name = check.__name__[len("check_") :].replace("_", " ")
        words = f"{type(error).__name__}: {error}".splitlines()
        found = "could not be examined: " + "; ".join(dict.fromkeys([words[0], words[-1]]))
        if isinstance(error, ModuleNotFoundError):
            found = f"could not be examined without {error.name}"
        return Line(name, "fail", found, "make clean lab")


def check_system() -> Line:
    found = f"{os.uname().sysname} {os.uname().machine}" if hasattr(os, "uname") else sys.platform
    if sys.platform == "win32":
        return Line("system", "fail", "Windows itself cannot run the ranks; its Linux (WSL2) can", "wsl --install")
    return Line("system", "ok", found)


def check_python() -> Line:
    found = f"{sys.version.split()[0]} at {sys.prefix}"
    if OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON:
        return Line("Python", "ok", found)
    return Line("Python", "fail", f"{found}; 3.11 to 3.14 is needed", "make clean lab PYTHON=python3.11")


def check_cores() -> Line:
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read(CGROUP / "cpu.max").split()
    if len(quota) == 2 and quota[0] != "max":
        num_cores = min(num_cores, math.ceil(int(quota[0]) / int(quota[1])))
    if num_cores >= 2:
        return Line("cores", "ok", str(num_cores))
    return Line("cores", "warn", "1: ranks take turns, every run is slower", "in a container: docker run --cpus 2")


def check_memory() -> Line:
    num_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in (CGROUP / "memory.max", CGROUP / "memory/memory.limit_in_bytes"):
        limit = _read(file)
        num_bytes = min(num_bytes, int(limit)) if limit.isdigit() else num_bytes
    mend = "close other programs; in a container: docker run --memory 4g"
    return _amount("memory", num_bytes, ok_bytes=3 * GiB, warn_bytes=1.5 * GiB, mend=mend)


def check_disk() -> Line:
    free_bytes = shutil.disk_usage(ROOT).free
    return _amount("free disk", free_bytes, ok_bytes=GiB, warn_bytes=GiB / 4, mend="rm -rf ~/.cache/pip")


def check_temporary_folder() -> Line:
    """Look where runs keep their files; lessons 03, 07 and 08 were measured to need less than 1 MiB there."""
    place = tempfile.gettempdir()
    mend = "export TMPDIR=/a/folder/with/room, then start again"
    line = _amount("temp folder", shutil.disk_usage(place).free, ok_bytes=64 * MiB, warn_bytes=8 * MiB, mend=mend)
    return line if line.state == "ok" else replace(line, found=f"{place} has {line.found}")


def check_shared_memory() -> Line:
    place = Path("/dev/shm")
    if not sys.platform.startswith("linux"):
        return Line("/dev/shm", "ok", "not used on this system")
    if not os.access(place, os.W_OK):
        return Line("/dev/shm", "fail", "missing or not writable: no process can share a lock", "mount /dev/shm")
    total_bytes = shutil.disk_usage(place).total
    return _amount("/dev/shm", total_bytes, ok_bytes=60 * MiB, warn_bytes=0, mend="docker run --shm-size 1g")


def _amount(name: str, num_bytes: float, ok_bytes: float, warn_bytes: float, mend: str) -> Line:
    if num_bytes >= ok_bytes:
        return Line(name, "ok", format_bytes(num_bytes))
    found = f"{format_bytes(num_bytes)}; {format_bytes(ok_bytes)} or more is comfortable"
    return Line(name, "warn" if num_bytes >= warn_bytes else "fail", found, mend)


def check_versions() -> Line:
    """Compare what is installed with constraints.txt; a missing package of the learner's list fails, others warn."""
    tested = tested_versions()
    needed = [_canonical(re.split(r"[<>=!~\[; ]", text)[0]) for text in _project()["dependencies"]]
    missing = [name for name in needed if not _installed(name)]
    other = [
        f"{name} {_installed(name)} (tested: {version})"
        for name, version in tested.items()
        if _installed(name) not in ("", version)
    ]
    if missing or other:
        found = f"missing: {', '.join(missing)}" if missing else "; ".join(other[:6])
        found += f"; {len(other) - 6} more differ" if len(other) > 6 and not missing else ""
        mend = "make lab"
        if sys.prefix != sys.base_prefix:  # in a virtual environment, be it the course's own or not
            mend = f"{shlex.quote(sys.executable)} -m pip install -c constraints.txt -e ."
        return Line("versions", "fail" if missing else "warn", found, mend)
    return Line("versions", "ok", ", ".join(f"{name} {tested[name]}" for name in needed))


def tested_versions() -> dict[str, str]:
    """Read constraints.txt: {canonical package name: version}."""
    pins = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return {_canonical(name): version for name, version in pins}


def _project() -> dict:
    import tomllib  # since Python 3.11: an older one must still get its line

    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed(name: str) -> str:
    """Give the installed version without its build suffix, or nothing."""
    try:
        return importlib.metadata.version(name).split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""


def check_loopback() -> Line:
    interfaces = {name for _, name in socket.if_nameindex()}
    if not interfaces & {"lo", "lo0"}:
        return Line("loopback", "fail", f"no interface lo or lo0 among {sorted(interfaces)}", "ip link set lo up")
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        return Line("loopback", "fail", f"127.0.0.1 does not answer: {error}", "sudo ip link set lo up")
    return Line("loopback", "ok", "127.0.0.1 answers")


def check_two_ranks() -> Line:
    """Start two ranks and let them add up their numbers: the whole path that every lesson uses."""
    for name in ("torch", "deepspeed", "cloudpickle"):
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(name=name)
    from labs.launcher import launch

    start = time.perf_counter()
    sums = launch(_sum_of_ranks, world_size=2, timeout_seconds=120)
    seconds = time.perf_counter() - start
    if sums == [3.0, 3.0]:
        return Line("two ranks", "ok", f"met and agreed in {format_seconds(seconds)}")
    return Line("two ranks", "fail", f"1 + 2 gave {sums} on ranks 0 and 1", "restart the kernel, then make doctor")


def _sum_of_ranks() -> float:
    import torch
    import torch.distributed as dist

    number = torch.tensor(float(dist.get_rank() + 1))
    dist.all_reduce(number)
    return number.item()


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


CHECKS = (
    check_system,
    check_python,
    check_cores,
    check_memory,
    check_disk,
    check_temporary_folder,
    check_shared_memory,
    check_versions,
    check_loopback,
    check_two_ranks,
)


def main(argv: list[str] | None = None) -> int:
    """Print the report (--json for programs); returns 1 when a line fails, else 0."""
    parser = argparse.ArgumentParser(prog="python -m labs doctor", description="Examine this machine.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    report = examine()
    print(report.to_json() if options.json else report)
    return int(report.state == "fail")


class _CallableModule(types.ModuleType):
    """Lets `labs.doctor()` examine the machine: the name is this module as soon as anyone imports it."""

    def __call__(self) -> Report:
        return examine()


sys.modules[__name__].__class__ = _CallableModule

if __name__ == "__main__":
    sys.exit(main())
