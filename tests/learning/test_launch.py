"""Starting a stage as several processes: what is refused before any of them starts. What they compute is in test_ranks.py."""

import dataclasses
import socket
from typing import Any

import pytest

from stages.core import layout
from stages.core.errors import RanksError
from stages.learning import launch
from tests import tiny


@pytest.mark.parametrize("endpoint", ["nowhere.cluster:29500", "[fe80::zz]:29500"])
def test_a_meeting_place_without_an_address_is_refused_at_once(endpoint: str, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def lookup(host: str, port: int, **_: Any) -> None:
        asked.append((host, port))
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with pytest.raises(RanksError) as caught:
        launch.spread("grpo", layout.POLICY, dataclasses.replace(tiny.RUNTIME, nodes=2, rendezvous=endpoint))
    host = endpoint.removesuffix(":29500")
    assert asked == [(host.strip("[]"), 29500)]
    assert caught.value.lines() == [
        f"runtime.rendezvous: {host} has no address here (Name or service not known); expected the name or address of one of the "
        "machines, which all of them know"
    ]
