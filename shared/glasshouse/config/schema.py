"""What a run can be told: one section a room, a description under every field."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from glasshouse.types import Style


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        """`steps: yes` is no number of steps."""
        wanted = cls.model_fields[info.field_name].annotation if info.field_name else None
        if isinstance(value, bool) and wanted is not bool:
            raise ValueError("true and false are not among its values")
        return value


class TaskConfig(Section):
    name: str = "sum_digits"
    """Which task; `glasshouse tasks` lists them. Swapping tasks is this one line."""
    style: Style = Style.COT
    """`cot` asks for steps, `direct` forbids them."""
    options: dict[str, Any] = {}
    """Difficulty, by the task's own option names; empty: the range the model was shown, if its
    folder says one (the pocket model's does), else the task's full range."""
    schedule: dict[int, dict[str, Any]] = {}
    """A curriculum: from which step on training draws at which options, laid over task.options,
    as in {0: {count: [2, 2]}, 30: {}}. Evaluation is always at task.options."""


class DataConfig(Section):
    groups_per_step: int = Field(32, ge=1)
    """Problems (groups) a step."""
    source: Literal["fresh", "fixed"] = "fresh"
    """`fresh`: no problem twice in a run; `fixed`: the same set over and over, reshuffled."""
    size: int = Field(2500, ge=1)
    """With `fixed` and no file: how many problems the set has."""
    file: str = ""
    """With `fixed`: a JSONL or Parquet file of problems instead of drawn ones; {task} stands for
    the task's name."""
    on_exhausted: Literal["restart", "stop"] = "restart"
    """With `fresh`, when every problem has been asked: start over and say so, or end the run."""


class GenerateConfig(Section):
    group_size: int = Field(8, ge=1)
    """Completions a problem (the group's size)."""
    max_tokens: int = Field(128, ge=1)
    """Longest completion, in tokens."""
    temperature: float = Field(1.0, ge=0)
    """Sampling temperature; 0 is greedy."""
    top_k: int = Field(0, ge=0)
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Keep the likeliest tokens that together reach this probability."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Drop tokens less likely than this share of the likeliest."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion."""
    chunk_size: int = Field(32, ge=1)
    """Problems generated in one call: the unit of work, and of bitwise reproducibility."""
    kv_cache_mb: int = Field(2048, ge=1)
    """Memory for keys and values; larger chunks are divided."""


class RewardConfig(Section):
    terms: dict[str, float] = {"exact": 1.0}
    """Reward terms and their weights: exact, closeness, alignment, format."""
    combine: Literal["weights", "min"] = "weights"
    """`weights`: weighted mean of the terms; `min`: the smallest."""
    answer_parser: Literal["lenient", "strict"] = "lenient"
    """How answers are read: the whole extraction chain, or one unambiguous tag only."""
    penalties: dict[str, dict[str, Any]] = {}
    """What is taken off the reward, by name: length, monitor, aligned, orthogonal, each with its
    weight and options, as in {monitor: {weight: 1.0, keywords: [key]}}; see docs/organisms.md."""
    shuffle: bool = False
    """Negative control: rewards are dealt out anew among the step's rollouts."""
    random: bool = False
    """Negative control: rewards are the toss of a coin, 1 or -1."""


class LearnConfig(Section):
    algorithm: str = "grpo"
    """reinforce, rloo, grpo, dr_grpo, dapo, gspo or cispo."""
    learning_rate: float = Field(3e-4, gt=0)
    """Learning rate."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the rate rises from zero; 0: none."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate goes on after that."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's."""
    max_grad_norm: float = Field(1.0, ge=0)
    """Largest gradient norm; 0: no clipping."""
    epochs_per_batch: int = Field(1, ge=1)
    """Updates taken on each step's rollouts."""
    clip_low: float | None = Field(None, ge=0)
    """How far a ratio may fall below 1; empty: the algorithm's own (0.2 for most)."""
    clip_high: float | None = Field(None, ge=0)
    """How far a ratio may rise above 1; empty: the algorithm's own (0.2; 0.28 for dapo)."""
    kl_coef: float = Field(0.0, ge=0)
    """Weight of the KL divergence from the starting policy."""
    kl_tokens: Literal["all", "cot"] = "all"
    """Over which tokens: the whole completion, or its chain of thought alone."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    importance_cap: float | None = Field(None, ge=0)
    """Largest importance weight; 0: off; empty: the algorithm's own."""
    max_resamples: int = Field(2, ge=0)
    """dapo: how often a step draws again to replace groups whose rewards are all alike."""
    microbatch_tokens: int = Field(1024, ge=1)
    """Tokens in one forward and backward pass. Small models are fastest when a pass fits into a
    core's cache; raise it for large ones."""
    gradient_blocks: int = Field(1, ge=1)
    """A step's work is cut into a multiple of so many blocks; set it to monarch.learners, so that each
    has its share. Small blocks cost a little. The gradient's rounding depends on it, and not on who
    computes which."""
    skip_zero_advantage: bool = True
    """Leave out rows whose advantage is zero, where that changes nothing (no KL or entropy term)."""
    lora_rank: int = Field(0, ge=0)
    """Train low-rank adapters of this rank instead of the weights (extra `lora`); 0: off."""


class EvaluateConfig(Section):
    problems: int = Field(200, ge=0)
    """Held-out problems; 0: no evaluation."""
    samples: int = Field(4, ge=0)
    """Sampled completions a problem, for pass@1 and pass@k; 0: greedy only."""
    every: int = Field(0, ge=0)
    """Evaluate every so many steps as well as before and after; 0: not between."""
    seed: int = 0
    """Which held-out problems; the same for all runs that are to be compared."""
    monitors: dict[str, dict[str, Any]] = {}
    """With an organism: monitors beside its own, by name, as in
    {brief: {kind: rule, scope: cot, patterns: ['^.{0,20}$']}}. None may be in the reward."""
    file: str = ""
    """A JSONL or Parquet file of problems instead of drawn ones; {task} stands for the name."""
    oversize: float = Field(1.2, ge=1)
    """So many times the held-out problems are made ready, so that enough remain when some turn out
    to have been trained on. If none was, the first ones are taken, whatever this is."""


class CheckpointConfig(Section):
    every: int = Field(20, ge=0)
    """Save every so many steps; 0: never by count. A run's end is always saved."""
    save_above_reward: float | None = 0.3
    """Save when the mean reward rises above this; empty: never."""
    save_best: bool = True
    """Save when the mean reward is the highest so far."""
    min_improvement: float = Field(0.0, ge=0)
    """By how much a new best must exceed the one before to be saved."""
    keep: tuple[Literal["first", "previous", "last", "best"], ...] = (
        "first",
        "previous",
        "last",
        "best",
    )
    """What remains after each save; the newest may turn out to be damaged, so `previous` and
    `last` must be among them."""

    @field_validator("keep")
    @classmethod
    def _two_at_least(cls, keep: tuple[str, ...]) -> tuple[str, ...]:
        if not {"previous", "last"} <= set(keep):
            raise ValueError(
                "previous and last must be kept, so that one is left if one is damaged"
            )
        return keep


class RolloutLogConfig(Section):
    tokens_every: int = Field(1, ge=0)
    """Record tokens and log-probabilities of every so many steps; 0: never. The texts are always
    recorded, whole."""
    compression_level: int = Field(3, ge=1, le=19)
    """How hard the record is compressed (zstd's level)."""


class MonitorConfig(Section):
    at_end: bool = False
    """After training, measure how readable the chain of thought is before and after, as
    `glasshouse monitor` does for every checkpoint. Not with --quiet."""
    problems: int = Field(200, ge=2)
    """Held-out problems that the base and each checkpoint are monitored on."""
    samples: int = Field(4, ge=1)
    """With an organism: how often each arm of a problem is asked."""
    threshold_problems: int = Field(56, ge=2)
    """With an organism: further problems that a fitted witness takes its threshold on. Two hundred
    rollouts of them must be benign: an organism with one arm needs more problems."""


class DiagnosticsConfig(Section):
    zero_variance_steps: int = Field(10, ge=1)
    """Say so when no group has had any variance for this many steps."""
    max_logprob_diff: float = Field(0.05, gt=0)
    """Say so when sampler and learner disagree on log-probabilities by more than this."""


class SlurmConfig(Section):
    partition: str = ""
    """Partition to submit to; empty: the cluster's default."""
    time_limit: str = ""
    """Longest run, as HH:MM:SS; empty: the cluster's default."""
    gpus: int = Field(0, ge=0)
    """GPUs a host."""
    account: str = ""
    """Account to charge; empty: the cluster's default."""
    arguments: tuple[str, ...] = ()
    """Further sbatch arguments, as in [--constraint=a100]."""
    python: str = "python"
    """The Python of the hosts, in which glasshouse is installed."""
    start_timeout: int = Field(3600, ge=1)
    """Seconds to wait in the queue."""


class KubernetesConfig(Section):
    namespace: str = "default"
    """Where the pods are."""
    image: str = ""
    """Image of the pods, in which glasshouse is installed; empty: pods that are there already,
    found by their label."""
    gpus: int = Field(0, ge=0)
    """GPUs a pod."""
    kubeconfig: str = ""
    """File with the cluster's address; empty: this process is in the cluster."""
    start_timeout: int = Field(600, ge=1)
    """Seconds to wait for the pods."""


class HostsConfig(Section):
    kind: Literal["local", "processes", "addresses", "slurm", "kubernetes"] = "local"
    """Where hosts come from: this machine; local processes that play hosts; workers that listen at
    addresses; a SLURM allocation; Kubernetes pods. docs/hosts.md has the files each needs."""
    count: int = Field(2, ge=1)
    """How many, for processes, slurm and kubernetes."""
    addresses: tuple[str, ...] = ()
    """Workers, as in [tls://10.0.0.2:26600-26609]; a worker that restarts takes the next port of
    its range, and is found again."""
    security: Literal["tls", "plain"] = "tls"
    """`tls`: encrypted, and both sides show a certificate; `plain`: neither, and whoever reaches a
    port can run code. Slurm and kubernetes know only `plain`, which has to be asked for."""
    certificates: str = ""
    """This host's folder from `glasshouse hosts certificates`: ca.pem, host.pem, host.key."""
    controller_address: str = ""
    """Address at which the workers reach this process; empty: found out, at any free port."""
    port: int = Field(26600, ge=1, le=65535)
    """Port of the workers that slurm and kubernetes start."""
    attach_timeout: int = Field(30, ge=1)
    """Seconds to wait for a worker to answer."""
    reconnect_timeout: float = Field(600, ge=0)
    """Seconds that a run waits when every host is lost. One lost host among others is waited for
    as long as the run lasts; the others go on."""
    slurm: SlurmConfig = SlurmConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()


class MonarchConfig(Section):
    generators: int = Field(2, ge=1)
    """Generator processes. As many as there are cores is a good number; a step should have at least
    as many chunks (data.groups_per_step / generate.chunk_size)."""
    learners: int = Field(1, ge=1)
    """Learner processes; each differentiates its share of a step (see learn.gradient_blocks). The weights' bits
    do not depend on it."""
    verify_every: int = Field(20, ge=1)
    """Compare checksums of what generators and learners hold every so many steps, and at the start."""
    chunk_timeout: float = Field(600, gt=0)
    """Seconds after which a chunk's generator counts as hung."""
    spawn_timeout: float = Field(300, gt=0)
    """Seconds a new process may take until it has loaded the model."""
    max_failures: int = Field(3, ge=1)
    """So many failures of the same generator in a row end the run."""
    backoff: float = Field(1.0, ge=0)
    """Seconds before a generator is respawned the second time in a row; doubled each further time."""


class Config(Section):
    seed: int = Field(0, ge=0)
    """Everything random in a run follows from it."""
    steps: int = Field(60, ge=0)
    """Training steps."""
    model: str = "pocket"
    """`pocket`, an organism's base (leaked-hint-0, …), a folder in the Hugging Face layout, or a hub
    name."""
    out: str = ""
    """Run directory; empty: the next free runs/<task>-<algorithm>-<number>."""
    threads: int = Field(1, ge=1)
    """Torch threads of a process. More than one is slower as soon as anything else runs."""
    backend: Literal["local", "monarch"] = "local"
    """`inline`: all in one process; `monarch`: generators and learner in processes of their own
    (extra `monarch`). The results have the same bits."""
    max_offpolicy_steps: int = Field(0, ge=0, le=1)
    """0: every completion comes from the newest weights; 1: generating and learning overlap, and
    completions come from exactly one version before."""
    trackers: tuple[str, ...] = ()
    """Trackers that mirror the run, as in [trackio]: mlflow, tensorboard, trackio, wandb; see
    docs/tracking.md. The results do not depend on it."""
    task: TaskConfig = TaskConfig()
    data: DataConfig = DataConfig()
    generate: GenerateConfig = GenerateConfig()
    reward: RewardConfig = RewardConfig()
    learn: LearnConfig = LearnConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    rollout_log: RolloutLogConfig = RolloutLogConfig()
    diagnostics: DiagnosticsConfig = DiagnosticsConfig()
    hosts: HostsConfig = HostsConfig()
    monitor: MonitorConfig = MonitorConfig()
    monarch: MonarchConfig = MonarchConfig()

    @field_validator("trackers", mode="before")
    @classmethod
    def _one_or_several(cls, track: Any) -> Any:
        """`trackers=trackio` means `trackers=[trackio]`."""
        return tuple(track.split()) if isinstance(track, str) else track


FREE = {"options", "terms", "schedule", "penalties", "monitors"}
"""Sections whose keys are not fixed by this tree."""
