"""The front door: modules and arrays, errors that stay at home, nodes that nobody enrolled."""

import builtins
import contextlib
import importlib
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from torch import nn

import gdpfed.flower
from gdpfed.errors import InputError, MissingExtraError, PrivacyError
from gdpfed.flower.apps import client_app, server_app
from gdpfed.flower.server.transport import GridTransport
from gdpfed.flower.server.waiting import Patience
from gdpfed.flower.shared.carrier import packet_in, record_of
from gdpfed.flower.shared.vectors import sizes_of, to_vector, with_vector
from gdpfed.flower.shared.wire import Standing, pack, unpack
from gdpfed.secure.primitives import signing_public
from tests.flower.federations import FIRST_NODE, Federation, held_for, number_in, stage_of
from tests.flower.in_process_grid import InProcessGrid, Late, LocalNode

pytestmark = pytest.mark.training


@settings(max_examples=50, deadline=None)
@given(
    parts=st.lists(
        arrays_of.arrays(
            dtype=st.sampled_from([np.float32, np.float64]),
            shape=arrays_of.array_shapes(min_dims=0, max_dims=3, max_side=4),
            elements=st.floats(-100, 100, width=32),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_vectors_round_trip(parts: list[Any]) -> None:
    vector = to_vector(parts)
    assert len(vector) == sum(sizes_of(parts).values())
    made = with_vector(parts, vector.astype(np.float32))
    for before, after in zip(parts, made, strict=True):
        assert after.dtype == before.dtype
        assert np.array_equal(after, before)


def test_modules_round_trip() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False))
    vector = to_vector(model).astype(np.float32)
    assert list(sizes_of(model).values()) == [12, 4, 8]
    made = with_vector(model, vector + 1)
    assert made is not model
    for before, after in zip(model.parameters(), made.parameters(), strict=True):
        assert torch.equal(after, before + 1)
        assert after.dtype == before.dtype


def test_what_cannot_travel_is_refused() -> None:
    with pytest.raises(PrivacyError, match="BatchNorm"):
        sizes_of(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    with pytest.raises(InputError, match="int64"):
        sizes_of([np.zeros(2), np.zeros(3, dtype=np.int64)])
    with pytest.raises(InputError, match="complex"):
        sizes_of([np.zeros(2, dtype=np.complex128)])
    with pytest.raises(InputError, match="got none"):
        sizes_of([])
    with pytest.raises(InputError, match="Module or a list"):
        sizes_of("model")


def served(federation: Federation, model: Any, app: ClientApp) -> list[str]:
    """A run through the apps alone; returns the names of the saved model's parts."""
    grid = InProcessGrid(
        {
            FIRST_NODE + number: LocalNode(app=app, node_config={"gdpfed-home": str(federation.node_path(number))})
            for number in federation.numbers
        }
    )
    seen = []

    def evaluate(trained: Any, context: Context) -> dict[str, float]:
        seen.append(trained)
        return {"accuracy": 10.0, "loss": float("nan")}

    config = {"gdpfed-home": str(federation.home.path)}
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    server_app(model=model, evaluate=evaluate)(grid, context)
    assert len(seen) == federation.rounds
    assert type(seen[0]) is type(model(context) if callable(model) and not isinstance(model, nn.Module) else model)
    from safetensors.torch import load_file

    return sorted(load_file(federation.home.run_path / "model.safetensors"))


def test_arrays_and_modules_train(tmp_path: Path) -> None:
    def make(context: Context) -> nn.Module:
        torch.manual_seed(1)
        return nn.Linear(3, 2)

    def fit(model: nn.Module, data: int, context: Context) -> nn.Module:
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = (model(torch.full((4, 3), float(data))) ** 2).mean()
        loss.backward()  # type: ignore[no-untyped-call]  # as users write it
        optimiser.step()
        return model

    federation = Federation(tmp_path / "modules", sizes=(2, 2), epsilons=(1.0, 4.0), test_seed=None)
    assert served(federation, make, client_app(model=make, data=number_in, train=fit)) == ["bias", "weight"]
    assert not any(federation.node_log(number) for number in federation.numbers)

    federation = Federation(tmp_path / "arrays", sizes=(2, 2), epsilons=(1.0, 4.0), test_seed=None)
    model = [np.zeros((2, 3)), np.zeros(2, dtype=np.float32)]
    app = client_app(model=model, data=number_in, train=lambda parts, data, _: [part + data for part in parts])
    assert served(federation, model, app) == ["array0", "array1"]
    assert not any(federation.node_log(number) for number in federation.numbers)


def test_whatever_comes_waits(tmp_path: Path) -> None:
    """For an input that waits for its moment; also what Flower refuses before it comes to us."""
    federation = Federation(tmp_path, sizes=(1, 1), epsilons=(1.0, 4.0))
    assert federation.app is not None
    config = {"gdpfed-home": str(federation.node_path(0))}
    context = Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})
    InProcessGrid({})
    for kind, content, expected in (
        ("train.keys", RecordDict(), ""),
        ("train.input", record_of(b"nonsense"), ""),
        ("train.unknown", RecordDict(), "No train function"),
        ("evaluate", RecordDict(), "No evaluate function"),
        ("train.not-a-name", RecordDict(), "Invalid message type"),
    ):
        message = Message(RecordDict(), 1, "train")
        message.content = content
        message.metadata.__dict__["_message_type"] = kind
        with held_for(federation.node(0), 0.1):
            started = time.monotonic()
            with pytest.raises(ValueError, match=expected) if expected else contextlib.nullcontext():
                assert packet_in(federation.app(message, context)) == b""
            assert time.monotonic() - started > 0.08


