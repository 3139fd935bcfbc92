"""Tab and Shift-Tab in a real kernel: what the ranks know, what the notebook knows, options."""

from __future__ import annotations

import os
import signal

import pytest
from support.notebooks.notebook_kernel import NotebookKernel
from support.patience import LONG_HELP
from support.promise import BOUND_S
from support.waiting import wait_until

from phalanx.cli.main import _parser
from phalanx.magics.arguments import (
    HelpShown,
    auto_parser,
    cell_parser,
    line_parser,
    local_parser,
    parse,
    subcommands,
)
from phalanx.workspace import parse_ranks

pytestmark = pytest.mark.slow

RANKS_HAVE = '''%%distributed
import os
own = rank
class Parrot:
    """It is not dead."""
    plumage = "beautiful"
    def nail(self, perch): ...
parrot = Parrot()
pid = os.getpid()'''

NOTEBOOK_HAS = """
notebook_only = 1
class Cheese:
    cheddar = 1
cheese = Cheese()"""


@pytest.fixture(scope="module")
def driver():
    with NotebookKernel(NOTEBOOK_HAS, LONG_HELP) as driver:
        driver.complete("notebook", timeout=60.0)  # the first time is jedi's slowest
        yield driver


@pytest.fixture
def kernel(driver):
    """A kernel with two ranks."""
    if driver.need_ranks("-n 2"):
        assert driver.run(RANKS_HAVE).status == "ok"
        driver.complete("%%distributed\npar", timeout=60.0)
        driver.complete("%%distributed --ranks 1\npar", timeout=60.0)
    return driver


def fits(cell, reply):
    """Whether what is completed is the word before the cursor (at the end of the cell)."""
    word = cell[reply["cursor_start"] : reply["cursor_end"]]
    return reply["cursor_end"] == len(cell) and all(m.startswith(word) for m in reply["matches"])


@pytest.mark.parametrize(
    ("cell", "matches"),
    [
        ("%%distributed\nparr", ["parrot"]),
        ("%%distributed --ranks 1\nx = 1\nparrot.", ["nail", "plumage"]),
        ("\n%%distributed --ranks\nparrot.pl", ["plumage"]),
        ("%%distributed --ranks 7\nparrot.pl", ["plumage"]),
        ("%%distributed --help\nparrot.pl", ["plumage"]),
        ("%%distributed\n%timeit parrot.n", ["nail"]),
        ("%%distributed\n!ls /et", ["/etc/"]),
        ("%%distributed\nnew = parrot\nnew.pl", ["plumage"]),
        ("%%distributed\n'🦜🧀'; parrot.pl", ["plumage"]),
        ("%%distributed\nworl", ["world"]),
        ("%%distributed\npx.all_s", ["all_sum"]),
        ("%%distributed\nnp.linalg.nor", ["norm"]),
        ("%%distributed\nnotebook_o", []),
        ("%%distributed\ncheese.che", []),
        ("notebook_o", ["notebook_only"]),
        ("cheese.", ["cheddar"]),
        ("parrot.", []),
        ("%%local\nnotebook_o", ["notebook_only"]),
        ("%%distributed --ma", ["--max-lines"]),
        ("%distributed st", ["start", "status", "stacks", "stop"]),
        ("1\n%distributed start --transport ", ["any", "tcp"]),
        (
            "%distributed bandwidth --op all_",
            ["all_sum", "all_max", "all_min", "all_gather", "all_to_all"],
        ),
        ("%autodistributed o", ["on", "off"]),
        ("%%local --", ["--help"]),
        ("%autodis", ["%autodistributed"]),
    ],
)
def test_tab(kernel, cell, matches):
    reply = kernel.complete(cell)
    assert reply["status"] == "ok"
    assert reply["matches"] == matches
    assert fits(cell, reply)


def test_tab_in_the_middle_of_a_cell(kernel):
    cell = "%%distributed\nparrot.pl\nprint('below')"
    reply = kernel.complete(cell, cell.index("\nprint"))
    assert reply["matches"] == ["plumage"]
    assert cell[reply["cursor_start"] : reply["cursor_end"]] == "pl"


@pytest.mark.parametrize(
    ("cell", "detail", "texts"),
    [
        ("%%distributed\nparrot", 0, ["Parrot", "It is not dead.", "Rank:        0"]),
        ("%%distributed --ranks 1\nown", 0, ["String form:", " 1\n", "Rank:        1"]),
        ("%%distributed\nparrot.nail", 0, ["(perch)", "a cell of the notebook\n"]),
        ("%%distributed\npx.all_sum(", 1, ["Source:", "def all_sum("]),
        ("cheese", 0, ["Cheese"]),
        ("%%distributed", 0, ["Run a cell on the ranks"]),
    ],
)
def test_shift_tab(kernel, cell, detail, texts):
    reply = kernel.inspect(cell, detail=detail)
    assert reply["found"]
    assert set(reply["data"]) == {"text/plain"}
    for text in texts:
        assert text in plain(reply["data"]["text/plain"])


