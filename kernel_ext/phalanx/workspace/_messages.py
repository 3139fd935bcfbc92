"""Jupyter messages to and from the ranks, through ipyparallel's controller.

It knows the channels and the wire protocol (jupyter_client's Session); which rank a message
concerns and what it means is its user's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import zmq
from jupyter_client.session import Session

from ._io import SocketThread

__all__ = ["Message", "RankChannels"]

# Signatures that are remembered, so that no message is taken twice. Each cell has some ten: with
# jupyter_client's 65536 a kernel grew by 10 MiB in its first hours.
KEPT_DIGESTS = 1 << 12

Message = dict[str, Any]


class RankChannels:
    """Shell (mux), control and iopub of all ranks; engines are addressed by uuid.

    ``on_message(channel, message)`` gets every reply ("shell", "control") and every published
    message ("iopub") that answers a request of ours, or of another client that used the same
    ``session``, on the socket thread.
    """

    def __init__(
        self,
        thread: SocketThread,
        connection: dict[str, Any],
        session: str,
        on_message: Callable[[str, Message], None],
    ) -> None:
        self._thread = thread
        self._on_message = on_message
        self._lock = threading.Lock()
        self._session = Session(
            session=session,
            key=connection["key"].encode(),
            signature_scheme=connection["signature_scheme"],
            packer=connection["pack"],
            unpacker=connection["unpack"],
            digest_history_size=KEPT_DIGESTS,
        )
        base = connection["interface"]
        self._shell = thread.socket(
            zmq.DEALER, f"{base}:{connection['mux']}", lambda frames: self._receive("shell", frames)
        )
        self._control = thread.socket(
            zmq.DEALER,
            f"{base}:{connection['control']}",
            lambda frames: self._receive("control", frames),
        )
        self._iopub = thread.socket(
            zmq.SUB,
            f"{base}:{connection['iopub']}",
            lambda frames: self._receive("iopub", frames),
            configure=lambda sock: sock.subscribe(b""),
        )

    def shell(
        self,
        engine: str,
        kind: str,
        content: Message,
        metadata: Message,
        message_id: str,
        buffers: list[Any],
    ) -> None:
        """Send a request under an id that the caller has chosen."""
        with self._lock:
            header = {**self._session.msg_header(kind), "msg_id": message_id}
            message = self._session.msg(kind, content=content, header=header, metadata=metadata)
            frames = self._session.serialize(message, ident=engine.encode())
        self._thread.send(self._shell, [*frames, *buffers])

    def control(
        self,
        engine: str,
        kind: str,
        content: Message,
        register: Callable[[str], None] = lambda message_id: None,
    ) -> None:
        """Send a message that a busy rank takes, too; ``register`` as for `shell`."""
        with self._lock:
            message = self._session.msg(kind, content=content)
            frames = self._session.serialize(message, ident=engine.encode())
        register(message["header"]["msg_id"])
        self._thread.send(self._control, frames)

    def _receive(self, channel: str, frames: list[bytes]) -> None:
        _, rest = self._session.feed_identities(frames)
        message = self._session.deserialize(rest)
        if message["parent_header"].get("session") == self._session.session:
            self._on_message(channel, message)
