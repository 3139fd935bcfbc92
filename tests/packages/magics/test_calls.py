"""Check which call of the workspace each line of `%distributed` becomes, on a fake workspace."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from IPython.core.error import UsageError
from support.ranks.worlds import make_world

from phalanx import widgets
from phalanx.errors import DistributedError
from phalanx.magics import magics as magics_module
from phalanx.magics.magics import DistributedMagics
from phalanx.protocol import BootOptions
from phalanx.workspace.options import checked_options


class Ranks:
    """A workspace of three ranks that notes what is asked of it."""

    name, size = "ours", 3

    def __init__(self, *, why_lost: str = "", busy: tuple[int, ...] = (0, 1)) -> None:
        self.is_running, self.why_lost = not why_lost, why_lost
        self.calls: list[tuple] = []
        self.make_view = None
        self.busy = busy  # ranks of the cell that runs

    def __getattr__(self, name):
        def call(*args, **options):
            self.calls.append((name, *args, options) if options else (name, *args))
            return answers.get(name)

        if name.startswith("_"):
            raise AttributeError(name)
        answers = {
            "stacks": {0: "runs", 1: "runs", 2: "idle"},
            "restart": (1,),
            "output": "said\n",
            "interrupt": self.busy,
        }
        return call

    def topology(self):
        return make_world(1, 3)


class Words:
    """The magics of a shell that has no kernel."""

    def __init__(self, ranks=None) -> None:
        names: dict[str, object] = {}
        shell = SimpleNamespace(
            debugger=print,
            events=None,
            displayhook=SimpleNamespace(prompt_count=7),
            input_transformers_cleanup=[],
            user_ns=names,
            push=names.update,
        )
        self.names = names
        self.magics = DistributedMagics(shell)
        self.magics._workspace = ranks

    def line(self, words):
        self.magics.distributed(words)

    def cell(self, words, body):
        self.magics.distributed(words, body)


RESTART = {"all": False, "force": False, "copy_from": None, "init": True}


@pytest.mark.parametrize(
    ("line", "calls"),
    [
        ("restart", [("restart", None, RESTART)]),
        ("restart 0,2", [("restart", (0, 2), RESTART)]),
        (
            "restart 1 --force --from 2",
            [("restart", (1,), {**RESTART, "force": True, "copy_from": 2})],
        ),
        (
            "restart --all --force --no-init",
            [("restart", None, {**RESTART, "all": True, "force": True, "init": False})],
        ),
        ("interrupt", [("interrupt",)]),
        ("stacks", [("stacks", None)]),
        ("stacks 0,2", [("stacks", (0, 2))]),
        ("stacks ::2", [("stacks", (0, 2))]),
        ("output 0-1", [("output", 0), ("output", 1)]),
        ("detach", [("detach",)]),
        ("stop", [("stop",)]),
    ],
)
def test_a_line_is_a_call(line, calls):
    ranks = Ranks()
    Words(ranks).line(line)
    assert [tuple(map(_tuple_of, call)) for call in ranks.calls] == calls


def _tuple_of(argument):
    return tuple(argument) if isinstance(argument, list | range) else argument


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("", {"ranks": None, "timeout": None, "max_lines": 10_000, "every_start": False}),
        (
            "--ranks ::2 --timeout 1.5 --max-lines 7 --every-start",
            {"ranks": (0, 2), "timeout": 1.5, "max_lines": 7, "every_start": True},
        ),
    ],
)
def test_a_cell_is_run_with_its_options(words, options):
    ranks = Ranks()
    Words(ranks).cell(words, "x = 1")
    ((name, code, asked),) = ranks.calls
    assert (name, code) == ("run", "x = 1")
    asked = {key: _tuple_of(value) for key, value in asked.items()}
    assert asked.pop("view").cell_number == 7
    assert asked == {**options, "values": False}


@pytest.mark.parametrize(
    ("line", "ranks", "said"),
    [
        ("stop", Ranks(), "stopped the 3 ranks of 'ours'"),
        ("detach", Ranks(why_lost="taken over by process 7"), "taken over by process 7"),
        ("interrupt", Ranks(), "asked ranks 0-1 to stop"),
        ("interrupt", Ranks(busy=()), "nothing to interrupt: this notebook waits for no cell"),
        ("restart 1", Ranks(), "rank 1 is new; ranks 0,2 have all they had"),
        ("stacks", Ranks(), "ranks 0-1: runs\nrank 2: idle"),
        ("output 2", Ranks(), "rank 2:\nsaid"),
    ],
)
def test_what_was_done_is_said(capsys, line, ranks, said):
    Words(ranks).line(line)
    out = capsys.readouterr().out
    assert out.startswith(said)
    assert out.count("\n") == said.count("\n") + 1


END_NOW = "let go of the 3 ranks of 'ours', which end now: they were started with --linger 0"
COME_BACK = (
    "let go of the 3 ranks of 'ours'; within their --linger time, "
    "%distributed attach ours comes back to them"
)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"ends_in_s": 600.0}, COME_BACK),
        ({"ends_in_s": None}, COME_BACK),  # another process has attached already
        ({"ends_in_s": 0.0}, END_NOW),
        ({"ends_in_s": None, "is_stopping": True}, END_NOW),
        (None, END_NOW),
    ],
)
def test_a_detach_says_whether_the_ranks_stay(capsys, monkeypatch, found, said):
    there = (
        [] if found is None else [SimpleNamespace(**{"name": "ours", "is_stopping": False} | found)]
    )
    monkeypatch.setattr(magics_module.Workspace, "list", lambda: there)
    Words(Ranks()).line("detach")
    assert capsys.readouterr().out == f"{said}\n"


def test_without_a_word_it_is_status(capsys):
    words = Words(Ranks())
    words.line("status")
    shown = capsys.readouterr().out
    words.line("")
    assert capsys.readouterr().out == shown != ""


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("", {"n": None, "linger": 600.0, "heartbeat_timeout": 5.0, "transport": None, "name": None}),
        ("-n 2 --linger 0 --silence 7", {"n": 2, "linger": 0.0, "heartbeat_timeout": 7.0}),
        ("--name ours --detach --auto-restart", {"name": "ours", "detach": True, "auto_restart": True}),
        ("-n 2 --grace 0.5", {"grace": 0.5}),
        ("--transport tcp --cwd /a --env A=1 --env B", {"transport": "tcp", "cwd": "/a", "env": ["A=1", "B"]}),
        ("--hosts a,b --python /p --launcher local", {"hosts": "a,b", "python": "/p", "launcher": "local"}),
        ("--hostfile h --boot-timeout 9 --ssh-arg=-v", {"hostfile": "h", "boot_timeout": 9.0, "ssh_args": ("-v",)}),
    ],
)  # fmt: skip
def test_start_passes_its_options_on(monkeypatch, capsys, words, asked):
    started, ranks = {}, Ranks()

    def start(**options):
        started.update(options)
        return ranks

    monkeypatch.setattr(magics_module, "Workspace", SimpleNamespace(start=start))
    monkeypatch.setattr(DistributedMagics, "_offer_name", lambda self, ws: None)
    made = Words()
    made.line(f"start {words}")
    assert {name: _tuple_of(started[name]) for name in asked} == {
        name: _tuple_of(value) for name, value in asked.items()
    }
    assert made.magics.workspace is ranks
    assert "3 ranks on 1 host" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("attach", (None, {"take": False})),
        ("attach ours --take", ("ours", {"take": True})),
    ],
)
def test_attach_adopts_the_ranks_shows_them_and_joins_their_cell(monkeypatch, capsys, line, asked):
    found, ranks = [], Ranks()

    def attach(name, **options):
        found.append((name, options))
        return ranks

    monkeypatch.setattr(magics_module, "Workspace", SimpleNamespace(attach=attach))
    monkeypatch.setattr(DistributedMagics, "_offer_name", lambda self, ws: None)
    words = Words()
    words.line(line)
    assert found == [asked]
    assert words.magics.workspace is ranks
    assert ranks.make_view() is not None
    assert ranks.calls == [("join",)]
    assert "3 ranks on 1 host" in capsys.readouterr().out


@pytest.mark.parametrize("action", ["start", "attach ours"])
def test_ranks_that_run_are_let_go_before_others_come(monkeypatch, action):
    ranks = Ranks()
    with pytest.raises(UsageError, match="3 ranks run already in this notebook; end them first"):
        Words(ranks).line(action)
    assert ranks.calls == []


def test_ranks_that_are_lost_make_room(monkeypatch):
    def attach(name, **options):
        msg = "there is no workspace to attach to"
        raise DistributedError(msg)

    monkeypatch.setattr(magics_module, "Workspace", SimpleNamespace(attach=attach))
    ranks = Ranks(why_lost="the supervisor died")
    words = Words(ranks)
    with pytest.raises(UsageError, match="there is no workspace to attach to"):
        words.line("attach")
    assert ranks.calls == [("stop",)]
    assert words.magics.workspace is None


def test_lost_ranks_are_not_stopped_but_told_of():
    ranks = Ranks(why_lost="the workspace 'ours' was taken over by process 7")
    with pytest.raises(DistributedError, match="was taken over by process 7"):
        Words(ranks).line("stop")
    assert ranks.calls == []


def test_a_wait_is_told_of_after_ten_seconds():
    """The line itself is held in workspace/watching/test_stacks.py, with a shorter time."""
    assert checked_options(2, None, 0.0, 5.0, "any").slow_operation_s == 10.0
    names, defaults = BootOptions.__struct_fields__, BootOptions.__struct_defaults__
    assert dict(zip(names[::-1], defaults[::-1], strict=False))["slow_operation_s"] == 10.0


# -- widgets ------------------------------------------------------------------------------------


class Picture:
    """A live widget, of which only that there is one matters."""


@pytest.mark.parametrize("line", ["stop", "detach"])
def test_a_ctrl_c_in_the_wait_for_pictures_is_no_way_to_keep_ranks(monkeypatch, line):
    def keep(_, *, is_forced):
        assert is_forced
        raise KeyboardInterrupt

    monkeypatch.setattr(widgets, "keep_stills", keep)
    ranks = Ranks()
    words, shown = Words(ranks), Picture()
    words.magics._live.add(shown)
    with pytest.raises(KeyboardInterrupt):
        words.line(line)
    assert ranks.calls == [(line,)]
    assert words.magics.workspace is None
