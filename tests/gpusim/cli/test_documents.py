"""Are the commands in the documents commands that exist?"""

from __future__ import annotations

import doctest
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

import gpusim
from gpusim.cli.main import COMMANDS, Parser, main

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(document: Path) -> list[list[str]]:
    """The `gpusim` command lines in the code blocks of `document`, without comments, pipes and placeholders."""
    found = []
    for block in re.findall(r"^```\w*\n(.*?)^```", document.read_text(), re.S | re.M):
        for line in block.splitlines():
            words = shlex.split(line.removeprefix("$ ").split(" | ")[0], comments=True) if "gpusim " in line else []
            if words[:1] == ["gpusim"]:
                found.append(words[1:])
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_does_every_command_parse(document: Path) -> None:
    modules = {name: module for name, _, module in COMMANDS}
    for name, *arguments in commands(document):
        if name.startswith("-"):
            continue
        parser = Parser(prog=name, allow_abbrev=False)
        import_module(modules[name]).add_arguments(parser)
        parser.parse_args(arguments)


def test_are_the_figures_in_the_readme_what_the_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.findall(r"^\$ gpusim (.*)\n((?:(?!\$ |```).*\n)+)", (ROOT / "README.md").read_text(), re.M)
    assert shown
    for command, output in shown:
        assert main(shlex.split(command)) == 0
        assert capsys.readouterr().out.strip() == output.strip()


def test_does_the_python_example_run(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
    exec(example.replace("seq=4096", "seq=256"), {})
    assert "dram_read_bytes" in capsys.readouterr().out


def test_is_the_example_of_the_package_right() -> None:
    assert doctest.testmod(gpusim).failed == 0
