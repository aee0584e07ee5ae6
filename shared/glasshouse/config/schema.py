"""The config schema: one section per part of a run, with a description under every field.

The field docstrings are the reference text of `glasshouse config`. `find_unlikely_settings` names what is valid and can
hardly be meant.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from glasshouse.types import SamplingParams, Style

# Upper bounds far above what a sensible run needs: a count with an extra digit is an error, not a hang.
MAX_STEPS = 10_000_000
MAX_PROBLEMS = 100_000
MAX_SAMPLES = 10_000
MAX_TOKENS = 1_000_000
MAX_PROCESSES = 1024


DEVICE = r"auto|[a-z]+(:[0-9]{1,3})?"


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _check_scalar(cls, value: Any, info: ValidationInfo) -> Any:
        """Rejects `steps: true`, which pydantic would read as 1, and NUL, which no path can contain."""
        expected = cls.model_fields[info.field_name].annotation if info.field_name else None
        if isinstance(value, bool) and expected is not bool:
            raise ValueError("true and false are not valid here")
        if isinstance(value, str) and "\0" in value:
            raise ValueError("it contains a NUL character")
        return value


class TaskConfig(Section):
    name: str = "sum_digits"
    """The task; `glasshouse tasks` lists all tasks."""
    style: Style = Style.COT
    """`cot`: the prompt asks for step-by-step reasoning; `direct`: it forbids steps."""
    options: dict[str, Any] = {}
    """Difficulty options of the task; `glasshouse tasks` lists them. Empty: the options that the model was
    trained on, if its model card has them (the pocket models do), else the task's defaults."""
    schedule: dict[int, dict[str, Any]] = {}
    """Curriculum: options from a given step on, merged over task.options, as in
    {0: {count: [2, 2]}, 30: {}}. Evaluation always uses task.options."""


class ChatConfig(Section):
    template_options: dict[str, Any] = {}
    """Variables for the model's chat template, as in {enable_thinking: false} for Qwen3 and SmolLM3. See
    docs/models.md."""
    system_role: Literal["auto", "merge"] = "auto"
    """`auto`: the system message is a separate turn, or, if the chat template rejects that, is put in front of the
    first question; `merge`: always in front of the first question, for templates that drop it silently."""


class DataConfig(Section):
    groups_per_step: int = Field(32, ge=1, le=MAX_PROBLEMS)
    """Problems per step. Each problem is one group of completions."""
    source: Literal["fresh", "fixed"] = "fresh"
    """`fresh`: no problem repeats within a run; `fixed`: a fixed set, reshuffled in every epoch."""
    size: int = Field(2500, ge=1, le=10 * MAX_PROBLEMS)
    """With `source: fixed` and no `file`: the number of problems in the set."""
    file: str = ""
    """With `source: fixed`: a JSONL or Parquet file of problems; {task} is replaced by the task's
    name."""
    on_exhausted: Literal["restart", "stop"] = "restart"
    """With `source: fresh`, when all problems have been used: start over with a warning, or end the run."""


class VllmConfig(Section):
    """Run with vLLM's CPU build; not run on a GPU."""

    tensor_parallel_size: int = Field(1, ge=1, le=MAX_PROCESSES)
    """GPUs over which each vLLM engine splits the model, as in vLLM. With more than one, vLLM starts that many
    worker processes."""
    sleep: bool = False
    """Free the GPU memory of weights and KV cache during each update, so that one GPU holds learner and
    generator in turn."""


