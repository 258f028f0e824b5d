"""Where compiled things are kept between runs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def user_cache_folder(name: str) -> Path:
    """Folder `name` in `$GPUSIM_CACHE`, else in `~/.cache/gpusim`, else (not writable) in the temporary folder."""
    base = os.environ.get("GPUSIM_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "gpusim"
    )
    folder = Path(base) / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir()) / name
        folder.mkdir(parents=True, exist_ok=True)
    return folder
