"""Whose threads count."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from zmq.utils.garbage import GarbageCollectorThread

from phalanx.rank import UserThreads


def test_a_thread_of_the_users_counts_while_it_lives():
    threads = UserThreads()
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    assert threads.are_alive()
    go.set()
    thread.join()
    assert not threads.are_alive()


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
    go.set()
    before.join()
    library.join()


def test_a_pool_counts():
    threads = UserThreads()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        assert threads.are_alive()
    assert not threads.are_alive()