def test_a_node_says_nothing_of_errors(tmp_path: Path) -> None:
    """What cannot even start, a broken data function and a broken message: the log has it, the wire does not."""

    def broken(context: Context) -> int:
        raise RuntimeError("patient 17")

    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0))
    app = client_app(model=[np.zeros(17)], data=broken, train=lambda model, *_: model)
    federation.app = app
    grid = federation.grid()
    grid.recorded = []
    federation.serve(grid)
    assert {attempts[-1] for attempts in federation.states().values()} == {"published"}
    assert any("failed with RuntimeError" in federation.node_log(number) for number in federation.numbers)
    assert not any(b"patient" in content for content in grid.recorded)
    asked = Message(RecordDict(), dst_node_id=FIRST_NODE, message_type="train.keys")
    context = Context(
        run_id=1,
        node_id=FIRST_NODE,
        node_config={"gdpfed-home": str(federation.node_path(0))},
        state=RecordDict(),
        run_config={},
    )
    assert packet_in(app(asked, context)) == b""
    assert "failed at keys: expected a message with a packet" in federation.node_log(0)


def test_a_node_without_a_home_is_told(caplog: pytest.LogCaptureFixture) -> None:
    app = client_app(model=[np.zeros(2)], data=number_in, train=lambda model, *_: model)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    with caplog.at_level("ERROR", logger="gdpfed.flower"):
        answer = app(Message(RecordDict(), dst_node_id=1, message_type="train.keys"), context)
    assert packet_in(answer) == b""
    assert "expected gdpfed-home in the node's configuration" in caplog.text
    with pytest.raises(InputError, match="gdpfed-home"):
        server_app(model=[np.zeros(2)])(InProcessGrid({}), context)


def test_the_server_cannot_choose_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the run config says; a simulation's homes come from the environment, and only by the partition."""
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0))
    (tmp_path / "0").symlink_to(federation.node_path(0))
    assert federation.app is not None
    enrolment = federation.enrolment.as_json().encode()
    content = record_of(pack("announce", bytes(32), enrolment))

    def answer(node_config: dict[str, Any], run_config: dict[str, Any]) -> bytes:
        context = Context(
            run_id=1, node_id=FIRST_NODE, node_config=node_config, state=RecordDict(), run_config=run_config
        )
        assert federation.app is not None
        message = Message(content, dst_node_id=FIRST_NODE, message_type="query.announce")
        return packet_in(federation.app(message, context))

    names = ("gdpfed-home", "gdpfed-node-homes", "GDPFED_FLOWER_NODE_HOMES")
    theirs: dict[str, Any] = dict.fromkeys(names, str(tmp_path)) | {"partition-id": 0}
    monkeypatch.delenv("GDPFED_FLOWER_NODE_HOMES", raising=False)
    assert answer({"partition-id": 0}, theirs) == b""
    monkeypatch.setenv("GDPFED_FLOWER_NODE_HOMES", str(tmp_path))
    assert answer({}, theirs) == b""
    assert answer({"partition-id": "../0"}, theirs) == b""
    assert unpack(answer({"partition-id": 0}, {}), stage="announce", num_parts=1)
    # The owner's word counts before the simulation's.
    assert answer({"partition-id": 0, "gdpfed-home": str(tmp_path / "nothing")}, {}) == b""


