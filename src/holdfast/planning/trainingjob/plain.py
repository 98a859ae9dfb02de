"""What schedulers, kubelets and registries say, made fit for a status: one line, no secrets, the same for every try."""

import re

LONGEST = 1024

_RPC = re.compile(r"rpc error: code = \w+ desc = ")
# The sandbox and container of one try: the next has others, and the message would change for ever.
_ID = re.compile(r"(?<!sha256:)\b[0-9a-f]{64}\b")
# Registries redirect to addresses that carry a signature, and somebody may have written a password into one.
_QUERY = re.compile(r"(https?://[^\s\"?]+)\?[^\s\"]*")
_LOGIN = re.compile(r"(https?://)[^\s\"/]*@")


def sanitize(text: str) -> str:
    text = _LOGIN.sub(r"\1", _QUERY.sub(r"\1", _ID.sub("…", _RPC.sub("", text))))
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