class GenerateConfig(Section):
    group_size: int = Field(8, ge=1, le=MAX_SAMPLES)
    """Completions per problem."""
    max_tokens: int = Field(128, ge=1, le=MAX_TOKENS)
    """Maximum length of a completion, in tokens."""
    temperature: float = Field(1.0, ge=0)
    """Sampling temperature; 0 is greedy."""
    top_k: int = Field(0, ge=0, le=MAX_TOKENS)
    """Sample only from the k most likely tokens; 0: from all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample only from the smallest set of tokens with at least this total probability."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Exclude tokens with less than this fraction of the most likely token's probability."""
    stop: tuple[str, ...] = ()
    """Stop strings: a completion ends when it contains one of them."""
    chunk_size: int = Field(32, ge=1, le=MAX_PROBLEMS)
    """Problems per generation call: the unit of work for a generator. The bits of a run depend on it."""
    engine: str = "torch"
    """What generates completions: `torch`, `vllm` (in its own environment, see docs/models.md), or an engine of
    your own module or an installed package (docs/python.md)."""
    kv_cache_mb: int = Field(2048, ge=1, le=10_000_000)
    """Memory limit of the KV cache in MB; chunks that exceed it are split."""
    device: str = Field("", pattern=rf"^({DEVICE})?$")
    """Device of the generators, if it is not that of the learner, as in cuda:1; empty: `device`. With `backend:
    monarch`, `cuda` without a number gives each generator one GPU after the other: from GPU 0 on if `device` names
    a GPU, else after those of the learners; after the last GPU it starts again."""
    vllm: VllmConfig = VllmConfig()

    def sampling(self) -> SamplingParams:
        """How completions are sampled."""
        return SamplingParams(**{f.name: getattr(self, f.name) for f in fields(SamplingParams)})


class RewardConfig(Section):
    terms: dict[str, float] = {"exact": 1.0}
    """Reward terms and their weights: exact, closeness, alignment, format, last_digit. The reward is their weighted
    mean. If a wrong answer could then earn nearly as much as some correct one, the rewards of all wrong answers are
    scaled towards -1, in the same order, to at most 90 % of the way to the least that a correct answer earns."""
    answer_parser: Literal["lenient", "strict"] = "lenient"
    """`lenient`: try all extraction rules; `strict`: accept only one unambiguous [ANSWER] tag."""
    penalties: dict[str, dict[str, Any]] = {}
    """Penalties subtracted from the reward, by name: length, monitor, aligned, orthogonal, each with a
    weight and options, as in {monitor: {weight: 1.0, keywords: [key]}}; see docs/tasks.md."""
    outcome_only: tuple[str, ...] = ()
    """Terms that must not read the chain of thought: `glasshouse audit-reward` then exits with code 1 if one does,
    and training stops at its first step."""
    audit_rollouts: int = Field(16, ge=0, le=MAX_SAMPLES)
    """Rollouts of the first step on which training finds out which terms read the chain of thought; 0: none."""
    shuffle: bool = False
    """Negative control: shuffle the rewards among the rollouts of a step."""
    random: bool = False
    """Negative control: rewards are 1 or -1 at random."""


