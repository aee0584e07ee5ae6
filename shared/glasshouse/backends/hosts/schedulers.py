"""Hosts that a scheduler starts: SLURM and Kubernetes, by Monarch's own jobs (plain TCP)."""

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


def slurm_job(config: HostsConfig) -> JobTrait:
    """One allocation, a mesh a node."""
    missing = [program for program in ("sbatch", "squeue") if not shutil.which(program)]
    if missing:
        raise HostError(
            f"hosts.kind is slurm, but there is no {' and no '.join(missing)} here: start the run on a "
            "machine from which jobs are submitted."
        )
    from monarch.job import SlurmJob

    given = config.slurm
    return SlurmJob(
        dict.fromkeys(host_names(config.count), 1),
        python_exe=given.python,
        slurm_args=given.arguments,
        monarch_port=config.port,
        job_name="glasshouse",
        time_limit=given.time_limit or None,
        partition=given.partition or None,
        gpus_per_node=given.gpus or None,
        account=given.account or None,
        job_start_timeout=given.start_timeout,
    )


def kubernetes_job(config: HostsConfig) -> JobTrait:
    """A MonarchMesh a host: made from `hosts.kubernetes.image`, or found by its label."""
    try:
        from monarch._src.job.kubernetes import ImageSpec, KubeConfig, KubernetesJob
    except (ImportError, RuntimeError):
        raise HostError("hosts.kind=kubernetes needs a package: pip install kubernetes.") from None
    given = config.kubernetes
    resources: dict[str, Any] | None = {"nvidia.com/gpu": given.gpus} if given.gpus else None
    job = KubernetesJob(
        namespace=given.namespace,
        timeout=given.start_timeout,
        kubeconfig=KubeConfig.from_path(given.kubeconfig) if given.kubeconfig else None,
    )
    for name in host_names(config.count):
        image = ImageSpec(given.image, resources=resources) if given.image else None
        job.add_mesh(name, num_replicas=1, image_spec=image, port=config.port)
    return job


class Scheduled:
    """The hosts of one job; they come and go together."""

    def __init__(self, job: JobTrait, config: HostsConfig) -> None:
        self.job = job
        self.names = host_names(config.count)
        try:
            self.state = job.state(cached_path=None)
        except Exception as error:
            job.kill()
            raise HostError(f"{config.kind} gave no hosts: {error}") from None

    def attach(self, name: str) -> HostMesh:
        """The same each time: the scheduler gives no other within a job."""
        mesh: HostMesh = getattr(self.state, name)
        return mesh

    def release(self, name: str, mesh: HostMesh) -> None:
        """It ends with the job."""

    def forget(self, name: str) -> None:
        """It ends with the job."""

    def close(self) -> None:
        self.job.kill()
