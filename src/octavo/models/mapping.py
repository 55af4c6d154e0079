"""Files as read-only memory, whose pages can be fetched ahead and given back."""

from __future__ import annotations

import mmap
import os
from pathlib import Path


def map_file(path: Path) -> mmap.mmap:
    """Map a file that is not empty, to be read. Raises OSError or ValueError."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def drop_pages(data: mmap.mmap, offset: int, num_bytes: int) -> None:
    """Give back the memory of a part; it is read from the file again when needed."""
    if hasattr(mmap, "MADV_DONTNEED"):
        begin = offset // mmap.PAGESIZE * mmap.PAGESIZE
        data.madvise(mmap.MADV_DONTNEED, begin, offset + num_bytes - begin)


def read_ahead(path: Path) -> None:
    """Ask the system to fetch a whole file into its cache; an error is no matter."""
    if not hasattr(os, "posix_fadvise"):
        return
    try:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
    except OSError:
        pass  # whoever reads it says what is wrong
