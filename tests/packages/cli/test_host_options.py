"""The commands that reach hosts take the same options; one without effect says so."""

from __future__ import annotations

import argparse
import json

import pytest

from phalanx.cli import main
from phalanx.cli.config.command import _IDLE as IDLE_IN_CONFIG
from phalanx.cli.doctor.command import _IDLE as IDLE_IN_DOCTOR
from phalanx.cli.main import _parser
from phalanx.hosts import add_host_arguments
from phalanx.magics.arguments import line_parser, subcommands

COMMANDS = subcommands(_parser())
REACHING = {
    "%distributed start": subcommands(line_parser())["start"],
    **{f"phalanx {name}": COMMANDS[name] for name in ("launch", "bench", "doctor", "config")},
}
# Options of one command that others lack, although they are about hosts, each with its reason.
OF_ONE = {
    "--no-verify-script": "launch alone has a script to look for",
    "--backend": "start has one backend; doctor and config name what a hostfile can be for",
    "--ignore-unreachable": "config asks hosts, and needs none of them",
    "--timeout": "of the ranks (launch), of a step (doctor), of all questions (config)",
    "--transport": "doctor and config make no group of the user's",
}


def actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return parser._option_string_actions


def shared() -> dict[str, argparse.Action]:
    parser = argparse.ArgumentParser(add_help=False)
    add_host_arguments(parser.add_argument)
    return actions(parser)


def parsed(action: argparse.Action) -> tuple[object, ...]:
    """What an option takes, without its help."""
    return action.option_strings, action.dest, action.nargs, action.type, action.default


@pytest.mark.parametrize("command", REACHING)
def test_each_command_takes_every_option(command):
    ours = actions(REACHING[command])
    for name, action in shared().items():
        assert name in ours, f"{command} has no {name}"
        assert parsed(ours[name])[1:3] == parsed(action)[1:3]
        assert set(ours[name].option_strings) == set(action.option_strings)


def test_what_one_command_says_of_hosts_all_others_say():
    """An option whose help names hosts or ssh is shared, or has a reason."""
    known = {*shared(), *OF_ONE}
    for command, parser in REACHING.items():
        for name, action in actions(parser).items():
            is_about_hosts = any(word in (action.help or "") for word in ("ssh", "on every host"))
            assert name in known or not is_about_hosts, f"{command} {name}"


def test_an_option_without_effect_says_so():
    idle = {"phalanx doctor": IDLE_IN_DOCTOR, "phalanx config": IDLE_IN_CONFIG}
    for command, parser in REACHING.items():
        said = {
            action.option_strings[0]
            for name, action in actions(parser).items()
            if name in shared() and (action.help or "").startswith("no effect here: ")
        }
        assert said == set(idle.get(command, ())), command


def test_an_option_without_effect_is_taken_and_told(capsys):
    words = ["-n", "2", "--launcher-arg=-V", "--env", "A=1", "--boot-timeout", "9"]
    assert main(["config", *words]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["envs"] == ["A=1"]
    assert told.err.splitlines() == [
        "phalanx config: -n has no effect: a hostfile of MLX's has no number of ranks",
        "phalanx config: --launcher-arg has no effect: no job is submitted",
        "phalanx config: --boot-timeout has no effect: no rank starts",
    ]
    assert main(["config", "--hosts", "127.0.0.1", "--launcher", "slurm"]) == 0
    assert capsys.readouterr().err == (
        "phalanx config: --launcher has no effect: the hosts are named, and asked by ssh\n"
    )
    assert main(["doctor", "--env", "A=1", "--boot-timeout", "9"]) in {0, 1}
    assert capsys.readouterr().err.splitlines() == [
        "phalanx doctor: --env has no effect: no rank starts",
        "phalanx doctor: --boot-timeout has no effect: no rank starts; --timeout is for the checks",
    ]
