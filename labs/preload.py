"""Imported once, by the process that forks the ranks: all that a rank would import, so that a fork is all it takes.

The process must keep one thread (a fork copies only the thread that forks), print nothing, and end when the process
that started it ends, even in the middle of the imports.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from labs.folders import LOG_NAME, READY_NAME, SERVER_VARIABLE

TORCH_MODULES = (
    "torch",
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.distributed.checkpoint",
    "torch.nn.parallel",
    "torch.utils.checkpoint",
    "torch.profiler",
    "torch._dynamo",  # DeepSpeed, FSDP2 and fused optimizers pull these in late, once per rank, if nobody does before
    "torch._dynamo.backends.registry",
    "torch._inductor.compile_fx",
    "torch._inductor.compiler_bisector",
    "torch._subclasses.schema_check_mode",
    "torch.profiler._cupti_monitor",
)
DEEPSPEED_MODULES = (
    "labs.strategies.deepspeed",  # first: it forbids DeepSpeed to look for compilers
    "deepspeed",
    "deepspeed.runtime.engine",
    "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.ops",
    "deepspeed.module_inject.auto_ep_layer",  # the engine imports these when it is built
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
)
_LABS = Path(__file__).parent


def _in_room(room: str) -> tuple[str, ...]:
    """Name every module of a folder of labs/."""
    paths = sorted((_LABS / room).rglob("[a-z]*.py"))
    return tuple(".".join(("labs", *path.relative_to(_LABS).with_suffix("").parts)) for path in paths)


# Checks are of a higher floor; their harnesses run on ranks, three to nine times a check.
LABS_MODULES = ("labs.rank", "labs.job", "labs.train", "labs.traced", *_in_room("strategies"), *_in_room("checks"))


def main(owner: int, folder: Path) -> None:
    """Import what ranks need, then write READY_NAME: seconds taken, modules that are missing, files of labs/ loaded."""
    _detach(folder)
    started = time.monotonic()
    imported = threading.Event()
    watch = threading.Thread(target=_end_with_parent, args=(owner, imported, folder))
    watch.start()
    missing = {name: error for name in (*TORCH_MODULES, *DEEPSPEED_MODULES, *LABS_MODULES) if (error := _try(name))}
    imported.set()
    watch.join()
    gc.collect()
    gc.freeze()  # the collector of a rank must not touch, and so copy, the pages that all ranks share
    atexit.register(_leave, folder)  # runs when the notebook's process is gone; ranks leave by os._exit and skip it
    report = {
        "seconds": time.monotonic() - started,
        "missing": missing,
        "num_threads": _num_threads(),
        "files": _labs_files(),
    }
    draft = folder / (READY_NAME + ".draft")
    draft.write_text(json.dumps(report))
    draft.rename(folder / READY_NAME)


def _detach(folder: Path) -> None:
    """Leave the terminal's process group (Ctrl-C is for the notebook) and write to a file instead of the notebook."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = os.open(folder / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ["LABS_PRELOAD"] = "0"  # whatever starts below this process imports for itself
    os.environ["DS_ACCELERATOR"] = "cpu"  # read by deepspeed when it is imported
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of compiler processes
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")  # torch makes this folder when it is imported
    # Idle threads sleep: spinning ones starve other ranks, and on a busy laptop two were 20 times slower than one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy would start a thread per core when it is imported


def _try(name: str) -> str | None:
    """Import a module; return why it could not be, in words, or None. A broken DeepSpeed must not stop plain DDP."""
    try:
        importlib.import_module(name)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _num_threads() -> int:
    """Threads of this process, native ones too where the system tells."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def _labs_files() -> dict[str, int]:
    """Time of last change [ns] of each loaded file of labs/, to notice that one was edited afterwards."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return {file: os.stat(file).st_mtime_ns for file in files if file and file.startswith(str(_LABS))}


def _end_with_parent(parent: int, imported: threading.Event, folder: Path) -> None:
    """End this process if the notebook's process dies before the fork server listens (it notices by itself later)."""
    while os.getppid() == parent:
        if imported.wait(0.5):
            return
    _leave(folder)


def _leave(folder: Path) -> None:
    """Remove the folder and go at once: the libraries' own tidying at exit is slow and can hang."""
    _remove(folder)
    os._exit(0)


def _remove(folder: Path) -> None:
    """Remove the private folder; ranks that are dying may still write into it, so try for a while."""
    for _ in range(30):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


if SERVER_VARIABLE in os.environ:
    _owner, _, _folder = os.environ.pop(SERVER_VARIABLE).partition(":")
    main(int(_owner), Path(_folder))
