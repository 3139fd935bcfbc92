"""Whose threads count, and what they begin with."""

from __future__ import annotations

import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial

import pytest
from zmq.utils.garbage import GarbageCollectorThread

from phalanx.distributed.bootstrap.user_threads import UserThreads, prepare_threads


def test_a_thread_of_the_users_counts_while_it_lives():
    threads = UserThreads()
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    assert threads.are_alive()
    assert threads.may_act()
    go.set()
    thread.join()
    assert not threads.are_alive()
    assert not threads.may_act()


def test_threads_of_before_and_of_libraries_do_not_count():
    go = threading.Event()
    before = threading.Thread(target=go.wait)
    before.start()

    class Housekeeper(GarbageCollectorThread):
        def __init__(self):
            threading.Thread.__init__(self)

        def run(self):
            go.wait()

    Housekeeper.__module__ = GarbageCollectorThread.__module__
    threads = UserThreads()
    library = Housekeeper()
    library.start()
    assert not threads.are_alive()
    assert UserThreads([threading.main_thread()]).may_act()  # as in a script
    go.set()
    before.join()
    library.join()


def test_a_worker_of_a_pool_counts_while_it_has_work():
    threads = UserThreads()
    begun, go = threading.Event(), threading.Event()

    def work():
        begun.set()
        go.wait()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        assert not threads.are_alive()
        running = pool.submit(work)
        begun.wait()
        assert threads.are_alive()
        waiting = pool.submit(begun.is_set)
        assert threads.are_alive()
        go.set()
        running.result()
        assert waiting.result()
        assert not threads.are_alive()
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 / 0).result()
        assert not threads.are_alive()


def test_a_worker_that_begins_counts():
    threads = UserThreads()
    begun, go = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1, initializer=lambda: begun.set() or go.wait()) as pool:
        pool.submit(int)
        begun.wait()
        assert threads.are_alive()
        go.set()


OWNER = ContextVar("owner", default="nobody")


@pytest.fixture
def _inherits(monkeypatch):
    """Threads begin with the name of their starter; undone after the test."""
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)
    prepare_threads(lambda: partial(OWNER.set, f"of {threading.current_thread().name}"))


def run_as(name, work):
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()


@pytest.mark.usefixtures("_inherits")
def test_a_thread_begins_with_what_its_starter_bequeaths():
    owners = []

    class Own(threading.Thread):
        def run(self):
            owners.append(OWNER.get())
            run_as("inner", lambda: owners.append(OWNER.get()))

    OWNER.set("not this")  # nor any other variable
    own = Own(name="outer")
    own.start()
    own.join()
    assert owners == [f"of {threading.current_thread().name}", "of outer"]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(OWNER.get).result() == "nobody"


@pytest.mark.usefixtures("_inherits")
def test_a_thread_that_fails_names_no_frame_of_ours(monkeypatch):
    said = []

    def note(args):
        files = [frame.filename for frame in traceback.extract_tb(args.exc_traceback)]
        said.append((OWNER.get(), any("phalanx" in file for file in files[:-1])))

    monkeypatch.setattr(threading, "excepthook", note)
    run_as("fails", lambda: 1 / 0)
    assert said == [(f"of {threading.current_thread().name}", False)]
