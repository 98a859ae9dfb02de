"""What a machine is made from, and how it is to join, as functions of its object and template. Pure."""

from collections.abc import Mapping
from datetime import timedelta

from holdfast.api.spotinstancevm import SpotInstanceVM
from holdfast.machines.joining import JoinProgress, JoinStep, JoinTarget
from holdfast.machines.snapshot import MachineSnapshot, MachineTiming
from holdfast.providers.protocol import MachineSpec
from holdfast.times import parse_duration_s, parse_optional_time


def join_target(seen: MachineSnapshot, template: SpotInstanceVM | None) -> JoinTarget:
    """Without a template nobody knows how to log in to a machine that was made from it, except by the derived key."""
    spec = template.spec if template is not None else None
    return JoinTarget(
        uid=seen.uid,
        namespace=seen.instance.metadata.namespace,
        node_name=seen.machine,
        project=seen.project,
        zone=seen.zone,
        startup_script=(spec.startup_script or "") if spec is not None else "",
        is_spot=seen.instance.spec.preemptible,
        ssh=spec.ssh if spec is not None else None,
        kubeadm=spec.kubeadm_join_config if spec is not None else None,
    )


def machine_spec(
    seen: MachineSnapshot, template: SpotInstanceVM, cluster_uid: str, metadata: Mapping[str, str]
) -> MachineSpec:
    spec, gcp, instance = template.spec, template.spec.gcp, seen.instance.spec
    return MachineSpec(
        name=seen.machine,
        zone=seen.zone,
        uid=seen.uid,
        cluster_uid=cluster_uid,
        job=instance.job_ref.name if instance.job_ref is not None else "",
        image=spec.vm_image,
        machine_type=gcp.machine_type,
        gpu_type=spec.gpu.type if spec.gpu is not None else "",
        gpu_count=spec.gpu.count if spec.gpu is not None else 0,
        disk_size_gb=gcp.disk_size_gb,
        disk_type=gcp.disk_type,
        network=gcp.network or "",
        subnetwork=gcp.subnetwork or "",
        external_ip=gcp.external_ip,
        network_tags=gcp.network_tags,
        service_account=gcp.service_account or "",
        min_cpu_platform=gcp.min_cpu_platform or "",
        preemptible=instance.preemptible,
        preemption_notice_s=_whole_seconds(gcp.preemption_notice) if instance.preemptible else None,
        max_run_duration_s=_whole_seconds(gcp.max_run_duration),
        metadata=metadata,
    )


def join_progress(seen: MachineSnapshot, timing: MachineTiming) -> JoinProgress | None:
    """How far the join was when its step was written last."""
    status, began = seen.status, parse_optional_time(seen.status.step_start_time)
    if status.phase != "Join" or began is None or status.step not in tuple(JoinStep):
        return None
    deadline = began + timedelta(seconds=timing.join_step_s)
    return JoinProgress(step=JoinStep(status.step), deadline=deadline, message=status.message or "")


def _whole_seconds(duration: str | None) -> int | None:
    return int(parse_duration_s(duration)) if duration else None
