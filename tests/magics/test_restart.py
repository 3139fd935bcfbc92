"""`%distributed restart` in a real kernel: its lines, its mistakes, its help."""

from __future__ import annotations

import pytest
from kernel_driver import KernelDriver

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kernel():
    with KernelDriver() as driver:
        assert driver.run("%load_ext phalanx").status == "ok"
        yield driver


@pytest.fixture(scope="module")
def ranks(kernel):
    assert kernel.run("%distributed start -n 3").status == "ok"
    yield kernel
    kernel.run("%distributed stop")


DIE = "%%distributed\nimport os\nif rank == {}: os.kill(os.getpid(), 9)\npx.all_sum(1)"
SUM = "%%distributed\npx.all_sum(rank)"


def test_a_dead_rank_is_named_and_replaced_in_one_line_each(ranks):
    ranks.run("%%distributed\nkept = rank")
    result = ranks.run(DIE.format(2))
    said = "rank 2 was killed by signal 9 (SIGKILL); `%distributed restart 2` replaces it"
    assert said in result.stderr
    without = f"this cell runs without rank 2, which {said.removeprefix('rank 2 ')}"
    assert without in ranks.run("%%distributed\nkept").stderr
    result = ranks.run("%distributed restart 2")
    assert (result.status, result.stdout) == (
        "ok",
        "rank 2 is new; ranks 0-1 have all they had\n",
    )
    assert ranks.run(SUM).stdout == "[0-2] Out: 3\n"
    shown = ranks.run("%%distributed\nprint(globals().get('kept'))").stdout
    assert set(shown.splitlines()) == {"[0] 0", "[1] 1", "[2] None"}


def test_what_a_new_rank_begins_with_is_said(ranks):
    ranks.run("%%distributed --every-start\nevery = rank + 10; print('prepared')")
    ranks.run("%%distributed\nimport math as m, threading\nlock = threading.Lock()\na = m.pi")
    result = ranks.run("%distributed restart 1 --force --from 0")
    assert result.status == "ok", result.text
    assert "not copied: lock (cannot pickle '_thread.lock' object)" in result.stderr
    assert "[1] prepared" in result.stdout
    result = ranks.run("%%distributed --ranks 1\n(every, a == m.pi)")
    assert result.stdout == "[1] Out: (11, True)\n"
    assert ranks.run("%distributed restart 1 --force --no-init").status == "ok"
    result = ranks.run("%%distributed --ranks 1\n'every' in globals()")
    assert result.stdout == "[1] Out: False\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("restart", "no rank is dead; to replace one that is alive, name it with --force"),
        ("restart 1", "rank 1 is alive; --force replaces it, and its variables are lost"),
        ("restart --all", "ranks 0-2 are alive; --force replaces them"),
        ("restart 9", "there is no rank 9: the ranks are 0 to 2"),
        ("restart 0 --all", "name ranks, or say --all, not both"),
        ("restart 1 --from 1", "rank 1 is to be replaced itself"),
        ("restart 1 --from x", "a rank is a number; 'x' is not"),
        ("restart --froce", "did you mean --force?"),
        ("restrat", "did you mean restart?"),
    ],
)
def test_mistakes_are_one_line_and_lose_nothing(ranks, line, message):
    ranks.run("%%distributed\nmine = rank")
    result = ranks.run(f"%distributed {line}")
    assert result.status == "error"
    assert message in result.text
    assert "Traceback" not in result.text
    assert "[0] Out: 0\n[1] Out: 1\n[2] Out: 2" in ranks.run("%%distributed\nmine").stdout


def test_all_are_replaced_by_force(ranks):
    result = ranks.run("%distributed restart --all --force")
    assert result.stdout.splitlines()[-1] == "ranks 0-2 are new"
    assert ranks.run(SUM).stdout == "[0-2] Out: 3\n"


def test_help_and_completion(ranks):
    assert "RANKS" in ranks.run("%distributed restart --help").stdout
    assert "restart" in ranks.complete("%distributed re")["matches"]
    assert "--force" in ranks.complete("%distributed restart 1 --f")["matches"]


def test_auto_restart_says_so(ranks):
    assert ranks.run("%distributed stop").status == "ok"
    assert ranks.run("%distributed start -n 2 --auto-restart").status == "ok"
    result = ranks.run(DIE.format(1))
    said = "rank 1 was killed by signal 9 (SIGKILL); it is being replaced"
    assert said in result.stderr
    result = ranks.run(SUM)
    assert result.stdout == "[0-1] Out: 1\n"
    assert (
        "rank 1 is new, without the variables of the one before, which was killed" in result.stderr
    )
