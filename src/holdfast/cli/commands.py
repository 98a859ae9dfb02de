"""The commands for objects, and their options. What a command does is imported when it runs: help needs typer alone."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from holdfast.cli.options import ContextOption, FilenamesOption, KubeconfigOption, NamespaceOption, OutputFormat

if TYPE_CHECKING:
    from holdfast.cli.session import Session

NameArgument: TypeAlias = Annotated[str, typer.Argument(help="The object's name.", metavar="NAME")]
LiteralOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--from-literal", help="A key and its value. May be given several times.", metavar="KEY=VALUE"),
]
FileOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--from-file",
        help="A file, under its own name or KEY; or a folder, every file of which becomes a key.",
        metavar="[KEY=]PATH",
    ),
]
PlainHttpOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--plain-http-registry",
        help="A registry that is reached without TLS, as the operator's option lists it; may be repeated.",
        metavar="HOST:PORT",
    ),
]


def up(
    gpus: Annotated[
        int | None, typer.Option(help="How many GPUs to offer; by default those that nvidia-smi finds.", min=0)
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder for everything: objects, logs, volumes. $HOLDFAST_DATA by default.")
    ] = None,
    limits: Annotated[
        bool, typer.Option(help="Hold jobs to their CPU and memory limits, where the kernel lets us (control groups).")
    ] = True,
    preemption_notice: Annotated[
        str, typer.Option(help="How long before its end a spot machine gets its notice.", metavar="TIME")
    ] = "30s",
    preemption_trace: Annotated[
        Path | None,
        typer.Option(
            help="Log of spot machines to replay: lines of milliseconds,add|remove,node.", dir_okay=False, exists=True
        ),
    ] = None,
    trace_speed: Annotated[
        float, typer.Option(help="How many seconds of the log pass in a second.", min=0.001, max=1e6)
    ] = 1.0,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show what each part logs as well; $LOG_LEVEL says how much.")
    ] = False,
) -> None:
    """Run jobs on this machine, without Kubernetes, until asked to stop (Ctrl-C, SIGTERM, a closed terminal)."""
    from holdfast.cli.up import MarketOptions, run_local_cluster

    options = MarketOptions(notice=preemption_notice, trace=preemption_trace, speed=trace_speed)
    run_local_cluster(data, gpus, limits=limits, market=options, verbose=verbose)


def demo() -> None:
    """Train a small model with two workers on this machine and show how it goes."""
    from holdfast.cli.demo import run_demo

    run_demo()


def apply(
    filenames: FilenamesOption,
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Create or change objects: holdfast apply -f job.yaml"""
    from holdfast.cli.apply import apply_manifests

    _run(lambda session: apply_manifests(session, filenames, namespace), kubeconfig, context, namespace)


create = typer.Typer(name="create", help="Create namespaces, ConfigMaps and Secrets.", no_args_is_help=True)
_secret = typer.Typer(name="secret", help="Create Secrets.", no_args_is_help=True)
create.add_typer(_secret)


@create.command("namespace")
def create_namespace(name: NameArgument, kubeconfig: KubeconfigOption = None, context: ContextOption = "") -> None:
    """Create a namespace: holdfast create namespace ml-training"""
    from holdfast.cli.create import create_named

    _run(lambda session: create_named(session, "namespace", name, {}), kubeconfig, context)


