"""A process with one stage that answers windows; prints its URL. Its parent kills or stops it."""

from __future__ import annotations

import asyncio

from engine.protocol.messages import Hello, Message, VerifyWindow, Welcome
from engine.transport import Link, serve_links
from tests.protocol.samples import WELCOME, reply


async def main() -> None:
    async def on_hello(hello: Hello) -> Welcome:
        return WELCOME

    def on_link(link: Link) -> None:
        def answer(message: Message) -> None:
            if isinstance(message, VerifyWindow):
                link.post(reply(message))

        link.on_message = answer

    server = await serve_links("127.0.0.1", 0, on_hello=on_hello, on_link=on_link)
    print(server.url, flush=True)
    await asyncio.Future()


if __name__ == "__main__":
    asyncio.run(main())