class LearnConfig(Section):
    algorithm: str = "grpo"
    """The algorithm: reinforce, rloo, grpo, dr_grpo, dapo, gspo or cispo."""
    learning_rate: float = Field(3e-4, gt=0)
    """Peak learning rate of AdamW."""
    warmup_steps: int = Field(0, ge=0, le=MAX_STEPS)
    """Steps of linear learning rate warm-up; 0: none."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate schedule after the warm-up."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay of AdamW."""
    max_grad_norm: float = Field(1.0, ge=0)
    """Gradient clipping norm; 0: no clipping."""
    epochs_per_batch: int = Field(1, ge=1, le=1000)
    """Optimizer updates on the rollouts of each step."""
    clip_low: float | None = Field(None, ge=0)
    """Lower clipping range of the importance ratio; empty: the algorithm's default (0.2 for most)."""
    clip_high: float | None = Field(None, ge=0)
    """Upper clipping range of the importance ratio; empty: the algorithm's default (0.2; dapo: 0.28)."""
    kl_coef: float = Field(0.0, ge=0)
    """Coefficient of the KL divergence from the base model."""
    kl_tokens: Literal["all", "cot"] = "all"
    """Tokens of the KL term: the whole completion, or only its chain of thought."""
    entropy_coef: float = 0.0
    """Coefficient of the entropy bonus."""
    importance_cap: float | None = Field(None, ge=0)
    """Upper bound of importance weights; 0: off; empty: the algorithm's default."""
    max_resamples: int = Field(2, ge=0, le=1000)
    """dapo: how often a step may resample to replace groups whose rewards are all equal."""
    microbatch_tokens: int = Field(1024, ge=1, le=1_000_000_000)
    """Tokens per forward and backward pass. Small models are fastest if a pass fits into a core's cache;
    increase it for large models."""
    gradient_blocks: int = Field(1, ge=1, le=MAX_PROCESSES)
    """Splits each step into a multiple of this many blocks; set it to monarch.learners, so that each learner gets an
    equal share. The rounding of the gradient of a large model depends on it, but not on the number of learners."""
    skip_zero_advantage: bool = True
    """Skip rollouts with zero advantage where they do not affect the loss (no KL or entropy term)."""
    activation_checkpointing: bool = False
    """Compute the layers a second time in the backward pass instead of storing their activations: less memory,
    about a third more time."""
    sharding: Literal["none", "fsdp"] = "none"
    """`fsdp`: divide weights, gradients and optimizer state among the `monarch.learners` processes (FSDP2), for models
    that do not fit into one; needs `backend: monarch`; see docs/scale.md. The results equal those of one process
    up to rounding. `none`: every learner process holds all of them."""
    lora_rank: int = Field(0, ge=0, le=10_000)
    """Train LoRA adapters of this rank instead of all weights (extra `lora`); 0: off."""
    lora_targets: tuple[str, ...] = ()
    """Layers that get adapters, as in [q_proj, v_proj]; empty: all linear layers."""

    def rate_factor(self, step: int, steps: int) -> float:
        """The factor on the learning rate in a step, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, steps - self.warmup_steps)
        if self.lr_schedule == "linear":
            return 1 - progress
        return 0.5 * (1 + math.cos(math.pi * progress)) if self.lr_schedule == "cosine" else 1.0


class EvaluateConfig(Section):
    problems: int = Field(200, ge=0, le=MAX_PROBLEMS)
    """Number of held-out problems; 0: no evaluation."""
    samples: int = Field(4, ge=0, le=MAX_SAMPLES)
    """Sampled completions per problem, for pass@1 and pass@k; 0: greedy only."""
    temperature: float = Field(1.0, gt=0, le=10)
    """Of these samples."""
    every: int = Field(0, ge=0)
    """Evaluate every N steps, in addition to before and after training; 0: only before and after."""
    seed: int = Field(0, gt=-(2**63), lt=2**63)
    """Seed of the held-out problems; use the same for all runs to be compared."""
    reserve: int = Field(0, ge=0, le=MAX_PROBLEMS)
    """With an organism: additional held-out problems that are sampled once, before training. A study fits n-gram
    monitors on half of them and sets their thresholds on the others."""
    monitors: dict[str, dict[str, Any]] = {}
    """With an organism: additional monitors, by name, as in
    {brief: {kind: rule, scope: cot, patterns: ['^.{0,20}$']}}. They must not be in the reward."""
    file: str = ""
    """A JSONL or Parquet file of held-out problems; {task} is replaced by the task's name."""
    allow_unread: bool = False
    """With a `file`: `glasshouse eval` prints accuracies although more than 20 % of the answers are unread."""
    oversize: float = Field(1.2, ge=1, le=10)
    """Draw `oversize × problems` held-out problems, so that enough remain after those that were trained on
    are removed. If none are removed, the first ones are used, whatever the value."""


KEPT_CHECKPOINTS = ("first", "previous", "last")


