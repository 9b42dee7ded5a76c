"""The hand-written protobuf of etcd's Put, the leader that its members report, and the reason if etcd is missing."""

from __future__ import annotations

import asyncio
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from bench.etcd import ETCD, EtcdClient, EtcdCluster, etcd_cluster, leader_of, put_request
from bench.processes import Servers
from tests.clients.outcomes import Skipped


def test_a_put_has_its_key_and_value_in_the_fields_of_etcds_message() -> None:
    """The message of etcd's rpc.proto: `bytes key = 1; bytes value = 2;`."""
    file = FileDescriptorProto(name="rpc.proto", package="etcdserverpb", syntax="proto3")
    put = file.message_type.add(name="PutRequest")
    for number, name in ((1, "key"), (2, "value")):
        kind, label = FieldDescriptorProto.TYPE_BYTES, FieldDescriptorProto.LABEL_OPTIONAL
        put.field.add(name=name, number=number, type=kind, label=label)
    pool = DescriptorPool()
    pool.Add(file)
    message: Any = GetMessageClass(pool.FindMessageTypeByName("etcdserverpb.PutRequest"))
    parsed = message.FromString(put_request(b"name", bytes(16)))
    assert (parsed.key, parsed.value) == (b"name", bytes(16))
    assert not put_request(b"k", b"v").endswith(b"\0")


def test_a_put_that_needs_longer_lengths_is_refused() -> None:
    with pytest.raises(AssertionError):
        put_request(b"name", bytes(128))


def _status(member: str, leader: str | None) -> dict[str, Any]:
    return {"header": {"member_id": member}, **({} if leader is None else {"leader": leader})}


@pytest.mark.parametrize(
    ("leaders", "found"),
    [
        (("2", "2", "2"), "127.0.0.1:2"),
        (("2", "2", "3"), None),  # one member has not noticed the election yet
        (("2", None, "2"), None),
        ((None, None, None), None),
        (("9", "9", "9"), None),
    ],
)
def test_the_leader_is_the_one_on_which_all_members_agree(leaders: tuple[str | None, ...], found: str | None) -> None:
    statuses = {f"127.0.0.1:{each + 1}": _status(str(each + 1), leader) for each, leader in enumerate(leaders)}
    assert leader_of(statuses) == found


def test_no_status_names_no_leader() -> None:
    assert leader_of({}) is None


def test_a_member_that_answers_with_an_error_is_asked_again() -> None:
    """The gateway answers so while its member starts."""
    answers = [(503, b'{"error": "transport is closing", "code": 14}'), (200, json.dumps(_status("1", "1")).encode())]

    class Gateway(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, body = answers.pop(0)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Gateway) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        try:
            assert EtcdCluster(Servers(ETCD, ()), [address]).leader() == address
        finally:
            server.shutdown()
    assert answers == []


def test_a_machine_without_etcd_is_named_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Skipped, match="etcd is not installed"), etcd_cluster(1):
        pass


def _puts(answers: list[grpc.StatusCode]) -> list[bytes]:
    """Put once through a server that refuses with these codes, one after another; return the requests that arrived."""
    heard = []

    async def put(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        heard.append(request)
        if answers:
            await context.abort(answers.pop(0))
        return b""

    async def test() -> None:
        server = grpc.aio.server()
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {"Put": grpc.unary_unary_rpc_method_handler(put)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("etcdserverpb.KV", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with EtcdClient(f"127.0.0.1:{port}") as client:
                await client.put(b"request")
        finally:
            await server.stop(None)

    asyncio.run(test())
    return heard


def test_a_put_is_repeated_while_etcd_elects_a_leader() -> None:
    assert _puts([grpc.StatusCode.UNAVAILABLE] * 2) == [b"request"] * 3


def test_a_put_that_is_refused_for_another_reason_fails() -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        _puts([grpc.StatusCode.INVALID_ARGUMENT])
