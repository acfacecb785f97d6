"""A separate hub process that replies to the same messages as others, as fast as it can. Tests kill it."""

import asyncio
import json
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from pabal.core.errors import RequestError
from pabal.core.log import configure_logging
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.relay.reply.answer_speeds import AnswerSpeeds
from pabal.relay.reply.reply import BotReply, encode_skill_response
from pabal.relay.reply.send import ReplySender
from pabal.relay.reply.stall import build_stall_body, claim_expiring_callbacks
from pabal.relay.webhook.skill_response import KOREAN_TEXTS
from pabal.settings import Settings
from support.relay_rows import skill_response

SENDERS = 8
"""Reply senders of one process, each with its own batcher and its own statement in flight."""
STALL_AFTER = timedelta(seconds=30)
"""Time until the stall: early enough that a slow machine finishes before the callback expires."""


async def send_reply(replies: ReplySender, token: str, message: UUID) -> str:
    response = skill_response("from this process")
    try:
        await replies.send(BotReply(token, message, None, response, encode_skill_response(response)))
    except RequestError as error:
        return error.code
    return "sent"


async def stall(hub: Hub, rounds: int) -> str:
    """Run the stall after `rounds` iterations of the event loop, in the middle of the replies."""
    for _ in range(rounds):
        await asyncio.sleep(0)
    async with hub.autocommit() as tx:
        callbacks = await claim_expiring_callbacks(tx, STALL_AFTER)
    await asyncio.gather(
        *(
            hub.relay.callbacks.send(expiring.callback, build_stall_body(expiring, KOREAN_TEXTS))
            for expiring in callbacks
        )
    )
    return "interrupted" if callbacks else "nothing"


async def main(
    main_url: str, direct_url: str, folder: str, token: str, replies_per_message: int, *messages: str
) -> None:
    configure_logging("error", "json")
    settings = Settings(_env_file=None, data_dir=Path(folder), callback_allow=["http://127.0.0.1"])  # pyright: ignore[reportCallIssue]
    async with open_hub(settings, DatabaseUrls(main_url, direct_url)) as hub:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        senders = [
            ReplySender(
                hub.db,
                hub.relay.callbacks,
                hub.relay.stream_registry.remove_in_flight,
                hub.relay.answer_signals,
                AnswerSpeeds(),
                KOREAN_TEXTS,
            )
            for _ in range(SENDERS)
        ]
        attempts = [
            send_reply(senders[number % SENDERS], token, UUID(message))
            for number in range(replies_per_message)
            for message in messages
        ]
        attempts += [stall(hub, rounds) for rounds in range(2, 6)]
        sys.stdout.write(json.dumps(Counter(await asyncio.gather(*attempts))) + "\n")


if __name__ == "__main__":
    main_url, direct_url, folder, token, replies_per_message, *messages = sys.argv[1:]
    asyncio.run(main(main_url, direct_url, folder, token, int(replies_per_message), *messages))