class CheckpointConfig(Section):
    every: int = Field(20, ge=0)
    """Save every N steps; 0: not periodically. The last step is always saved."""
    save_above_reward: float | None = 0.3
    """Save after each step whose mean reward exceeds this value; empty: never."""
    save_best: bool = True
    """Save when the mean reward is the highest so far."""
    min_improvement: float = Field(0.0, ge=0)
    """With `save_best`: minimum improvement over the previous best."""
    reward_interval: int = Field(0, ge=0, le=MAX_STEPS)
    """The least number of steps between two saves because of the reward (the keys above); 0: 1, for models of 10
    million parameters or more 10."""
    merge_adapters: bool = True
    """With `learn.lora_rank`: save the model with its adapters merged, beside the adapters in peft's layout (folder
    `adapter`). false: only the adapters, about a hundredth of the size; the base model must stay where it is."""
    keep: tuple[str, ...] = KEPT_CHECKPOINTS
    """Which checkpoints to keep; others are deleted. A list of first, previous (the second to last), last and best;
    `all`; or `{every: 50}`, the default list and the checkpoint of every 50th step, so that a curve over checkpoints
    has even points. `previous` and `last` are required in a list, in case the newest one is damaged."""

    @field_validator("keep", mode="before")
    @classmethod
    def _read_rules(cls, keep: Any, info: ValidationInfo) -> tuple[str, ...]:
        """`all` becomes `(all,)`, and `{every: 50}` the default list and "every: 50"."""
        rules = keep if isinstance(keep, list | tuple) else [keep]
        if isinstance(keep, dict):
            rules = [*KEPT_CHECKPOINTS, *(f"{name}: {value}" for name, value in keep.items())]
        for rule in rules:
            interval = re.fullmatch(r"every: ([1-9][0-9]{0,7})", str(rule))
            saved = info.data.get("every")
            if interval and (not saved or int(interval[1]) % saved):
                raise ValueError(f"make it a multiple of checkpoints.every, which is {saved}")
            if not interval and rule not in (*KEPT_CHECKPOINTS, "best", "all"):
                names = ", ".join(KEPT_CHECKPOINTS)
                raise ValueError(f"write all, {{every: N}}, or a list of {names} and best")
        if "all" not in rules and not {"previous", "last"} <= set(rules):
            raise ValueError("include previous and last, in case the newest one is damaged")
        return tuple(rules)


class RolloutLogConfig(Section):
    tokens_every: int = Field(1, ge=0)
    """Log tokens and log-probabilities every N steps; 0: never. Texts are always logged in full."""
    compression_level: int = Field(3, ge=1, le=19)
    """zstd compression level of the rollout log."""


class MonitorConfig(Section):
    at_end: bool = False
    """After training, measure monitorability before and after training, as `glasshouse monitor` does for
    every checkpoint. Not with --quiet."""
    problems: int = Field(200, ge=2, le=MAX_PROBLEMS)
    """Held-out problems on which the base model and each checkpoint are measured."""
    samples: int = Field(4, ge=1, le=MAX_SAMPLES)
    """With an organism: completions per problem and arm."""
    threshold_problems: int = Field(56, ge=2, le=MAX_PROBLEMS)
    """With an organism: additional problems on which the thresholds of fitted monitors are chosen. They must
    give at least 200 benign rollouts: an organism without a control arm needs more problems."""
    interventions: tuple[str, ...] = ()
    """Your own interventions on the CoT, besides those that fit the task (docs/python.md)."""


class DiagnosticsConfig(Section):
    zero_variance_steps: int = Field(10, ge=1)
    """Warn if all advantages were zero for this many steps. For algorithms with a group baseline this means
    that no group had any reward variance."""
    max_logprob_diff: float = Field(0.05, gt=0)
    """Warn if log-probabilities of sampler and learner differ by more than this."""
    kl_every: int | None = Field(0, ge=0, le=MAX_STEPS)
    """Measure the KL divergence to the starting policy (metric `kl`) every N steps, and in the first and the
    last; 0: every step, for models of 10 million parameters or more every 10 steps; empty: never, so that a run
    without `learn.kl_coef` holds no copy of the starting policy."""


