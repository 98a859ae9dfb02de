"""Who sends a request to one of the operator's servers: bearer tokens, reviewed by the cluster, and refusals."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime

import msgspec
from aiohttp import web
from msgspec import Struct

from holdfast.cluster.protocol import Cluster, Identity
from holdfast.runtime.http import RateLimiter
from holdfast.runtime.process import Now

# How long a review counts: that of a valid token, and that of any other.
KNOWN_FOR_S = 300.0
UNKNOWN_FOR_S = 10.0
# TokenReviews that one address may cause: those of a node's workers, all at once.
UNKNOWN_TOKEN_BURST, UNKNOWN_TOKEN_REFILL_S = 100, 0.2
MEMORY = 20_000
RETRY_AFTER_S = 5


class HttpRefusal(Exception):
    """A response with a status other than 200, and its message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Review(Struct, frozen=True):
    identity: Identity | None
    until_s: float


class TokenReviewCache:
    """The identity behind a token: one TokenReview, then cached for a while.

    At most `memory` tokens are cached, by digest; the least recently used are evicted first.
    """

    def __init__(self, cluster: Cluster, audience: str, *, now: Now, memory: int = 10_000) -> None:
        self.audience = audience
        self._cluster = cluster
        self._now = now
        self._memory = memory
        self._reviews: OrderedDict[bytes, _Review] = OrderedDict()

    def is_cached(self, token: str) -> bool:
        """Whether the token's review is cached and still valid."""
        review = self._reviews.get(_digest(token))
        return review is not None and clock_s() < review.until_s

    def last_identity(self, token: str) -> Identity | None:
        """The identity from the token's last review, even if expired."""
        review = self._reviews.get(_digest(token))
        return review.identity if review is not None else None

    async def identity(self, token: str) -> Identity | None:
        """None for an invalid token; raises a `ClusterError` when the review fails."""
        digest = _digest(token)
        review = self._reviews.get(digest)
        if review is None or clock_s() >= review.until_s:
            identity = await self._cluster.review_token(token, self.audience)
            review = _Review(identity, clock_s() + _valid_s(identity, self._now()))
        self._reviews[digest] = review
        self._reviews.move_to_end(digest)
        if len(self._reviews) > self._memory:
            self._reviews.popitem(last=False)
        return review.identity


class RequestAuthenticator:
    """Finds out who sends a request; `reviews` has one cache for each audience that a token may have."""

    def __init__(self, *reviews: TokenReviewCache) -> None:
        self._reviews = reviews
        self._unknown_token_limit: RateLimiter[str] = RateLimiter(
            burst=UNKNOWN_TOKEN_BURST, refill_s=UNKNOWN_TOKEN_REFILL_S, memory=MEMORY
        )

    async def identify(self, request: web.Request) -> tuple[Identity, str]:
        """The owner of the request's token, and the token's audience."""
        token = bearer_token(request)
        for reviews in self._reviews:
            if not reviews.is_cached(token) and not self._unknown_token_limit.take(request.remote or "", clock_s()):
                raise HttpRefusal(429, "too many tokens that are not known yet came from this address: try again later")
            identity = await reviews.identity(token)
            if identity is not None:
                return identity, reviews.audience
        audiences = " or ".join(reviews.audience for reviews in self._reviews)
        raise HttpRefusal(401, f"the token is not valid for the audience {audiences}")


def bearer_token(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise HttpRefusal(401, "no bearer token came with the request")
    if not token.isascii() or not token.isprintable():
        raise HttpRefusal(401, "the bearer token has characters that no token has")
    return token


def refusal_response(status: int, message: str) -> web.Response:
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status in (429, 503) else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    response = json_response({"error": message}, status=status, headers=headers)
    if status in (400, 401, 403, 408, 413):
        response.force_close()  # the connection of an unknown client must not stay open like that of a sidecar
    return response


def json_response(
    content: Struct | Mapping[str, str], *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(content), status=status, headers=headers, content_type="application/json"
    )


def clock_s() -> float:
    return asyncio.get_running_loop().time()


def _valid_s(identity: Identity | None, now: datetime) -> float:
    if identity is None:
        return UNKNOWN_FOR_S
    if identity.expires_at is None:
        return KNOWN_FOR_S
    return min(KNOWN_FOR_S, (identity.expires_at - now).total_seconds())


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
