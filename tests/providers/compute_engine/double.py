"""A double of Compute Engine: Google's own description is its contract, and the clock of the event loop its time.

cloud = ComputeEngine(now=now)
account = cloud.add_account()                      # its key_file() is a Secret's credentials.json
provider = connect("my-gcp-project", parse_service_account(account.key_file()), http=InProcess(cloud), …)
cloud.hooks.on_running = attach_a_computer
cloud.supply.sold_out.add("us-central1-a")
cloud.preempt(cloud.machine(name))
assert cloud.count("instances.insert") == 2
await cloud.close()                                # raises for requests that Google would not understand
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from holdfast.providers.gcp.endpoint import GoogleEndpoint, endpoint_at
from holdfast.providers.gcp.http import HttpRequest, HttpResponse
from holdfast.providers.gcp.permissions import ALL
from tests.providers.compute_engine import partial
from tests.providers.compute_engine.accounts import Account, Accounts
from tests.providers.compute_engine.calls import ConnectionLost, RateLimit, RecordedCall, Watch
from tests.providers.compute_engine.checker import answer_problems, request_problems
from tests.providers.compute_engine.description import Description, Found, description
from tests.providers.compute_engine.faults import Faults
from tests.providers.compute_engine.lives import Hooks, Lives
from tests.providers.compute_engine.machine import REALISTIC, FakeMachine, Pace
from tests.providers.compute_engine.methods import METHODS, Asked
from tests.providers.compute_engine.operations import SYSTEM, FakeOperation
from tests.providers.compute_engine.refusals import OperationFailure, Refused, too_fast, unavailable
from tests.providers.compute_engine.supply import Supply

PROJECT = "my-gcp-project"
API = "/compute/v1/"
TOKEN = "/token"
OWN_TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"
TARGETS = ("instance", "operation", "machineType")
FIRST_NUMBER = 4_816_000_000_000_000_000


async def _nothing(call: RecordedCall) -> None:
    pass


def _addresses(number: int) -> tuple[str, str]:
    return f"10.128.{number // 250}.{number % 250 + 2}", f"34.72.{number // 250}.{number % 250 + 2}"


class ComputeEngine:
    """Settings are attributes, and may be changed at any time."""

    def __init__(
        self,
        *,
        now: Callable[[], datetime],
        pace: Pace = REALISTIC,
        contract: Description | None = None,
        addresses: Callable[[int], tuple[str, str]] = _addresses,
    ) -> None:
        """addresses: the internal and the external one of the machine of that number."""
        self.now = now
        self.contract = contract or description()
        self.accounts = Accounts(now)
        self.supply = Supply()
        self.faults = Faults()
        self.machines: dict[tuple[str, str, str], FakeMachine] = {}
        """By project, zone and name: those that are listed."""
        self.made: list[FakeMachine] = []
        """All that there ever were, the first first, those whose insert failed included."""
        self.operations: dict[str, FakeOperation] = {}
        self.calls: list[RecordedCall] = []
        self.problems: list[str] = []
        """Requests that do not fit the description."""
        self.projects = {PROJECT}
        self.missing: set[str] = set()
        """Resources that there are not, as in machineTypes/n1-standard-4 or images/cos-109."""
        self.unreachable: set[str] = set()
        """Zones that do not answer."""
        self.zones_down: set[str] = set()
        self.is_down = False
        """Every call is answered with 503."""
        self.rate_limit: RateLimit | None = None
        self.page_size = 500
        self.wait_answers_after_s: float | None = None
        """Before an operation is done; without it, after two minutes."""
        self.before_call: Watch = _nothing
        self.after_call: Watch = _nothing
        """What the call asks for is done, and its answer not given yet."""
        self.origin = "http://compute.test"
        self.pace = pace
        self._lives = Lives(pace, now, remove=self._remove, by_system=self._by_system)
        self._addresses = addresses
        self._numbers = 0
        self._recent: deque[float] = deque()
        self.checks_answers = True
        """The double's own; off where thousands of machines are listed again and again."""

    # What tests do.

    @property
    def hooks(self) -> Hooks:
        return self._lives.hooks

    @property
    def endpoint(self) -> GoogleEndpoint:
        """For `connect`. For an operator of its own, HOLDFAST_GCP_ENDPOINT is `origin`."""
        return endpoint_at(self.origin)

    def add_account(
        self, email: str = "trainer@my-gcp-project.iam.gserviceaccount.com", permissions: Iterable[str] = ALL
    ) -> Account:
        return self.accounts.add(email, permissions)

    def machine(self, name: str) -> FakeMachine:
        """The listed machine of that name."""
        (found,) = (machine for machine in self.machines.values() if machine.name == name)
        return found

    def preempt(self, machine: FakeMachine) -> None:
        """Google takes it back, with a notice."""
        self._lives.preempt(machine)

    def fail_host(self, machine: FakeMachine) -> None:
        self._lives.fail_host(machine)

    def delete_by_hand(self, machine: FakeMachine) -> None:
        """Somebody deletes it in Google's console."""
        operation = self.operation("delete", machine, user="somebody@example.com")
        self._lives.delete(machine, operation, None)

    def count(self, method: str = "", *, zone: str = "", target: str = "") -> int:
        """Calls so far: of one method, of one zone, of one machine."""
        return sum(
            (not method or call.method == method)
            and (not zone or call.zone == zone)
            and (not target or call.target == target)
            for call in self.calls
        )

    def counts(self) -> Counter[str]:
        return Counter(call.method for call in self.calls)

    async def close(self) -> None:
        """Ends what is under way. Raises for requests and hooks that were wrong."""
        await self._lives.close()
        assert not self.problems, "\n".join(self.problems)

    # What methods use.

    @property
    def root(self) -> str:
        """Links of resources begin with it, whatever address was asked."""
        return "https://www.googleapis.com/compute/v1"

    def make(self, project: str, zone: str, body: dict[str, Any], user: str, request_id: str) -> FakeOperation:
        self._numbers += 1
        machine = FakeMachine(project, zone, FIRST_NUMBER + self._numbers, body, self.now())
        internal, external = self._addresses(len(self.made))
        machine.internal_ip = internal
        machine.external_ip = external if body["networkInterfaces"][0].get("accessConfigs") else ""
        self.machines[project, zone, machine.name] = machine
        self.made.append(machine)
        operation = self.operation("insert", machine, user=user, request_id=request_id)
        planned = self.faults.next_for_operation("insert")
        self._lives.begin(machine, operation, lambda: planned or self._shortage(machine))
        return operation

    def _shortage(self, machine: FakeMachine) -> OperationFailure | None:
        """First come, first served."""
        earlier = self.made[: self.made.index(machine)]
        return self.supply.shortage(machine, [other for other in earlier if not other.gone.is_set()])

    def delete(self, machine: FakeMachine, user: str, request_id: str) -> FakeOperation:
        operation = self.operation("delete", machine, user=user, request_id=request_id)
        self._lives.delete(machine, operation, self.faults.next_for_operation("delete"))
        return operation

    def operation(self, kind: str, machine: FakeMachine, *, user: str, request_id: str = "") -> FakeOperation:
        self._numbers += 1
        prefix = "systemevent" if user == SYSTEM else "operation"
        operation = FakeOperation(
            name=f"{prefix}-{int(self.now().timestamp() * 1000)}-{self._numbers:08x}",
            number=FIRST_NUMBER + self._numbers,
            kind=kind,
            project=machine.project,
            zone=machine.zone,
            target=machine.path,
            target_id=machine.id,
            user=user,
            request_id=request_id,
            began_at=self.now(),
        )
        self.operations[operation.name] = operation
        return operation

    # Requests.

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """May raise ConnectionLost."""
        parts = urlsplit(request.url)
        if parts.path in (TOKEN, OWN_TOKEN):
            return await self._answer_token(parts.path, request)
        path = unquote(parts.path).removeprefix(API)
        found = self.contract.find(request.method, path) if parts.path.startswith(API) else None
        if found is None:
            self.problems.append(f"{request.method} {parts.path}: there is no such method")
            return Refused(404, "notFound", "The requested URL was not found on this server.").response
        query = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **request.query}
        call = self._record(found, query)
        await self.before_call(call)
        response = await self._carry_out(call, found, query, request)
        call.status = response.status
        return response

    async def _carry_out(
        self, call: RecordedCall, found: Found, query: dict[str, str], request: HttpRequest
    ) -> HttpResponse:
        fault = self.faults.next_for_call(found.method.id)
        if fault is not None and not fault.executed:
            response = fault.answer.response if fault.answer else None
        else:
            try:
                response = await self._respond(call, found, query, request)
            except Refused as refused:
                response = refused.response
            await self.after_call(call)
            if fault is not None:
                response = fault.answer.response if fault.answer else None
        if response is None:
            assert fault is not None
            raise ConnectionLost(is_silent=fault.loss == "timeout")
        return response

    async def _respond(
        self, call: RecordedCall, found: Found, query: dict[str, str], request: HttpRequest
    ) -> HttpResponse:
        if self.is_down or found.arguments.get("zone") in self.unreachable:
            raise unavailable()
        account = self.accounts.owner(request.headers)
        call.account = account.email
        self._require_pace()
        body = self._decode(request.body)
        if isinstance(body, dict) and found.method.id == "instances.insert":
            call.target = str(body.get("name", ""))
        self._require_contract(found, query, body)
        if found.arguments["project"] not in self.projects:
            raise Refused(404, "notFound", f"The resource 'projects/{found.arguments['project']}' was not found")
        handler = METHODS.get(found.method.id)
        assert handler is not None, f"the double has no {found.method.id}"
        content = await handler(self, Asked(found.arguments, query, body, account))
        if self.checks_answers and (problems := list(answer_problems(self.contract, found, content))):
            raise AssertionError(f"the double answers {found.method.id} wrongly: {problems}")
        if fields := query.get("fields"):
            content = partial.select(content, partial.parse(fields))
        return HttpResponse(
            status=200,
            headers={"Content-Type": "application/json; charset=UTF-8"},
            body=msgspec.json.encode(content),
        )

    async def _answer_token(self, path: str, request: HttpRequest) -> HttpResponse:
        fault = self.faults.next_for_call("token")
        if fault is not None and not fault.executed:
            if fault.answer is None:
                raise ConnectionLost(is_silent=fault.loss == "timeout")
            return fault.answer.response
        if path == OWN_TOKEN:
            return self.accounts.answer_own(request.headers)
        return self.accounts.answer(request.body, f"{self.origin}{TOKEN}")

    def _record(self, found: Found, query: dict[str, str]) -> RecordedCall:
        arguments = found.arguments
        call = RecordedCall(
            number=len(self.calls),
            at_s=asyncio.get_running_loop().time(),
            method=found.method.id,
            project=arguments["project"],
            zone=arguments.get("zone", ""),
            target=next(
                (arguments[name] for name in ("instance", "operation", "machineType") if name in arguments), ""
            ),
            request_id=query.get("requestId", ""),
        )
        self.calls.append(call)
        return call

    def _require_pace(self) -> None:
        if self.rate_limit is None:
            return
        now_s = asyncio.get_running_loop().time()
        while self._recent and self._recent[0] <= now_s - self.rate_limit.per_s:
            self._recent.popleft()
        if len(self._recent) >= self.rate_limit.calls:
            raise too_fast(self.rate_limit.retry_after_s)
        self._recent.append(now_s)

    def _decode(self, body: bytes) -> object:
        try:
            return msgspec.json.decode(body) if body else None
        except msgspec.DecodeError:
            raise Refused(400, "parseError", "Parse Error") from None

    def _require_contract(self, found: Found, query: dict[str, str], body: object) -> None:
        problems = list(request_problems(self.contract, found, query, body))
        if fields := query.get("fields"):
            try:
                selection = partial.parse(fields)
            except partial.BadFields as error:
                problems.append(f"?fields: {error}")
            else:
                answer = {"$ref": found.method.answer}
                problems += partial.selection_problems(self.contract, selection, answer)
        if problems:
            self.problems += [f"{found.method.id}: {problem}" for problem in problems]
            raise Refused(400, "invalid", "Invalid JSON payload received. " + "; ".join(problems))

    def _remove(self, machine: FakeMachine) -> None:
        self.machines.pop((machine.project, machine.zone, machine.name), None)

    def _by_system(self, machine: FakeMachine, kind: str) -> FakeOperation:
        return self.operation(kind, machine, user=SYSTEM)