class HostsConfig(Section):
    """Not run on hardware: machines in network namespaces were used, several real ones never."""

    addresses: tuple[str, ...] = ()
    """Workers on other machines that run the generators, as in [tls://10.0.0.2:26600-26609]; empty: the generators
    run on this machine. A restarted worker uses the next port of its range and reconnects. See docs/scale.md. *Not
    run on hardware.*"""
    certificates: str = ""
    """Folder with this host's ca.pem, host.pem and host.key, made by `glasshouse hosts certificates`."""
    controller_address: str = ""
    """Address at which the workers reach this process; empty: that of its certificate, with any free port."""
    attach_timeout: int = Field(30, ge=1)
    """Seconds to wait for a worker when connecting."""
    reconnect_timeout: float = Field(600, ge=0)
    """Seconds to wait if all hosts are lost. If only some are lost, the run continues on the others and waits
    for the lost ones without limit."""


class MonarchConfig(Section):
    generators: int = Field(2, ge=1, le=MAX_PROCESSES)
    """Generator processes; one per core is a good default. A step should have at least as many chunks
    (data.groups_per_step / generate.chunk_size)."""
    learners: int = Field(1, ge=1, le=MAX_PROCESSES)
    """Learner processes; each computes the gradient of its share of a step (see learn.gradient_blocks). The
    weights are bitwise independent of it."""
    verify_every: int = Field(20, ge=1)
    """Compare weight checksums of generators and learners every N steps, and at the start."""
    chunk_timeout: float = Field(600, gt=0)
    """Seconds after which a generator that has not returned its chunk is considered hung."""
    update_timeout: float = Field(1800, gt=0)
    """Seconds after which a learner that has not finished an update is considered hung; the run then ends."""
    spawn_timeout: float = Field(300, gt=0)
    """Seconds that a new process may take to load the model."""
    max_failures: int = Field(3, ge=1)
    """Consecutive failures of one generator after which the run ends."""
    backoff: float = Field(1.0, ge=0)
    """Seconds to wait before a generator is restarted for the second time in a row; doubles each time."""


