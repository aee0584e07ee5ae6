"""Hosts that a scheduler starts: SLURM and Kubernetes, through Monarch's own jobs (plain TCP)."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from glasshouse.config import HostsConfig
from glasshouse.errors import HostError

if TYPE_CHECKING:
    from monarch.actor import HostMesh
    from monarch.job import JobTrait


def host_names(count: int) -> tuple[str, ...]:
    return tuple(f"host{i}" for i in range(count))


def make_slurm_job(config: HostsConfig) -> JobTrait:
    """Create a job of one allocation, with one mesh per node."""
    missing = [program for program in ("sbatch", "squeue") if not shutil.which(program)]
    if missing:
        raise HostError(
            f"hosts.kind is slurm, but this machine has no {' and no '.join(missing)}. Start the run "
            "on a machine from which jobs can be submitted."
        )
    from monarch.job import SlurmJob

    slurm = config.slurm
    return SlurmJob(
        dict.fromkeys(host_names(config.count), 1),
        python_exe=slurm.python,
        slurm_args=slurm.arguments,
        monarch_port=config.port,
        job_name="glasshouse",
        time_limit=slurm.time_limit or None,
        partition=slurm.partition or None,
        gpus_per_node=slurm.gpus or None,
        account=slurm.account or None,
        job_start_timeout=slurm.start_timeout,
    )


def make_kubernetes_job(config: HostsConfig) -> JobTrait:
    """Create a job with one MonarchMesh per host.

    Its pods are created from `hosts.kubernetes.image`, or, without an image, found by their label.
    """
    try:
        from monarch._src.job.kubernetes import ImageSpec, KubeConfig, KubernetesJob
    except (ImportError, RuntimeError):
        raise HostError("hosts.kind=kubernetes needs a package: pip install kubernetes.") from None
    kubernetes = config.kubernetes
    resources: dict[str, Any] | None = (
        {"nvidia.com/gpu": kubernetes.gpus} if kubernetes.gpus else None
    )
    job = KubernetesJob(
        namespace=kubernetes.namespace,
        timeout=kubernetes.start_timeout,
        kubeconfig=KubeConfig.from_path(kubernetes.kubeconfig) if kubernetes.kubeconfig else None,
    )
    for name in host_names(config.count):
        image = ImageSpec(kubernetes.image, resources=resources) if kubernetes.image else None
        job.add_mesh(name, num_replicas=1, image_spec=image, port=config.port)
    return job


class SchedulerProvider:
    """The hosts of one job; they start and end together."""

    controller_ip = ""

    def __init__(self, job: JobTrait, config: HostsConfig) -> None:
        self.job = job
        self.names = host_names(config.count)
        try:
            self.state = job.state(cached_path=None)
        except Exception as error:
            job.kill()
            raise HostError(f"hosts.kind={config.kind} provided no hosts: {error}") from None

    def attach(self, name: str) -> HostMesh:
        """Return the host's mesh; a job does not replace a lost host."""
        mesh: HostMesh = getattr(self.state, name)
        return mesh

    def release(self, name: str, mesh: HostMesh) -> None:
        """It ends with the job."""

    def forget(self, name: str) -> None:
        """It ends with the job."""

    def close(self) -> None:
        self.job.kill()
