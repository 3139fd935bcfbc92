"""Starting a script's ranks so that they go on by themselves, without their launcher.

It knows the root's first words; what the ranks say later goes to files.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

import phalanx
from phalanx.errors import DistributedError
from phalanx.protocol import BootOptions, Hello
from phalanx.protocol.scripts import FromScriptRoot, NotStarted, Started
from phalanx.supervisor import RootProcess, claim_name, launch_root

from ._job import Job
from ._script import script_options
from ._start import SILENCE_S, checked_options

__all__ = ["Detached", "launch_detached"]

START_S = 30.0
POLL_MS = 100


@dataclass(frozen=True)
class Detached:
    """Ranks that were left to themselves: what they are called, and where their output goes."""

    name: str
    pid: int
    log_dir: str


def launch_detached(
    job: Job,
    *,
    name: str,
    is_named: bool,
    log_dir: Path | None,
    transport: str,
    grace_s: float,
) -> Detached:
    """Start a command once per rank, wait until all run, and leave them.

    Parameters
    ----------
    job : Job
        What to run, and where.
    name : str
        What to call them; with a number behind it where that is taken and not ``is_named``.
    log_dir : Path, optional
        Where their output goes; by default ``phalanx-NAME`` in this folder.

    Raises
    ------
    DistributedError
        They could not be started, or the name is taken; says so in one line.
    """
    checked = checked_options(job.at.ranks, name, 0.0, SILENCE_S, transport)
    public_key, secret_key = zmq.curve_keypair()
    with claim_name(checked.name, is_fixed=is_named) as claim:
        folder = Path(f"phalanx-{claim.name}" if log_dir is None else log_dir).absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            boot = BootOptions(
                name=claim.name,
                ranks=checked.ranks,
                client_pid=os.getpid(),
                client_public_key=public_key,
                transport=checked.transport,
                linger_s=0.0,
                silence_s=SILENCE_S,
                cwd=job.cwd,
                client_secret_key=secret_key,
                record_fd=claim.fd,
                record_path=str(claim.path),
                hosts=job.at.hosts,
                remote=job.at.remote,
            )
            options = script_options(boot, job, grace_s, str(folder))
            root = launch_root(options, pass_fds=[claim.fd])
        except BaseException:
            claim.give_up()
            raise
    try:
        _wait_started(
            root, public_key, secret_key, job.at.remote.timeout_s if job.at.hosts else 0.0
        )
    except BaseException:
        root.close(timeout_s=2.0)
        raise
    root.let_go()
    return Detached(claim.name, root.pid, str(folder))


def _wait_started(root: RootProcess, public_key: bytes, secret_key: bytes, hosts_s: float) -> None:
    """Wait for the root's word that the ranks run; their hosts may take ``hosts_s`` before."""
    decoder = msgspec.msgpack.Decoder(FromScriptRoot)
    until_s = time.monotonic() + START_S + hosts_s
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.linger = 0
        sock.curve_serverkey = root.address.public_key
        sock.curve_publickey, sock.curve_secretkey = public_key, secret_key
        sock.connect(root.address.endpoint)
        sock.send(msgspec.msgpack.encode(Hello(phalanx.__version__, os.getpid())))
        while time.monotonic() < until_s:
            if sock.poll(POLL_MS):
                message = decoder.decode(sock.recv())
                if isinstance(message, NotStarted):
                    msg = f"the ranks could not be started: {message.message}"
                    raise DistributedError(msg)
                if isinstance(message, Started):
                    return
            elif root.poll() is not None:
                msg = f"the supervisor is gone: {root.log_tail()}"
                raise DistributedError(msg)
    msg = f"waited {START_S + hosts_s:g} s for the ranks to start"
    raise DistributedError(msg)
