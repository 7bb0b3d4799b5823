"""A file or a folder that is written whole or not at all: a crash, or a full disk, leaves what was there before."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from pathlib import Path

MARK = ".labs-weights"  # stands in a folder that `put_in_place` may replace


def write_whole(path: str | os.PathLike, text: str) -> None:
    """Write a new file beside the old one and put it in its place: a reader sees one or the other, never half.

    What is no plain file (a pipe, /dev/stdout), or lies where no second file may stand, is written directly.
    Raises OSError that names this file, not the one beside it; the old file is then as it was.
    """
    given, is_old, is_plain = path, os.path.exists(path), os.path.isfile(path)
    if is_old and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    if is_plain or not is_old:
        path = os.path.realpath(path)  # a link stays a link
    path = Path(path)
    if is_old and not (is_plain and os.access(path.parent, os.W_OK)):
        path.write_text(text, encoding="utf-8")
        return
    fresh = path.with_name(f".labs-{os.getpid()}-{threading.get_ident()}")
    try:
        fresh.write_text(text, encoding="utf-8")
        if is_old:
            shutil.copymode(path, fresh)
        os.replace(fresh, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(given)) from None
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)


def problem_of_folder(folder: str | os.PathLike) -> str | None:
    """Say why a folder must not be replaced: it is a file, or holds what `put_in_place` has not put there."""
    folder = Path(os.path.abspath(folder))
    if folder.exists() and not folder.is_dir():
        return "is a file, not a folder; name a new folder"
    if folder.is_dir() and not (folder / MARK).exists() and (found := sorted(os.listdir(folder))):
        return f"is a folder that holds {', '.join(found[:3])}{' and more' * (len(found) > 3)}; name a new folder"
    return None


def put_in_place(fresh: str | os.PathLike, folder: str | os.PathLike) -> None:
    """Let a finished folder take the place of an older one beside it, which is no link. Raises OSError.

    The old one is moved aside first and removed last: a crash in between leaves both, one as `<folder>.before`.
    """
    (Path(fresh) / MARK).touch()
    before = Path(f"{folder}.before")
    shutil.rmtree(before, ignore_errors=True)
    if os.path.lexists(folder):
        os.replace(folder, before)
    os.replace(fresh, folder)
    shutil.rmtree(before, ignore_errors=True)
