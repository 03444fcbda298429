"""The run config: every key, its default, its range and what it is for.

The defaults stand here and, because Flower wants them there, in ``pyproject.toml`` under
``[tool.flwr.app.config]``; a test holds the two equal. Keys are kebab-case in files and on
the wire, snake_case in Python; `Config.from_run_config` is the one place that converts.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ease_flower.errors import InvalidInput

Scalar = bool | int | float | str

RECIPE_KEYS = frozenset(
    {
        "seed",
        "backbone",
        "adapted-blocks",
        "lora-rank",
        "lora-alpha",
        "lora-train",
        "data",
        "pairs-per-client",
        "holdout-per-client",
        "partition",
        "dirichlet-alpha",
        "pairing",
        "rounds",
        "local-epochs",
        "batch-size",
        "optimizer",
        "learning-rate",
    }
)
REQUEST_KEYS = frozenset(
    {
        "method",
        "scope",
        "forget",
        "forget-file",
        "forget-share",
        "attribution",
        "replay-every",
        "replay-rank",
        "calibrate",
        "excise-branches",
        "reaverage",
        "project",
        "energy",
        "rank-cap",
        "delta",
        "strength",
        "granularity",
        "retain-span",
        "lock",
        "lock-alpha",
        "forget-client-online",
        "excise-steps",
        "recover-epochs",
    }
)
PHASES = ("train", "retrain", "unlearn", "recover", "evaluate")


def _key(
    default: Scalar,
    about: str,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
) -> Any:
    return field(
        default=default, metadata={"about": about, "choices": choices, "low": low, "high": high}
    )


@dataclass(frozen=True)
class Config:
    """One run, fully described; see the field metadata for the range of each key."""

    # what to do
    phase: str = _key("all", "what to run; 'all' runs every phase", ("all", *PHASES))
    method: str = _key("ease", "how to unlearn", ("ease",))
    scope: str = _key("client", "what a request removes", ("client", "class", "sample"))
    forget: str = _key("site-1", "clients to forget, the class, or the holders of the samples")
    forget_file: str = _key("", "a holder's list of sample ids on its own disk; {client}: its name")
    forget_share: float = _key(
        0.3, "share of its pairs a simulated holder without list forgets", low=1e-6, high=1.0
    )
    seed: int = _key(0, "one seed for data, adapters and training", low=0)
    state_dir: str = _key("", "absolute server state directory; '' makes one per run")
    reference: bool = _key(True, "also train the retrain reference, without the forgotten client")
    # model
    backbone: str = _key("tiny", "'tiny', 'mini', or an open_clip 'MODEL:PRETRAINED'")
    adapted_blocks: int = _key(1, "last blocks of each tower that get adapters", low=1)
    lora_rank: int = _key(16, "LoRA rank r", low=1)
    lora_alpha: float = _key(32.0, "LoRA scale is lora-alpha / lora-rank", low=1e-9)
    lora_train: str = _key("B", "'B' freezes A, so that averaging is exact", ("B", "AB"))
    # data
    data: str = _key("scenes", "drawn scenes, or Karpathy JSON with images", ("scenes", "karpathy"))
    data_root: str = _key("", "folder with the images of data = 'karpathy'")
    captions: str = _key("", "Karpathy JSON; '' is the one JSON file beside the images")
    num_clients: int = _key(0, "clients of a simulation; 0 takes those that are connected", low=0)
    pairs_per_client: int = _key(50, "training pairs of each simulated client", low=2)
    holdout_per_client: int = _key(60, "pairs each client keeps out of training", low=2)
    partition: str = _key("dirichlet", "how pairs are shared", ("iid", "dirichlet", "class"))
    dirichlet_alpha: float = _key(1.0, "concentration over classes", low=1e-3)
    pairing: str = _key(
        "natural", "re-paired: captions of simulated leavers are permuted", ("natural", "re-paired")
    )
    test_pairs: int = _key(300, "public pairs the server tests on", low=2)
    gallery: int = _key(300, "images a query is searched among", low=2)
    # local training
    rounds: int = _key(8, "federated rounds of training", low=1)
    local_epochs: int = _key(20, "epochs over its pairs in one client round", low=1)
    batch_size: int = _key(25, "pairs of a batch", low=2)
    optimizer: str = _key("adamw", "local optimiser", ("adamw", "sgd"))
    learning_rate: float = _key(4e-3, "local step size", low=1e-12)
    # unlearning
    energy: float = _key(0.99, "share of squared norm a basis keeps", low=1e-6, high=1.0)
    rank_cap: int = _key(64, "most directions of one client's basis", low=1)
    delta: float = _key(
        0.35, "largest cosine to the retain span that is removed", low=0.0, high=1.0
    )
    strength: float = _key(1.0, "lambda: share of the displacement that is removed", low=0.0)
    reaverage: bool = _key(True, "average the rounds again without the clients that left")
    granularity: str = _key("all", "blocks that are split on their own", ("all", "tower", "layer"))
    retain_span: str = _key("joint", "one span of all, or each client's", ("joint", "pairwise"))
    recover_rounds: int = _key(2, "rounds after excision by those who stay", low=0)
    recover_epochs: int = _key(0, "epochs of such a round; 0: local-epochs", low=0)
    later_rounds: int = _key(
        0, "rounds of training after recovery, for the reference too: does it come back?", low=0
    )
    lock: str = _key("proximal", "forget lock on the client", ("none", "penalty", "proximal"))
    lock_alpha: float = _key(10.0, "alpha of the forget lock", low=0.0)
    attribution: str = _key(
        "replay", "how holders find the part of class and samples", ("replay", "pseudo")
    )
    replay_every: int = _key(4, "rounds from one replayed round to the next", low=1)
    replay_rank: int = _key(4, "most directions a holder sends", low=1)
    forget_client_online: bool = _key(False, "ask leavers too for calibration and excision")
    calibrate: bool = _key(True, "let reachable holders choose lambda and stop excision")
    excise_steps: int = _key(10, "most steps of bilateral excision by holders; 0: none", low=0)
    excise_branches: str = _key("both", "towers that excision changes", ("both", "image", "text"))
    project: bool = _key(True, "take U_mu out of every average of recovery, on the server")
    # running
    evaluate_forgotten: bool = _key(True, "measure on the forgotten client too, if connected")
    min_replies: int = _key(1, "fewest usable replies of a round", low=1)
    wait_s: float = _key(120.0, "seconds to wait for clients to connect", low=0.0)
    round_timeout_s: float = _key(3600.0, "seconds to wait for the replies of a round", low=1.0)
    threads: int = _key(0, "torch threads of a client; 0 leaves them", low=0)
    device: str = _key("auto", "where clients train", ("auto", "cpu", "cuda"))

    @classmethod
    def from_run_config(cls, run_config: Mapping[str, Any]) -> "Config":
        """Read Flower's run config, refusing all that is wrong at once.

        Parameters
        ----------
        run_config : mapping
            Kebab-case keys; keys that are left out keep their default.

        Raises
        ------
        InvalidInput
            Lists every unknown key (with the nearest known one), every value of a wrong type
            and every value out of its range.

        Examples
        --------
        >>> Config.from_run_config({"rounds": 4}).rounds
        4
        >>> Config.from_run_config({"ronds": 4})
        Traceback (most recent call last):
        ease_flower.errors.InvalidInput: ronds: no such key; did you mean 'rounds'?
        """
        known = {_kebab(f.name): f for f in fields(cls)}
        problems: list[str] = []
        values: dict[str, Any] = {}
        for key, value in run_config.items():
            if key not in known:
                near = get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
                problems.append(f"{key}: no such key; {hint}")
                continue
            spec = known[key]
            if spec.type is float and type(value) is int:
                value = float(value)
            problem = _check(key, value, spec)
            if problem:
                problems.append(problem)
            else:
                values[spec.name] = value
        if not problems:
            problems = _cross_check(cls(**values))
        if problems:
            raise InvalidInput(problems)
        return cls(**values)

    def to_run_config(self) -> dict[str, Scalar]:
        """Return the config as Flower's run config: kebab-case keys, scalar values."""
        return {_kebab(name): value for name, value in asdict(self).items()}

    def phases(self) -> tuple[str, ...]:
        """Return the phases of this run, in order."""
        chosen = PHASES if self.phase == "all" else (self.phase,)
        return tuple(p for p in chosen if p != "retrain" or self.reference)

    def recipe(self) -> dict[str, Scalar]:
        """Return what must not change while a state directory is continued."""
        fixed = RECIPE_KEYS if self.pairing == "natural" else RECIPE_KEYS | {"forget"}
        return {k: v for k, v in self.to_run_config().items() if k in fixed}

    def request(self) -> dict[str, Scalar]:
        """Return what must not change once the request is being carried out."""
        return {k: v for k, v in self.to_run_config().items() if k in REQUEST_KEYS}


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _check(key: str, value: Any, spec: Any) -> str | None:
    """Say what is wrong with one value, or None."""
    meta = spec.metadata
    if type(value) is not spec.type:
        wanted = spec.type.__name__
        return f"{key} = {value!r}: must be {wanted}, is {type(value).__name__} ({meta['about']})"
    if meta["choices"] and value not in meta["choices"]:
        return f"{key} = {value!r}: allowed: {', '.join(map(repr, meta['choices']))}"
    low, high = meta["low"], meta["high"]
    if spec.type in (int, float) and not (
        (low is None or value >= low) and (high is None or value <= high) and value < float("inf")
    ):
        allowed = f"from {low:g}" + ("" if high is None else f" to {high:g}")
        return f"{key} = {value!r}: must be {allowed} ({meta['about']})"
    return None


def _cross_check(config: Config) -> list[str]:
    """Say what does not go together."""
    problems = []
    if config.state_dir and not Path(config.state_dir).expanduser().is_absolute():
        problems.append(
            f"state-dir = {config.state_dir!r}: must be absolute, because the server runs in the "
            "working directory of Flower's daemon, not in yours"
        )
    if config.data == "karpathy" and not config.data_root:
        problems.append("data-root: data = 'karpathy' needs the folder that holds the images")
    if config.gallery < config.pairs_per_client:
        problems.append(
            f"gallery = {config.gallery}: must be at least pairs-per-client "
            f"({config.pairs_per_client}), because a client's own images are searched"
        )
    if not config.forget.strip():
        problems.append("forget: name whom or what to forget, for example 'site-1'")
    return problems