@pytest.mark.parametrize("cell", ["%%distributed\ncheese", "parrot", "%%distributed\nnowhere"])
def test_shift_tab_where_there_is_no_such_thing(kernel, cell):
    assert not kernel.inspect(cell)["found"]


def plain(text):
    """Without colours."""
    return "".join(
        part.partition("m")[2] if i else part for i, part in enumerate(text.split("\x1b"))
    )


def test_a_question_mark_in_a_cell_is_answered_once(kernel):
    result = kernel.run("%%distributed\nown = rank\nown?\nprint('and the rest')")
    assert result.status == "ok"
    text = plain(result.stdout)
    assert text.count("String form:") == 1
    assert "String form: 0" in text
    labels = [line.partition("]")[0] for line in text.splitlines() if line.endswith("and the rest")]
    assert {rank for label in labels for rank in parse_ranks(label[1:], 2)} == {0, 1}


def test_every_cell_on_the_ranks(kernel):
    kernel.run("%autodistributed on")
    try:
        assert kernel.complete("parr")["matches"] == ["parrot"]
        assert kernel.complete("cheese.")["matches"] == []
        assert kernel.complete("%%local\ncheese.")["matches"] == ["cheddar"]
        assert kernel.complete("%autodis")["matches"] == ["%autodistributed"]
        assert kernel.inspect("parrot")["found"]
    finally:
        kernel.run("%autodistributed off")
    assert kernel.complete("parr")["matches"] == []


@pytest.mark.parametrize("channel", ["shell", "control"])
@pytest.mark.parametrize(
    "busy", ["while not os.path.exists(way): pass", "if rank: wait()\npx.all_sum(1)"]
)
def test_while_a_cell_runs(kernel, busy, channel, tmp_path):
    way = tmp_path / "on"
    kernel.run(f"""%%distributed
import os, time
way = {str(way)!r}
def wait():
    while not os.path.exists(way):
        time.sleep(0.01)""")
    kernel.take(0.1)
    first = len(kernel.states)
    running = kernel.submit(f"%%distributed\nprint('begun')\n{busy}")
    try:
        running.until(lambda so_far: "begun" in so_far.stdout)
        reply = kernel.complete("%%distributed\nparrot.", channel=channel)
        assert reply["matches"] == ["nail", "plumage"]
        assert kernel.inspect("%%distributed\nparrot", channel=channel)["found"]
        assert kernel.complete("notebook_o", channel=channel)["matches"] == ["notebook_only"]
        if channel == "shell":  # each request is done, and the cell is not
            shown = ["busy", *3 * ["idle", "busy"]]
            wait_until(lambda: kernel.take(0.1) and kernel.states[first:] == shown, "it is so")
        assert not running.is_done
    finally:
        way.touch()
    assert running.result().status == "ok"
    assert kernel.states[-1] == "idle"


def test_errors_of_a_handler_are_left_to_the_kernel(kernel):
    """A request whose handler fails is handled again after the cell, and nothing is printed of us."""
    kernel.run("""
kernel = get_ipython().kernel
before, failed = kernel.do_inspect, []
def fail_once(*args, **kwargs):
    if failed:
        return before(*args, **kwargs)
    failed.append(1)
    raise RuntimeError
kernel.do_inspect = fail_once""")
    try:
        running = kernel.submit("%%distributed\nimport time\nprint('begun')\ntime.sleep(0.5)")
        running.until(lambda so_far: "begun" in so_far.stdout)
        assert kernel.inspect("cheese")["found"]
        assert running.result().text == "[0-1] begun\n"
    finally:
        kernel.run("kernel.do_inspect = before")


def test_a_request_that_outlives_the_cell_is_answered_once(kernel, tmp_path):
    way = tmp_path / "on"
    running = kernel.submit(f"""%%distributed
import os, time
class Slow:
    def __dir__(self):
        open({str(way)!r}, "w")
        time.sleep(0.3)
        return ["slowly"]
slow = Slow()
print("begun")
while not os.path.exists({str(way)!r}): pass""")
    running.until(lambda so_far: "begun" in so_far.stdout)
    assert kernel.complete("%%distributed\nslow.")["matches"] == ["slowly"]
    assert running.result().status == "ok"
    assert kernel.run("print(6 * 7)").stdout == "42\n"
    assert kernel.states[-1] == "idle"


