"""Calls of the Compute Engine API: with a token, repeated where that is safe, and every refusal named."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from holdfast.providers.errors import ProviderError
from holdfast.providers.gcp.endpoint import GOOGLE, GoogleEndpoint
from holdfast.providers.gcp.faults import response_error
from holdfast.providers.gcp.http import ANSWER_S, Http, HttpRequest, HttpResponse, NoAnswer
from holdfast.providers.gcp.retries import PATIENCE, Patience, persist, retry_after_s
from holdfast.providers.gcp.tokens import TokenSource

T = TypeVar("T")

# method, such as instances.insert, and HTTP status; 0: no answer
Observe = Callable[[str, int], None]


class Call(Struct, frozen=True, kw_only=True):
    """A call. method: as Google's description names it. path: below the project. tried: for messages.

    changes: it is sent by the leader alone, and must be safe to repeat, which a requestId makes it.
    """

    method: str
    verb: str
    path: str
    tried: str
    query: Mapping[str, str] = {}
    body: Mapping[str, Any] | None = None
    changes: bool = False
    timeout_s: float = ANSWER_S


class ComputeApi:
    """The API for one project with one credential."""

    def __init__(
        self,
        project: str,
        http: Http,
        tokens: TokenSource,
        *,
        random: Random,
        endpoint: GoogleEndpoint = GOOGLE,
        require_leadership: Callable[[], None] = lambda: None,
        observe: Observe = lambda method, status: None,
        patience: Patience = PATIENCE,
    ) -> None:
        self.project = project
        self._http = http
        self._tokens = tokens
        self._random = random
        self._root = f"{endpoint.compute}/projects/{project}"
        self._require_leadership = require_leadership
        self._observe = observe
        self._patience = patience

    async def send(self, call: Call, answer: type[T]) -> T:
        """Raises a `ProviderError`, or what the leadership check raises."""
        try:
            response = await persist(lambda: self._authorized(call), self._random, self._patience)
        except NoAnswer as error:
            raise ProviderError(f"can't {call.tried}: {error}") from None
        if not 200 <= response.status < 300:
            raise response_error(call.tried, response.status, response.body, retry_after_s=retry_after_s(response))
        try:
            return msgspec.json.decode(response.body, type=answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProviderError(f"can't {call.tried}: Google's answer can't be read: {error}") from None

    async def close(self) -> None:
        await self._http.close()

    async def _authorized(self, call: Call) -> HttpResponse:
        """After a 401, once more with a fresh token: nothing was done."""
        token = await self._tokens.token()
        response = await self._attempt(call, token)
        if response.status == 401:
            self._tokens.forget(token)
            response = await self._attempt(call, await self._tokens.token())
        return response

    async def _attempt(self, call: Call, token: str) -> HttpResponse:
        headers = {"Authorization": f"Bearer {token}"}
        body = b""
        if call.body is not None:
            headers["Content-Type"] = "application/json"
            body = msgspec.json.encode(call.body)
        request = HttpRequest(
            method=call.verb,
            url=f"{self._root}/{call.path}",
            query=call.query,
            headers=headers,
            body=body,
            timeout_s=call.timeout_s,
            gate=self._require_leadership if call.changes else None,
        )
        status = 0
        try:
            response = await self._http.send(request)
            status = response.status
            return response
        finally:
            self._observe(call.method, status)
