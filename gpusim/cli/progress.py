"""Progress on standard error for whatever takes more than two seconds."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self, TextIO

__all__ = ["Progress"]

SILENT_SECONDS = 2.0
"""Work that is done sooner shows nothing."""
REDRAW_SECONDS = 0.25
LINE_SECONDS = 10.0
"""Time between lines where standard error is no terminal."""
BAR_WIDTH = 24


class Progress:
    """A context manager to call with the share done, 0 to 1.

    with Progress("flash2", 1024, "CTAs") as progress:
        simulate(plan, gpu, progress=progress)

    A thread draws it, so that it lives on while nothing ends (compilation, persistent CTAs). On a terminal one line is
    redrawn, elsewhere a line is added every `LINE_SECONDS`.
    """

    def __init__(self, label: str, total: int, unit: str, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._stream = sys.stderr if stream is None else stream
        self._share = 0.0
        self._started = self._first = time.monotonic()
        self._drawn = False
        self._over = threading.Event()
        self._thread = None if quiet else threading.Thread(target=self._watch, daemon=True)

    def __call__(self, share: float) -> None:
        if not self._share:
            self._first = time.monotonic()
        self._share = share

    def __enter__(self) -> Self:
        if self._thread:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread:
            self._thread.join()
        if self._drawn and self._stream.isatty():
            self._stream.write("\r\033[K")
            self._stream.flush()

    def _watch(self) -> None:
        terminal = self._stream.isatty()
        wait = SILENT_SECONDS if terminal else LINE_SECONDS
        while not self._over.wait(wait):
            wait = REDRAW_SECONDS if terminal else LINE_SECONDS
            text = self.text(time.monotonic())
            self._stream.write(f"\r{text}\033[K" if terminal else f"{text}\n")
            self._stream.flush()
            self._drawn = True

    def text(self, now: float) -> str:
        """The line at time `now` (of `time.monotonic`): label, bar, units done, time spent, time left."""
        filled = int(self._share * BAR_WIDTH)
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        done = f"{round(self._share * self._total):,} of {self._total:,} {self._unit}"
        left = ""
        # The first moments compile programs and fill the machine: they say nothing about the rest.
        if self._share > 0.02 and now > self._first:
            seconds = (now - self._first) / self._share * (1 - self._share)
            left = f", about {_clock(seconds)} left"
        return f"{self._label} [{bar}] {done}, {_clock(now - self._started)}{left}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
