"""What commands ask of the root that they start: the options of the user, and of the environment."""

from __future__ import annotations

import tempfile

import pytest

from phalanx.cli import main
from phalanx.cli.launch import script_root
from phalanx.cli.main import _parser
from phalanx.magics.arguments import line_parser, subcommands
from phalanx.workspace import Workspace
from phalanx.workspace import workspace as workspace_module


class AskedError(Exception):
    """A root was asked for; nothing is started."""


@pytest.fixture
def told(monkeypatch, tmp_path):
    """What roots would have been told; none is started."""
    told = []

    def start(options, *_, **__):
        told.append(options)
        raise AskedError

    monkeypatch.setattr(workspace_module, "launch_root", start)
    monkeypatch.setattr(script_root, "ScriptRoot", start)
    for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return told


@pytest.fixture
def asked(told):
    """Run a command up to the start of its root; what the root would have been told."""

    def ask(*words):
        with pytest.raises(AskedError):
            main(list(words))
        return told.pop()

    return ask


@pytest.mark.parametrize("option", ["--heartbeat-timeout", "--silence"])
def test_the_heartbeat_timeout_is_what_the_user_says(asked, option):
    assert asked("launch", option, "12", "true").world.heartbeat_timeout_s == 12.0
    assert asked("launch", "true").world.heartbeat_timeout_s == 5.0


STARTS = [["launch", "{}", "true"], ["bench", "{}", "-n", "2"]]


@pytest.mark.parametrize("words", STARTS, ids=" ".join)
@pytest.mark.parametrize(
    ("variable", "said", "expected"),
    [
        ("any", "tcp", "tcp"),
        ("tcp", "any", "any"),
        ("tcp", None, "tcp"),
        ("", None, "any"),
        ("", "tcp", "tcp"),
        (None, None, "any"),
    ],
)
def test_what_the_user_says_of_the_transport_beats_the_environment(
    asked, monkeypatch, words, variable, said, expected
):
    if variable is None:
        monkeypatch.delenv("PHALANX_TRANSPORT", raising=False)
    else:
        monkeypatch.setenv("PHALANX_TRANSPORT", variable)
    option = [f"--transport={said}"] if said else []
    given = [part for word in words for part in (option if word == "{}" else [word])]
    assert asked(*given).world.transport == expected


@pytest.mark.parametrize(("said", "expected"), [("any", "any"), (None, "tcp")])
def test_what_a_program_says_of_the_transport_beats_the_environment(
    told, monkeypatch, said, expected
):
    monkeypatch.setenv("PHALANX_TRANSPORT", "tcp")
    with pytest.raises(AskedError):
        Workspace.start(2, **({"transport": said} if said else {}))
    assert told.pop().world.transport == expected


def test_a_transport_that_is_none_is_blamed_on_the_environment(monkeypatch, capsys):
    monkeypatch.setenv("PHALANX_TRANSPORT", "rdma")
    assert main(["launch", "true"]) == 2
    said = "phalanx launch: PHALANX_TRANSPORT is 'rdma'; it must be 'any' or 'tcp'\n"
    assert capsys.readouterr().err == said


def test_help_names_the_variable_of_the_transport():
    commands, actions = subcommands(_parser()), subcommands(line_parser())
    for parser in (commands["launch"], commands["bench"], actions["start"]):
        assert "PHALANX_TRANSPORT" in " ".join(parser.format_help().split())
