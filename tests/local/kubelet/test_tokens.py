"""A projected token: a file in the pod that proves who it is."""

from holdfast.cluster.protocol import JSON
from holdfast.local.kubelet.objects import RunnablePod
from tests.local.kubelet.bench import MakeBench, shell

SHOW = "cd /proof; for file in $(find . -type f | sort); do echo $file $(stat -c %a $file) $(cat $file); done"
MOUNT: JSON = {"volumeMounts": [{"name": "proof", "mountPath": "/proof"}]}


def projected(*sources: JSON) -> list[JSON]:
    return [{"name": "proof", "projected": {"sources": list(sources)}}]


def token(audience: str, path: str) -> JSON:
    return {"serviceAccountToken": {"audience": audience, "path": path, "expirationSeconds": 3600}}


def named(pod: RunnablePod, audience: str) -> str:
    return f"token of {pod.metadata.uid} for {audience}"


async def test_a_pod_finds_a_token_for_each_audience_that_only_its_owner_can_read(make_bench: MakeBench) -> None:
    bench = await make_bench(issue_token=named)
    volumes = projected(token("reports", "token"), token("others", "deep/token"))
    pod = await bench.ended(shell(SHOW, **MOUNT), volumes=volumes)
    uid = pod.metadata.uid
    assert (await bench.log(pod.metadata.key)).splitlines() == [
        f"./deep/token 400 token of {uid} for others",
        f"./token 400 token of {uid} for reports",
    ]


async def test_where_nobody_issues_tokens_the_rest_of_the_volume_is_there(make_bench: MakeBench) -> None:
    bench = await make_bench()
    name = {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}
    pod = await bench.ended(shell(SHOW, **MOUNT), volumes=projected(token("reports", "token"), name))
    assert (await bench.log(pod.metadata.key)).split() == ["./name", "400", "p"]
