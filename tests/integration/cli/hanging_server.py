"""A control port that hangs at one stage; run as a process: `python -m tests.integration.cli.hanging_server STAGE`.

connection   accepts connections and sends nothing
description  never describes the quorum
change       describes the quorum, and never answers a change
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from quorumlog.runtime.addresses import Address
from quorumlog.runtime.grpc import bind, make_server
from quorumlog.wire.v1 import controller_pb2, node_pb2, quorum_pb2
from tests.unit.quorumlog.client.test_controller_client import FakeNode, handlers


class Hanging(FakeNode):
    def __init__(self, stage: str) -> None:
        super().__init__()
        self.stage = stage

    async def DescribeQuorum(self, request: Any, context: Any) -> Any:
        if self.stage == "description":
            await asyncio.Event().wait()
        reply = quorum_pb2.DescribeQuorumReply()
        reply.known.leader_id = reply.answered_by.node_id = reply.voters.add().replica.key.node_id = 1
        reply.known.leader_address = self.address
        return reply

    async def ChangeVoters(self, request: Any, context: Any) -> Any:
        await asyncio.Event().wait()

    async def TransferLeader(self, request: Any, context: Any) -> Any:
        await asyncio.Event().wait()


async def main(stage: str) -> None:
    if stage == "connection":
        mute = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = mute.sockets[0].getsockname()[1]
    else:
        node = Hanging(stage)
        server = make_server([handlers(node, file) for file in (controller_pb2, node_pb2, quorum_pb2)])
        port = bind(server, Address("127.0.0.1", 0))
        node.address = f"127.0.0.1:{port}"
        await server.start()
    print(port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
