"""The hosts and what joins them, as text for Graphviz: MLX's form for cables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ._cables import Cable
from ._networks import Network

__all__ = ["cables_to_dot", "networks_to_dot"]


def cables_to_dot(names: Sequence[str], cables: Sequence[Cable]) -> str:
    """Draw each cable as an edge with its two interfaces.

    Examples
    --------
    >>> print(cables_to_dot(["h0", "h1"], [Cable(0, "en2", "", 1, "en3", "")]))
    graph G {
      node [shape=rectangle];
      a [label="h0"];
      b [label="h1"];
      a -- b [label="en2/en3"]
    }
    """
    edges = (
        f"  {_id(cable.a)} -- {_id(cable.b)} [label={_quoted(f'{cable.a_interface}/{cable.b_interface}')}]"
        for cable in cables
    )
    return "\n".join([*_head(names), *edges, "}"])


def networks_to_dot(names: Sequence[str], networks: Sequence[Network]) -> str:
    """Draw each network as a node of its own, and an edge to each host on it."""
    return "\n".join([*_head(names), *_network_lines(networks), "}"])


def _network_lines(networks: Sequence[Network]) -> Iterator[str]:
    for number, network in enumerate(networks):
        yield f"  net{number} [shape=ellipse label={_quoted(network.prefix)}];"
        for host, (interface, address) in sorted(network.members.items()):
            label = _quoted(f"{interface} {address}")
            yield f"  {_id(host)} -- net{number} [label={label}]"


def _head(names: Sequence[str]) -> list[str]:
    hosts = (f"  {_id(place)} [label={_quoted(name)}];" for place, name in enumerate(names))
    return ["graph G {", "  node [shape=rectangle];", *hosts]


def _id(place: int) -> str:
    """Count in letters: a, ..., z, aa, ab."""
    letters = ""
    while place >= 0:
        letters = chr(97 + place % 26) + letters
        place = place // 26 - 1
    # A word of Graphviz's own (node, edge, graph, ...) begins at 15,000 hosts: quoted for good.
    return letters if len(letters) < 4 else f'"{letters}"'


def _quoted(text: str) -> str:
    plain = " ".join(text.replace("\\", "\\\\").replace('"', '\\"').split())
    return f'"{plain}"'
