"""Does one direction of a link end whatever its other side does?"""

from __future__ import annotations

import asyncio
import socket
import struct

from devnet.links.conditions import Conditions, Way
from devnet.links.pipe import Pipe


async def test_it_ends_where_the_other_side_has_broken_the_connection_unheard() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, *server.getsockname())
        transport.pause_reading()  # so that the loop does not hear of the reset
        far, _ = server.accept()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        far.close()
        ended = list[bool]()
        pipe = Pipe(Way(Conditions(), seed=1), 1 << 20, lambda: ended.append(True))
        pipe.connect(sink=transport)
        pipe.end("eof")
        assert ended and pipe.is_done
        transport.abort()