def impostor(federation: Federation, *, claims: int) -> ClientApp:
    """A node with a key of its own that says it is an enrolled client."""
    key = secrets.token_bytes(32)
    app = ClientApp()

    @app.query("announce")
    def announced(message: Message, context: Context) -> Message:
        nonce, _ = unpack(packet_in(message), stage="announce", num_parts=2)
        made = Standing(client=claims, nonce=nonce, node=context.node_id, num_rows=0, head=bytes(32)).signed_by(key)
        return Message(record_of(pack("announce", made.encode())), reply_to=message)

    return app


def test_an_unregistered_identity_is_not_bound(tmp_path: Path) -> None:
    federation = Federation(tmp_path, sizes=(4, 4), epsilons=(1.0, 4.0), participation=0.9)
    asked = []

    def deliver(client: int, message: Message) -> bool:
        asked.append((client, stage_of(message)))
        return True

    grid = federation.grid(deliver=deliver, apps={1: impostor(federation, claims=2)})
    federation.serve(grid)
    assert "node 101 is not bound to a client" in federation.server_log
    assert "its key is not enrolled" in federation.server_log
    assert {stage for client, stage in asked if client == 1} == {"announce"}
    # The client that it claimed to be takes part as ever.
    assert {attempts[-1] for attempts in federation.states().values()} == {"published"}
    assert any(client == 2 and stage == "reveal" for client, stage in asked)
    assert not any(federation.node_log(number) for number in federation.numbers)


def test_a_home_in_use_twice_is_bound_once(tmp_path: Path) -> None:
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0), settings={"min_online": 0.0})
    assert federation.app is not None
    nodes = {
        node: LocalNode(app=federation.app, node_config={"gdpfed-home": str(federation.node_path(0))})
        for node in (100, 200)
    }
    lines: list[str] = []
    enrolment = federation.enrolment

    def take(client: int, content: bytes, nonce: bytes) -> Standing | None:
        made = Standing.decode(content)
        return made if made.is_signed_by(enrolment.directory.clients[client]) else None

    transport = GridTransport(
        grid=InProcessGrid(nodes),
        enrolment=enrolment,
        settings=federation.home.settings,
        patience=Patience(settings=federation.home.settings, is_rotation=False),
        take_standing=take,
        log=lambda text, **_: lines.append(text),
        events=lambda *_, **__: None,
    )
    transport.refresh()
    assert len(transport._nodes) == 1
    assert any("is its home in use twice?" in line for line in lines)
    assert signing_public(federation.node(0).identity) == enrolment.clients[0].identity


def test_a_late_answer_is_a_dropout(tmp_path: Path) -> None:
    federation = Federation(tmp_path, sizes=(5, 5), epsilons=(1.0, 4.0), participation=0.9)
    late = []

    def disturb(client: int, reply: Message) -> list[Message | Late]:
        if client == 1 and stage_of(reply) == "input":
            late.append(reply)
            return [Late(reply, pulls=10**9)]
        return [reply]

    federation.serve(federation.grid(disturb=disturb))
    assert late
    assert "input: '1' did not answer in 0.05 s" in federation.server_log
    assert {attempts[-1] for attempts in federation.states().values()} == {"published"}


def test_a_missing_flower_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == "flwr":
            raise ModuleNotFoundError("No module named 'flwr'", name="flwr")
        return found(name, *rest, **more)

    for name in ("gdpfed.flower.apps", "gdpfed.flower.shared.carrier", "gdpfed.flower.server.transport"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr(gdpfed.flower, "apps", raising=False)
    monkeypatch.delattr(gdpfed.flower.shared, "carrier", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install 'gdpfed\[flower\]'"):
        importlib.import_module("gdpfed.flower.apps")
    # Homes need no Flower.
    for name in ("node.node_home", "server.server_home", "operate.between_runs"):
        importlib.import_module(f"gdpfed.flower.{name}")
