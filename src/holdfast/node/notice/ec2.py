"""Amazon EC2: `spot/instance-action` exists from two minutes before a spot instance is interrupted."""

import asyncio

import msgspec

from holdfast.node.notice.metadata import (
    MetadataAnswer,
    MetadataError,
    MetadataServer,
    PreemptionNotice,
    unexpected,
    unreadable,
)
from holdfast.times import parse_optional_time

TOKEN = "/latest/api/token"  # noqa: S105  # a path
INSTANCE_ACTION = "/latest/meta-data/spot/instance-action"
TOKEN_LIFE_S = 6 * 3600
LONGEST_TOKEN = 1024


class InstanceAction(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the metadata server. The action (terminate, stop, hibernate) makes no difference to a training."""

    action: str
    time: str


class Ec2:
    cloud = "EC2"
    provider = "aws"
    notice_s = 120.0
    interval_s = 5.0

    def __init__(self, server: MetadataServer) -> None:
        self._server = server
        self._token = ""
        self._renew_at_s = 0.0

    async def is_here(self) -> bool:
        """Only EC2 issues tokens at this path; clouds that imitate its metadata do not."""
        return (await self._ask_for_token()).status == 200

    async def current_notice(self) -> PreemptionNotice | None:
        answer = await self._ask()
        if answer.status == 401:  # the token was withdrawn, for instance by a restart of the machine
            self._token = ""
            answer = await self._ask()
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise unexpected(answer, INSTANCE_ACTION)
        try:
            action = msgspec.json.decode(answer.body, type=InstanceAction)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise unreadable(answer, INSTANCE_ACTION, "an action and its time") from None
        deadline = parse_optional_time(action.time)
        if deadline is None:
            raise unreadable(answer, INSTANCE_ACTION, "an action and its time")
        return PreemptionNotice(cloud=self.cloud, deadline=deadline.replace(microsecond=0))

    async def _ask(self) -> MetadataAnswer:
        if not self._token or _clock_s() >= self._renew_at_s:
            await self._renew_token()
        return await self._server.ask("GET", INSTANCE_ACTION, headers={"X-aws-ec2-metadata-token": self._token})

    async def _renew_token(self) -> None:
        asked_at_s = _clock_s()
        answer = await self._ask_for_token()
        if answer.status == 403:
            raise MetadataError("the metadata server issues no token: switch on the instance's metadata (IMDSv2)")
        if answer.status != 200:
            raise unexpected(answer, TOKEN)
        token = answer.body.decode("latin-1").strip()
        # The token is a secret: no message quotes it.
        if not token or len(token) > LONGEST_TOKEN or not token.isascii() or not token.isprintable():
            raise MetadataError(f"the metadata server answers {TOKEN} with something that is no token")
        self._token, self._renew_at_s = token, asked_at_s + TOKEN_LIFE_S / 2

    async def _ask_for_token(self) -> MetadataAnswer:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_LIFE_S)}
        return await self._server.ask("PUT", TOKEN, headers=headers)


def _clock_s() -> float:
    return asyncio.get_running_loop().time()