ACTIONS = subcommands(line_parser())
PARSERS = {
    "%distributed": line_parser(),
    "%%distributed": cell_parser(),
    "%autodistributed": auto_parser(),
    "%%local": local_parser(),
    **{f"%distributed {name}": parser for name, parser in ACTIONS.items()},
}


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_of_each_parser(capsys, name, option):
    magic, _, action = name.partition(" ")
    with pytest.raises(HelpShown):
        parse(PARSERS[magic], f"{action} {option}")
    text = capsys.readouterr().out
    assert text == PARSERS[name].format_help()
    assert text.startswith(f"usage: {name} [-h]")


@pytest.mark.parametrize("magic", ["%distributed restart", "%%distributed"])
def test_help(kernel, magic):
    result = kernel.run(f"{magic} --help")
    assert result.status == "ok", result.text
    assert result.stdout.startswith(f"usage: {magic} [-h]")


@pytest.mark.parametrize("magic", ["%%distributed --ranks 1", "%%rank 1"])
def test_a_console_indents_below_a_colon_and_ends_a_cell_at_an_empty_line(kernel, magic):
    said = [
        kernel.ask("is_complete_request", {"code": f"{magic}\n{body}"})
        for body in ("for i in x:", "for i in x:\n    i", "x = 1", "x = 1\n\n")
    ]
    in_loop, after = {"status": "incomplete", "indent": "    "}, {"status": "complete"}
    assert said == [in_loop, in_loop, {"status": "incomplete", "indent": ""}, after]


def test_every_action_is_completed_and_config_is_that_of_the_command(kernel):
    words = kernel.complete("%distributed ")["matches"]
    assert {word for word in words if word[0] != "-"} == {*ACTIONS}
    assert "config" in subcommands(_parser())


@pytest.mark.promise
def test_ranks_that_die_are_passed_by(kernel):
    pids = [int(pid) for pid in kernel.run("print(*ws.pull('pid'))").stdout.split()]
    try:
        for n_dead in (1, 2):
            os.kill(pids[n_dead - 1], signal.SIGKILL)
            says = (f"Rank:        {n_dead}", "is alive")

            def tell(says=says):
                text = kernel.inspect("%%distributed\nown")["data"]["text/plain"]
                return text if any(word in text for word in says) else ""

            text = wait_until(tell, "the news is there", BOUND_S)
        assert text == "ranks 0-1 cannot answer: no such rank is alive"
        assert kernel.complete("%%distributed\nnotebook_o")["matches"] == ["notebook_only"]
    finally:
        kernel.end_ranks()


def test_loaded_again_it_has_its_ranks(kernel):
    """What IPython itself proposes after a second `%load_ext`."""
    kernel.run("%autodistributed on\n")
    try:
        proposed = kernel.run("%load_ext phalanx").stdout
        assert "%reload_ext phalanx" in proposed
        for _ in range(2):
            assert kernel.run("%reload_ext phalanx").text == ""
            assert kernel.run("own").stdout == "[0] Out: 0\n[1] Out: 1\n"
            assert kernel.complete("%distributed st")["matches"] == [
                "start", "status", "stacks", "stop",
            ]  # fmt: skip
    finally:
        kernel.run("%autodistributed off")


def test_the_first_load_says_how_to_start_ranks(driver):
    driver.end_ranks()
    driver.run("%unload_ext phalanx")
    assert driver.run("%load_ext phalanx").text == (
        "%distributed start -n 4 starts four ranks here; %distributed --help lists the commands\n"
    )


def test_unloaded_it_is_as_before(driver):
    actions = ["start", "status", "stacks", "stop"]
    driver.end_ranks()
    driver.need_ranks("-n 1 --name kept")
    driver.run("%%distributed\nown = 5")
    assert driver.complete("%%distributed\nnotebook_o")["matches"] == []
    stays = (
        "the rank of 'kept' stays: %load_ext phalanx finds it again, "
        "phalanx stop kept (in a terminal) ends it\n"
    )
    for said in (stays, ""):
        assert driver.run("%unload_ext phalanx").text == said
        try:
            completed = driver.complete("%%distributed\nnotebook_o")["matches"]
            assert completed == ["notebook_only"]
            assert driver.complete("%distributed st")["matches"] != actions
            assert driver.inspect("cheese")["found"]
        finally:
            driver.run("%load_ext phalanx")
            kept = driver.run("%%distributed\nown").stdout
            driver.end_ranks()
        assert kept == ("[0] Out: 5\n" if said else "")
    assert driver.complete("%distributed st")["matches"] == actions
