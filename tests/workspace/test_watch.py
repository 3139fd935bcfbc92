"""Looking on while another process runs a cell: all of it is seen, and nothing of it is disturbed."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from support.promise import PATIENCE_S
from support.restarting import Notices, pids, values
from support.waiting import wait_until

from phalanx.errors import CellError, DistributedError, RankFailure
from phalanx.workspace import Workspace

pytestmark = pytest.mark.slow

STEPS = """import os, time
print("begun")
while not os.path.exists(go): time.sleep(0.01)
print("through", rank)
"""


class Seen(Notices):
    """Keeps lines as well, and answers what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.lines_seen: list[str] = []

    def lines(self, stream, lines):
        self.lines_seen += [line for _, line in lines]


class Running:
    """A workspace of this process that runs a cell on a thread, and who watches it."""

    def __init__(self, ws, code):
        self.error: BaseException | None = None
        self.ws = ws
        n_begun = ws.output(1).count("begun")
        self.thread = threading.Thread(target=self._run, args=(code,))
        self.thread.start()
        wait_until(lambda: ws.output(1).count("begun") > n_begun, "the cell has begun")

    def _run(self, code):
        try:
            self.ws.run(code)
        except DistributedError as error:
            self.error = error

    def watched(self, view, how):
        """Watch on a thread; what `join` came to is put into ``how``."""

        def watch():
            with Workspace.attach(self.ws.name, watch=True) as watcher:
                try:
                    how.append(watcher.join(view=view))
                except DistributedError as error:
                    how.append(error)

        thread = threading.Thread(target=watch)
        thread.start()
        wait_until(lambda: "begun" in view.lines_seen, "the beginning is shown")
        return thread


@pytest.fixture(scope="module")
def ws(tmp_path_factory):
    """Two ranks that the tests of this file share, in a folder where no others are found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        with Workspace.start(n=2, name="mine", linger=0) as workspace:
            workspace.run("print('of an earlier cell')")
            yield workspace


@pytest.fixture
def go(ws, tmp_path):
    """The file that `STEPS` wait for."""
    ws.push({"go": str(tmp_path / "go")})
    return tmp_path / "go"


@pytest.mark.parametrize(
    ("last", "error"), [("rank", None), ("if rank: 1 / 0", "rank 1: ZeroDivisionError")]
)
def test_a_cell_is_watched_from_its_beginning_to_its_end(ws, go, last, error):
    running, view, how = Running(ws, STEPS + last), Seen(), []
    thread = running.watched(view, how)
    assert view.texts == ["a cell runs on ranks 0-1; it is watched here"]
    go.touch()
    thread.join(PATIENCE_S)
    running.thread.join(PATIENCE_S)
    assert view.lines_seen[0] == "begun"
    assert sorted(set(view.lines_seen)) == ["begun", "through 0", "through 1"]
    (came,) = how
    if error:
        assert isinstance(came, CellError)
        assert error in str(came)
        assert error in str(running.error)
    else:
        assert [result.value for result in came] == ["0", "1"]
        assert view.texts[1:] == ["the cell has ended on ranks 0-1"]


def test_where_nothing_runs_there_is_nothing_to_watch(ws):
    with Workspace.attach("mine", watch=True) as watcher:
        view = Seen()
        assert watcher.join(view=view) == []
        assert (view.texts, view.lines_seen) == ([], [])


def test_an_observer_sees_a_question_and_leaves_it_to_the_owner(ws, monkeypatch):
    class Asked(Seen):
        def ask(self, question):
            asked.set()
            return self

        def poll(self, timeout_s):
            return ("Ada",) if answer.is_set() else None

        def close(self):
            pass

    asked, answer, view, how = threading.Event(), threading.Event(), Seen(), []
    monkeypatch.setattr(ws, "make_view", Asked)
    running = Running(ws, "print('begun', flush=True)\nname = input('who? ')")
    assert asked.wait(PATIENCE_S)
    thread = running.watched(view, how)
    wait_until(lambda: len(view.texts) > 1, "the question is told of")
    assert "asks 'who?'; it is answered where the cell was run" in view.texts[1]
    answer.set()
    thread.join(PATIENCE_S)
    running.thread.join(PATIENCE_S)
    assert running.error is None
    assert values(ws, "name") == ["'Ada'"] * 2


def test_a_rank_that_dies_ends_the_watching_too(breakable, go):
    ws = breakable
    running, view, how = Running(ws, STEPS), Seen(), []
    thread = running.watched(view, how)
    os.kill(pids(ws)[0], signal.SIGKILL)
    os.kill(pids(ws)[1], signal.SIGKILL)
    thread.join(PATIENCE_S)
    running.thread.join(PATIENCE_S)
    assert isinstance(how[0], RankFailure)
    assert isinstance(running.error, RankFailure)


def test_a_stop_ends_the_watching_and_not_the_cell(ws, go):
    running, view = Running(ws, STEPS), Seen()

    def stop():
        wait_until(lambda: "begun" in view.lines_seen, "the beginning is shown")
        os.kill(os.getpid(), signal.SIGINT)

    stopper = threading.Thread(target=stop)
    with Workspace.attach("mine", watch=True) as watcher:
        stopper.start()
        assert watcher.join(view=view) == []
    stopper.join()
    assert view.texts[-1] == "the cell is no longer watched; it goes on"
    assert running.thread.is_alive()
    go.touch()
    running.thread.join(PATIENCE_S)
    assert running.error is None
