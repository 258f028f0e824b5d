"""Makes `sample` importable by its plain name, wherever pytest is started."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