class Config(Section):
    """Everything that determines a run; `glasshouse config` explains every key.

    Example: `load_config(overrides={"steps": 20}).learn.learning_rate`
    """

    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of all random draws of a run."""
    steps: int = Field(60, ge=0, le=MAX_STEPS)
    """Training steps."""
    model: str = "pocket"
    """The base model: `pocket`, the base of an organism (leaked-hint-0, …), a packaged model (`smollm2`,
    `gemma3-270m`; extras `smollm2` and `gemma3`), a folder in the Hugging Face format, or a model name on the
    Hugging Face Hub."""
    out: str = ""
    """Run directory; empty: the next free runs/<task>-<algorithm>-<number>."""
    device: str = Field("auto", pattern=rf"^({DEVICE})$")
    """Where the model runs: `cpu`, or, not run on hardware, `cuda` or `cuda:1`. `auto`: a GPU if there is one, but
    the CPU for models of less than 10 million parameters, which are faster there."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of matrix products. What is trained, its gradients and optimizer state are float32 in both cases;
    on a GPU, weights that are not trained (`learn.lora_rank`) are held in this format."""
    threads: int = Field(1, ge=1, le=MAX_PROCESSES)
    """Threads per process, of torch or of the kernel for small models; the kernel's numbers do not depend on it. With
    torch, more than one is slower if anything else runs on the machine."""
    backend: Literal["local", "monarch"] = "local"
    """`local`: everything in one process; `monarch`: generators and learner in separate processes (extra
    `monarch`). The results are bitwise equal."""
    max_offpolicy_steps: int = Field(0, ge=0, le=4)
    """0: on-policy, all completions come from the newest weights. N: generation runs N steps ahead of
    learning, and completions come from weights that are N updates old (fewer in the first steps); with
    `backend: monarch` both then run at the same time. The losses correct for the difference."""
    imports: tuple[str, ...] = ()
    """Python modules and files that are imported before anything is built, as in [my_rewards, code/task.py]:
    they register reward terms (`@reward`) and tasks (`@task`). Files are relative to the working
    directory. An experiment's train.py adds itself. Importing runs the code: read it first."""
    log_every: int = Field(1, ge=0, le=MAX_STEPS)
    """Print a line of metrics (with --verbose, a completion too) and send the metrics to trackers every N steps and
    after the last one. A terminal shows a progress bar instead of the lines. 0: print no steps; trackers get every
    one. metrics.jsonl and the rollout log always have every step."""
    trackers: tuple[str, ...] = ()
    """Experiment trackers, as in [trackio]: mlflow, tensorboard, trackio, wandb; see docs/runs.md. The
    results do not depend on them."""
    task: TaskConfig = TaskConfig()
    chat: ChatConfig = ChatConfig()
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

    def logs_step(self, step: int) -> bool:
        """Are this step's metrics printed and sent to trackers (`log_every`)?"""
        return not self.log_every or step % self.log_every == 0 or step == self.steps

    @field_validator("trackers", mode="before")
    @classmethod
    def _split_names(cls, trackers: Any) -> Any:
        """`trackers=trackio` means `trackers=[trackio]`."""
        return tuple(trackers.split()) if isinstance(trackers, str) else trackers

    @field_validator("imports", mode="before")
    @classmethod
    def _wrap_name(cls, imports: Any) -> Any:
        """`imports=my_rewards` means `imports=[my_rewards]`."""
        return (imports,) if isinstance(imports, str) and imports else imports


FREE_FORM_SECTIONS = frozenset(
    ("options", "terms", "schedule", "penalties", "monitors", "template_options")
)
"""Sections whose keys are not defined by this schema."""


MAX_LEARNING_RATE = 0.1
MIN_TEMPERATURE = 1e-3
"""Below it, only tokens of almost equal probability are not chosen greedily."""
ANSWER_TAG = "[ANSWER]"


def find_unlikely_settings(config: Config) -> Iterator[str]:
    """One sentence per setting that is probably a mistake."""
    data, learn = config.data, config.learn
    if data.source == "fixed" and not data.file and data.size < data.groups_per_step:
        yield (
            f"data.size={data.size} is less than data.groups_per_step={data.groups_per_step}: every step asks the same "
            "problems several times. Raise data.size."
        )
    late = [step for step in config.task.schedule if step > config.steps]
    if late and config.steps:
        yield (
            f"task.schedule: the stage of step {min(late)} is never reached, since steps={config.steps}. Raise steps, "
            "or lower the step of the stage."
        )
    for text in config.generate.stop:
        if text in ANSWER_TAG or (text.isdecimal() and len(text) == 1):
            what = "the answer tag" if text in ANSWER_TAG else "every number with this digit"
            yield f"generate.stop={text!r} cuts {what}, so answers are lost. Remove it."
    if learn.learning_rate > MAX_LEARNING_RATE:
        yield (
            f"learn.learning_rate={learn.learning_rate:g}: AdamW changes every weight by about this much per step, "
            "which destroys a model. Values between 1e-6 and 1e-3 are usual."
        )


def find_greedy_setting(config: Config) -> str:
    """The setting with which all completions of a group are equal, as key=value; empty if they can differ."""
    generate = config.generate
    is_greedy = {
        "temperature": generate.temperature < MIN_TEMPERATURE,
        "top_k": generate.top_k == 1,
        "top_p": generate.top_p < MIN_TEMPERATURE,
        "min_p": generate.min_p == 1,
    }
    return next(
        (f"{key}={getattr(generate, key):g}" for key, holds in is_greedy.items() if holds), ""
    )
