"""The one exception that means "the input is wrong", as opposed to a bug."""

from __future__ import annotations

__all__ = ["UserError"]


class UserError(Exception):
    """Bad input, said in one plain sentence: the option or file, the value, and what is allowed.

    The command line prints `gpusim: error: <sentence>` and exits with status 2. Anything else that is raised is a bug
    and keeps its traceback.
    """