@create.command("configmap")
def create_configmap(
    name: NameArgument,
    from_file: FileOption = None,
    from_literal: LiteralOption = None,
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Create a ConfigMap: holdfast create configmap scripts --from-file train.py"""
    from holdfast.cli.create import configmap_content, create_named

    async def command(session: "Session") -> int:
        content = configmap_content(from_file or [], from_literal or [])
        return await create_named(session, "configmap", name, content)

    _run(command, kubeconfig, context, namespace)


@_secret.command("generic")
def create_secret(
    name: NameArgument,
    from_file: FileOption = None,
    from_literal: LiteralOption = None,
    kind: Annotated[str, typer.Option("--type", help="The Secret's type.")] = "Opaque",
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Create a Secret: holdfast create secret generic aws-credentials --from-file AWS_SECRET_ACCESS_KEY=key.txt"""
    from holdfast.cli.create import create_named, secret_content

    async def command(session: "Session") -> int:
        content = secret_content(kind, from_file or [], from_literal or [])
        return await create_named(session, "secret", name, content)

    _run(command, kubeconfig, context, namespace)


def get(
    what: Annotated[
        list[str] | None, typer.Argument(help="KIND, KIND NAME…, or KIND/NAME…", metavar="KIND[/NAME]")
    ] = None,
    namespace: NamespaceOption = "",
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of every namespace.")] = False,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="wide, yaml, json or name.")
    ] = OutputFormat.TABLE,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on and show every change.")] = False,
    selector: Annotated[str, typer.Option("--selector", "-l", help="Only those with these labels.")] = "",
    no_headers: Annotated[bool, typer.Option("--no-headers", help="Without the line of column names.")] = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Show objects: holdfast get tj, holdfast get pods -o wide, holdfast get tj/mnist -o yaml"""
    from holdfast.cli.get import GetOptions, get_objects, watch_objects

    options = GetOptions(output=output, all_namespaces=all_namespaces, selector=selector, headers=not no_headers)
    show = watch_objects if watch else get_objects
    _run(lambda session: show(session, what or [], options), kubeconfig, context, namespace)


def describe(
    what: Annotated[list[str], typer.Argument(help="KIND NAME…, KIND/NAME…, or KIND for all.", metavar="KIND/NAME")],
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Show everything about objects, with their events: holdfast describe tj mnist"""
    from holdfast.cli.describe import describe_objects

    _run(lambda session: describe_objects(session, what), kubeconfig, context, namespace)


def logs(
    what: Annotated[
        str,
        typer.Argument(
            help="A TrainingJob, GPUWorkload, SpotInstanceJob or pod: NAME, tj/NAME, gpuw/NAME, sij/NAME, pod/NAME.",
            metavar="JOB|WORKLOAD|POD",
        ),
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it has ended.")] = False,
    tail: Annotated[int | None, typer.Option(help="Only the last lines, as many.", min=0)] = None,
    attempt: Annotated[int | None, typer.Option(help="Of which attempt; by default the current.", min=0)] = None,
    worker: Annotated[int, typer.Option(help="Which worker of the job, or which replica.", min=0)] = 0,
    all_workers: Annotated[
        bool, typer.Option("--all", help="Every worker or replica, each line with its number.")
    ] = False,
    container: Annotated[str, typer.Option("--container", "-c", help="Which container of the pod.")] = "",
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Print logs: holdfast logs -f mnist"""
    from holdfast.cli.logs.command import print_logs
    from holdfast.cli.logs.streams import LogOptions

    options = LogOptions(follow=follow, tail=tail, attempt=attempt, worker=worker, all=all_workers, container=container)
    _run(lambda session: print_logs(session, what, options), kubeconfig, context, namespace)


def wait(
    what: Annotated[list[str], typer.Argument(help="KIND/NAME…, or KIND NAME…", metavar="KIND/NAME")],
    goal: Annotated[
        str,
        typer.Option("--for", help="condition=NAME[=VALUE], jsonpath='{PATH}'[=VALUE], or delete.", metavar="GOAL"),
    ] = "",
    timeout: Annotated[str, typer.Option(help="For how long: 30s, 5m, 1h30m; 0 looks once.")] = "30s",
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Wait for objects: holdfast wait tj/mnist --for=condition=Succeeded --timeout=1h"""
    from holdfast.cli.wait import wait_for_objects

    _run(lambda session: wait_for_objects(session, what, goal, timeout), kubeconfig, context, namespace)


def delete(
    what: Annotated[list[str] | None, typer.Argument(help="KIND NAME…, or KIND/NAME…", metavar="KIND/NAME")] = None,
    filenames: Annotated[
        list[str] | None, typer.Option("--filename", "-f", help="Delete what these manifests name: file, folder or -.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until it is gone.")] = True,
    ignore_not_found: Annotated[
        bool, typer.Option("--ignore-not-found", help="What is not there counts as deleted.")
    ] = False,
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Delete objects: holdfast delete tj mnist, holdfast delete -f job.yaml"""
    from holdfast.cli.delete import delete_objects, targets

    async def command(session: "Session") -> int:
        found = targets(session, what or [], filenames or [], namespace)
        return await delete_objects(session, found, wait=wait, ignore_not_found=ignore_not_found)

    _run(command, kubeconfig, context, namespace)


def restore(
    backup: Annotated[str, typer.Argument(help="The CheckpointBackup's name.", metavar="BACKUP")],
    run: Annotated[int | None, typer.Option(help="Which run; by default the newest complete one.", min=1)] = None,
    name: Annotated[str, typer.Option(help="The new pod's name; by default the old one's with the run.")] = "",
    filename: Annotated[
        str, typer.Option("--filename", "-f", help="Manifest of the pod or its workload, if the pod is gone.")
    ] = "",
    node: Annotated[str, typer.Option(help="On which node; by default where it can go on and fits.")] = "",
    pull_secret: Annotated[
        str, typer.Option(help="Secret that nodes fetch the images with; by default the backup's own.")
    ] = "",
    plain_http_registry: PlainHttpOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the pod, and create nothing.")] = False,
    timeout: Annotated[str, typer.Option(help="For how long to wait until it runs: 30s, 5m, 1h.")] = "10m",
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Start a pod from the images of a CheckpointBackup: holdfast restore nightly"""
    from holdfast.cli.restore.command import RestoreOptions, restore_backup

    options = RestoreOptions(
        run=run,
        name=name,
        filename=filename,
        node=node,
        pull_secret=pull_secret,
        plain_http=tuple(plain_http_registry or ()),
        dry_run=dry_run,
        timeout=timeout,
    )
    _run(lambda session: restore_backup(session, backup, options), kubeconfig, context, namespace)


def preempt(
    name: Annotated[str, typer.Argument(help="The ProvisionedInstance's name.", metavar="MACHINE")],
    notice: Annotated[
        str,
        typer.Option(
            help="How long its notice is: 30s, 2m; by default as its SpotInstanceVM or `holdfast up` says.",
            metavar="TIME",
        ),
    ] = "",
    now: Annotated[bool, typer.Option("--now", help="Without a notice.")] = False,
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Take a machine back as a cloud does, to see what becomes of its job: holdfast preempt digits-r0-0-m0"""
    from holdfast.cli.preempt import preempt_machine

    _run(lambda session: preempt_machine(session, name, notice=notice, now=now), kubeconfig, context, namespace)


def doctor(
    node: Annotated[
        str, typer.Option(help="Try it: save and restore a small pod on this node, and then label it.")
    ] = "",
    registry: Annotated[
        str, typer.Option(help="Registry and repository for that, such as registry.example.com/team/checkpoints.")
    ] = "",
    pull_secret: Annotated[str, typer.Option(help="Secret with that registry's credential.")] = "",
    image: Annotated[str, typer.Option(help="Image of that pod: any with a shell.")] = "busybox:1.37",
    plain_http_registry: PlainHttpOption = None,
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Say what of a cluster is fine for holdfast, what is missing, and what to do. Exits with 1 on a problem."""
    from holdfast.cli.doctor.command import examine_cluster, examine_node

    if node or registry:
        plain_http = tuple(plain_http_registry or ())
        _run(
            lambda session: examine_node(
                session, node, registry, secret=pull_secret, image=image, plain_http=plain_http
            ),
            kubeconfig,
            context,
            namespace,
        )
    else:
        _run(examine_cluster, kubeconfig, context, namespace)


def validate(filenames: FilenamesOption) -> None:
    """Check manifests as the API server would: holdfast validate -f job.yaml"""
    from holdfast.cli.crds import validate_files

    raise typer.Exit(validate_files(filenames))


def crds(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write one file for each kind to.", file_okay=False)
    ] = None,
) -> None:
    """Print the CustomResourceDefinitions: holdfast crds | kubectl apply --server-side -f -"""
    from holdfast.cli.crds import print_crds, write_crds

    if output is None:
        print_crds()
    else:
        write_crds(output)


def _run(
    command: "Callable[[Session], Awaitable[int]]", kubeconfig: Path | None, context: str, namespace: str = ""
) -> None:
    from holdfast.cli.session import ClusterOptions, run

    run(ClusterOptions(kubeconfig=kubeconfig, context=context, namespace=namespace), command)
