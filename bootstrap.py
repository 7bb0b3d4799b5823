"""Prepare .venv: the tested versions, the course itself and its kernel. Run by `make`; standard library only.

The second time nothing has changed, and it returns at once without a network. `bootstrap.py doctor` examines the
machine with the Python that would make .venv. Written for any Python 3.6 and newer, because its first duty is to say
that the one at hand is too old.
"""

import hashlib
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(ROOT, ".venv")
VENV_PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "installed.txt")
LOG = os.path.join(VENV, "install.log")
NEEDED_BYTES = 4 * 2**30
OLDEST, NEWEST = (3, 11), (3, 14)  # torch 2.13.0 has wheels for these
PROBE = """import sys, importlib.util
print(*sys.version_info[:2], int(importlib.util.find_spec("ensurepip") is not None), sys.prefix)"""
NO_NETWORK = ("NewConnectionError", "NameResolutionError", "ConnectTimeout", "ReadTimeout", "ProxyError", "SSLError")
AGAIN = "then the same make command again."
OTHER_PYTHON = (
    "install one (Debian, Ubuntu: sudo apt-get install python3.11-venv; macOS: brew install python@3.12), "
    "or name yours: make lab PYTHON=/path/to/python3.12"
)


class SetupError(Exception):
    """One sentence: what is missing and which command mends it."""


def main():
    """Bring .venv up to date, or run the doctor without it; returns the exit status."""
    try:
        if sys.argv[1:2] == ["doctor"]:
            return subprocess.call([find_python(), "-m", "labs.doctor"] + sys.argv[2:], cwd=ROOT)
        if not is_current():
            make_ready()
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup: stopped; the same make command goes on from here.", file=sys.stderr)
        return 130
    return 0


def make_ready():
    """Create .venv where there is none that works, install into it, register the kernel, and stamp it as done."""
    if works_here():
        check_disk()
    else:
        python = find_python()
        check_disk()
        create_venv(python)
    install()
    register_kernel()
    with open(STAMP, "w") as stamp:
        stamp.write(fingerprint())


def fingerprint():
    """Name what .venv was made from: the two lists, and the place, since a virtual environment cannot be moved."""
    digest = hashlib.sha256(VENV.encode())
    for name in ("pyproject.toml", "constraints.txt", "bootstrap.py"):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def is_current():
    """Tell whether .venv was finished from the present lists and still starts."""
    try:
        with open(STAMP) as stamp:
            return stamp.read() == fingerprint() and works_here()
    except OSError:
        return False


def works_here():
    """Tell whether .venv belongs to this folder and its Python fits and starts; a half-made or moved one does not."""
    try:
        with open(os.path.join(VENV, "bin", "pip"), errors="replace") as script:
            belongs_here = VENV in script.read(4096)
    except OSError:
        return False
    answer = probe(VENV_PYTHON)
    return belongs_here and answer is not None and OLDEST <= answer[0] <= NEWEST


def probe(python):
    """Ask an interpreter for (version, has ensurepip, prefix); None when it does not start."""
    try:
        answer = subprocess.run([python, "-c", PROBE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
        major, minor, ensurepip, prefix = answer.stdout.decode().strip().split(" ", 3)
        return (int(major), int(minor)), ensurepip == "1", prefix
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def find_python():
    """Choose the interpreter that makes .venv: the one that runs this, else python3 or a named version on the PATH."""
    names = [sys.executable, "python3"] + [f"python3.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
    found = []
    for path in filter(None, (shutil.which(name) for name in names)):
        answer = probe(path)
        if answer and os.path.realpath(answer[2]) != os.path.realpath(VENV):
            found.append((path, *answer[:2]))
    fitting = [candidate for candidate in found if OLDEST <= candidate[1] <= NEWEST]
    if not fitting:
        had = "Python {}.{} ({})".format(*found[0][1], found[0][0]) if found else "none"
        raise SetupError(f"Python 3.11 to 3.14 is needed and {had} was found: {OTHER_PYTHON}")
    complete = [path for path, _, has_ensurepip in fitting if has_ensurepip]
    if not complete:
        path, version, _ = fitting[0]
        raise SetupError(f"{path} cannot make a virtual environment: {venv_package(version)}")
    return complete[0]


def venv_package(version):
    """Say how Debian's and Ubuntu's Python gets what they took out of it."""
    return "sudo apt-get install python{}.{}-venv, {}".format(*version, AGAIN)


def check_disk():
    """Refuse to start an install that cannot end."""
    free_bytes = shutil.disk_usage(ROOT).free
    if free_bytes < NEEDED_BYTES:
        raise SetupError(
            f"{free_bytes / 2**30:.1f} GiB are free here and the install needs {NEEDED_BYTES / 2**30:.0f}: "
            f"free some, for instance with rm -rf ~/.cache/pip, {AGAIN}"
        )


def create_venv(python):
    """Make an empty .venv in place of what may stand there."""
    print(f"setup: making .venv with {python}", flush=True)
    answer = subprocess.run([python, "-m", "venv", "--clear", VENV], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if answer.returncode:
        reason = (answer.stdout.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        raise SetupError(f"{python} could not make .venv ({reason}): {venv_package(probe(python)[0])}")


def install():
    """Install the tested versions and the course itself, editable; pip's own words go to a log."""
    print("setup: installing, several minutes the first time; details in .venv/install.log", flush=True)
    command = [VENV_PYTHON, "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    command += ["-c", "constraints.txt", "-e", ".[test,author]"]
    # DeepSpeed would otherwise look for compilers to build operators that no lesson uses.
    environment = dict(os.environ, DS_BUILD_OPS="0", PIP_DISABLE_PIP_VERSION_CHECK="1")
    words = []
    with open(LOG, "w") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for raw in process.stdout:
            words.append(raw.decode(errors="replace"))
            log.write(words[-1])
            show_progress(words[-1].strip())
    if process.wait():
        raise SetupError(explain("".join(words)))


def show_progress(line):
    """Keep one line of a terminal alive with what pip is busy with; print nothing into a file."""
    if sys.stdout.isatty() and line.startswith(("Collecting", "Installing", "Successfully")):
        print(f"\r\033[K  {line[:70]}", end="\n" if line.startswith("Successfully") else "", flush=True)


def explain(words):
    """Turn pip's failure into one sentence with the command that mends it."""
    if "No space left on device" in words:
        return f"the disk is full: free some room, for instance with rm -rf ~/.cache/pip, {AGAIN}"
    if any(sign in words for sign in NO_NETWORK):
        proxy = "behind a proxy: export HTTPS_PROXY=http://HOST:PORT"
        return f"pip reached no package index: connect to a network ({proxy}), {AGAIN}"
    lines = [line.strip() for line in words.splitlines()]  # what a build says is indented
    error = ([line for line in lines if line.startswith("ERROR:")] or ["no reason given"])[0]
    return f"pip stopped ({error}): read .venv/install.log, then start afresh with make clean lab"


def register_kernel():
    """Give the kernel the environment's tools (torchrun, ninja), also where .venv was never activated.

    OpenMP's idle threads shall sleep: while they spin, they take the cores from the ranks and from each other.
    """
    path = os.path.join(VENV, "bin") + os.pathsep + "${PATH}"
    command = [VENV_PYTHON, "-m", "ipykernel", "install", "--prefix", VENV, "--name", "python3"]
    command += ["--display-name", "Distributed Training", "--env", "PATH", path, "--env", "OMP_WAIT_POLICY", "PASSIVE"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
