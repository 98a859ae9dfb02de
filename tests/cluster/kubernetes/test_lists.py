"""Lists from servers that stream, that don't, and that break off."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.cluster.errors import BadRequest, Expired, Forbidden, NotFound, Undecodable
from holdfast.cluster.kubernetes.client import KubernetesCluster
from holdfast.cluster.kubernetes.watch import PAGE

from .conftest import client, config_for
from .faulty import FaultyServer, Reply, answer, status, stream
from .kinds import CONFIG_MAPS, JOBS, UNKNOWN, config_map

UNSTREAMED = answer(422, status(422, "Invalid", "sendInitialEvents: Forbidden"))
END = {"metadata": {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}}


def line(change: str, obj: object) -> bytes:
    return msgspec.json.encode({"type": change, "object": obj}) + b"\n"


def page(*names: str, more: str = "", version: str = "7") -> Reply:
    return answer(
        200,
        {"metadata": {"resourceVersion": version, "continue": more}, "items": [config_map(name) for name in names]},
    )


class Setting:
    def __init__(self, server: FaultyServer, cluster: KubernetesCluster, undecodable: list[str]) -> None:
        self.server = server
        self.cluster = cluster
        self.undecodable = undecodable

    async def names(self) -> list[str]:
        return [item.metadata.name for item in (await self.cluster.list(CONFIG_MAPS)).items]

    @property
    def queries(self) -> list[dict[str, str]]:
        return [request.query for request in self.server.requests]


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    server = FaultyServer()
    undecodable: list[str] = []
    async with (
        server.running() as url,
        client(config_for(tmp_path, url), on_undecodable=undecodable.append) as cluster,
    ):
        yield Setting(server, cluster, undecodable)


class TestStreamed:
    async def test_all_that_comes_before_the_end_is_the_list(self, setting: Setting) -> None:
        setting.server.then(
            stream(line("ADDED", config_map("a")), line("ADDED", config_map("b")), line("BOOKMARK", END))
        )
        listing = await setting.cluster.list(CONFIG_MAPS, namespace="ml", labels="a=b")
        assert [item.metadata.name for item in listing.items] == ["a", "b"]
        assert listing.resource_version == "9"
        assert setting.queries == [
            {
                "labelSelector": "a=b",
                "watch": "1",
                "sendInitialEvents": "true",
                "resourceVersionMatch": "NotOlderThan",
                "allowWatchBookmarks": "true",
            }
        ]
        assert setting.server.requests[0].header("Accept-Encoding") == "identity"

    async def test_an_empty_list_is_a_list(self, setting: Setting) -> None:
        setting.server.then(stream(line("BOOKMARK", END)))
        listing = await setting.cluster.list(CONFIG_MAPS)
        assert (listing.items, listing.resource_version) == ((), "9")

    async def test_changes_that_come_in_between_count(self, setting: Setting) -> None:
        setting.server.then(
            stream(
                line("ADDED", config_map("a", 1)),
                line("ADDED", config_map("b", 2)),
                line("MODIFIED", config_map("a", 3, colour="red")),
                line("DELETED", config_map("b", 4)),
                line("DELETED", config_map("never-seen", 5)),
                line("BOOKMARK", END),
            )
        )
        [item] = (await setting.cluster.list(CONFIG_MAPS)).items
        assert (item.metadata.name, item.metadata.resource_version, item.data) == ("a", "3", {"colour": "red"})

    async def test_one_object_that_does_not_fit_is_left_out_and_counted(self, setting: Setting) -> None:
        strange = {**config_map("strange"), "data": "not a map"}
        setting.server.then(stream(line("ADDED", strange), line("ADDED", config_map("fine")), line("BOOKMARK", END)))
        assert await setting.names() == ["fine"]
        assert setting.undecodable == ["configmaps"]

    @pytest.mark.parametrize("is_ended", [True, False], ids=["ended", "cut off"])
    async def test_a_list_that_stops_before_its_end_is_asked_for_in_pages_this_once(
        self, setting: Setting, is_ended: bool
    ) -> None:
        """As a server does that has too much to do, just when an operator starts."""
        short = stream(line("ADDED", config_map("a")), end=is_ended)
        whole = stream(line("ADDED", config_map("c")), line("BOOKMARK", END))
        setting.server.then(short, page("a", "b"), whole)
        assert await setting.names() == ["a", "b"]
        assert await setting.names() == ["c"]
        assert ["sendInitialEvents" in query for query in setting.queries] == [True, False, True]

    async def test_an_error_in_the_stream_is_raised(self, setting: Setting) -> None:
        setting.server.then(stream(line("ERROR", status(410, "Expired", "too old"))))
        with pytest.raises(Expired, match="list configmaps: too old"):
            await setting.cluster.list(CONFIG_MAPS)

    async def test_what_is_not_json_is_refused(self, setting: Setting) -> None:
        setting.server.then(stream(b"<html>\n"))
        with pytest.raises(Undecodable):
            await setting.cluster.list(CONFIG_MAPS)


class TestFallingBack:
    @pytest.mark.parametrize("refusal", [UNSTREAMED, answer(400, status(400, "BadRequest", "what?"))])
    async def test_a_server_that_does_not_stream_is_asked_for_pages_from_then_on(
        self, setting: Setting, refusal: Reply
    ) -> None:
        setting.server.then(refusal, page("a"), page("a", "b"))
        assert await setting.names() == ["a"]
        assert await setting.names() == ["a", "b"]
        assert [query.get("watch") for query in setting.queries] == ["1", None, None]

    async def test_a_server_that_takes_it_for_a_watch_is_asked_for_pages(self, setting: Setting) -> None:
        bookmark = {"metadata": {"resourceVersion": "9"}}
        setting.server.then(stream(line("ADDED", config_map("a")), line("BOOKMARK", bookmark)), page("a", "b"))
        assert await setting.names() == ["a", "b"]

    async def test_a_user_who_may_list_but_not_watch_gets_pages(self, setting: Setting) -> None:
        setting.server.then(answer(403, status(403, "Forbidden", "cannot watch")), page("a"))
        assert await setting.names() == ["a"]

    async def test_a_user_who_may_do_neither_gets_the_error_about_listing(self, setting: Setting) -> None:
        for verb in ("watch", "list"):
            setting.server.then(answer(403, status(403, "Forbidden", f'User "jane" cannot {verb} configmaps')))
        with pytest.raises(Forbidden, match='User "jane" cannot list configmaps'):
            await setting.cluster.list(CONFIG_MAPS)

    async def test_a_selector_that_makes_no_sense_teaches_nothing_about_the_server(self, setting: Setting) -> None:
        wrong = answer(400, status(400, "BadRequest", "unable to parse"))
        setting.server.then(wrong, wrong, stream(line("BOOKMARK", END)))
        with pytest.raises(BadRequest, match="unable to parse"):
            await setting.cluster.list(CONFIG_MAPS, labels="=")
        assert await setting.names() == []
        assert setting.queries[-1]["sendInitialEvents"] == "true"

    async def test_each_kind_is_remembered_for_itself(self, setting: Setting) -> None:
        setting.server.then(UNSTREAMED, page("a"), stream(line("BOOKMARK", END)))
        await setting.names()
        assert (await setting.cluster.list(JOBS)).items == ()

    async def test_a_kind_that_is_not_served_is_not_found(self, setting: Setting) -> None:
        setting.server.then(answer(404, b"404 page not found\n"))
        with pytest.raises(NotFound, match=r"^list things.nowhere.example.com: the server does not serve this kind$"):
            await setting.cluster.list(UNKNOWN)


class TestPages:
    @pytest.fixture(autouse=True)
    def unstreamed(self, setting: Setting) -> None:
        setting.server.then(UNSTREAMED)

    def limits(self, setting: Setting) -> list[Any]:
        return [(query.get("limit"), query.get("continue")) for query in setting.queries[1:]]

    async def test_pages_are_put_together(self, setting: Setting) -> None:
        setting.server.then(page("a", "b", more="t/1+"), page("c", more="t2"), page("d"))
        listing = await setting.cluster.list(CONFIG_MAPS)
        assert [item.metadata.name for item in listing.items] == ["a", "b", "c", "d"]
        assert listing.resource_version == "7"
        assert self.limits(setting) == [(str(PAGE), None), (str(PAGE), "t/1+"), (str(PAGE), "t2")]

    async def test_pages_that_expire_are_thrown_away_for_one_whole_list(self, setting: Setting) -> None:
        expired = answer(410, status(410, "Expired", "too old", metadata={"continue": "inconsistent"}))
        setting.server.then(page("old", more="t1"), expired, page("new-a", "new-b", version="99"))
        listing = await setting.cluster.list(CONFIG_MAPS)
        assert [item.metadata.name for item in listing.items] == ["new-a", "new-b"]
        assert listing.resource_version == "99"
        assert self.limits(setting)[-1] == (None, None)

    async def test_one_object_that_does_not_fit_is_left_out_and_counted(self, setting: Setting) -> None:
        strange = {**config_map("strange"), "data": 1}
        setting.server.then(answer(200, {"metadata": {"resourceVersion": "7"}, "items": [strange, config_map("fine")]}))
        assert await setting.names() == ["fine"]
        assert setting.undecodable == ["configmaps"]

    async def test_not_even_metadata_need_fit(self, setting: Setting) -> None:
        items = [{"metadata": {"name": 7}}, {"metadata": None}, "what?", config_map("fine")]
        setting.server.then(answer(200, {"metadata": {"resourceVersion": "7"}, "items": items}))
        assert await setting.names() == ["fine"]
        assert len(setting.undecodable) == 3

    async def test_no_items_may_be_null(self, setting: Setting) -> None:
        setting.server.then(answer(200, {"metadata": {"resourceVersion": "7"}, "items": None}))
        assert await setting.names() == []

    async def test_a_page_is_waited_for_when_the_server_is_busy(self, setting: Setting) -> None:
        setting.server.then(page("a", more="t1"), answer(429, Retry_After="0"), page("b"))
        assert await setting.names() == ["a", "b"]
