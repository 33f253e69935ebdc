"""Small projects with a history that DVC and Git keep, without a training: what the tests beside compare."""

import dataclasses
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stages.core import layout
from stages.core.composition import params_yaml
from stages.files import artifacts, outputs
from stages.files.artifacts import ADAPTER, HEAD, REWARD, Artifact
from stages.files.base_record import BaseRecord
from stages.files.fingerprint import Digests
from tests.conftest import git

HIDDEN = 6
MODULES = [f"model.layers.{layer}.self_attn.{target}" for layer in range(4) for target in ("q_proj", "v_proj")]
PIPELINE = "stages:\n" + "".join(
    f"  {name}:\n    cmd: 'true'\n    outs:\n      - artifacts/{name}\n" for name in ("base", "validate", "reward", "grpo", "evaluate")
)
SETTINGS: dict[str, Any] = {
    "grpo": {"beta": 0.04, "rank": 2},
    "evaluate": {"samples": 2, "temperature": 0.9, "top_p": 0.95, "max_new_tokens": 5, "max_sequence": 64, "seed": 7, "bootstrap": 50},
    "runtime": {"threads": 1},
}
PROMPTS = [f"prompt {number}" for number in range(4)]


def base(**changes: Any) -> BaseRecord:
    """A record whose fingerprint is that of its digests."""
    record = BaseRecord(
        model="toy",
        revision=None,
        commit=None,
        gguf_file=None,
        folder=layout.BASE_CHECKPOINT.as_posix(),
        trust_remote_code=False,
        precision="f32",
        chat_template="absent",
        model_type="llama",
        layers=4,
        hidden_size=HIDDEN,
        vocabulary=10,
        positions=64,
        parameters=1,
        begin_token=1,
        end_tokens=[2],
        weights_sha256="w",
        config_sha256="c",
        tokenizer_sha256="t",
        template_sha256=None,
        fingerprint="",
    )
    changed = dataclasses.replace(record, **changes)
    digests = Digests(changed.weights_sha256, changed.config_sha256, changed.tokenizer_sha256, changed.template_sha256)
    return dataclasses.replace(changed, fingerprint=digests.fingerprint(changed.end_tokens))


def factors(modules: Iterable[str], rank: int, seed: int, width: int = HIDDEN) -> dict[str, Any]:
    """Random factors of these modules."""
    generator = np.random.default_rng(seed)
    found = {}
    for module in modules:
        for side, shape in (("A", (rank, width)), ("B", (width + 2, rank))):
            found[f"base_model.model.{module}.lora_{side}.weight"] = generator.normal(size=shape).astype(np.float32)
    return found


def artifact(kind: str = ADAPTER, seed: int = 0, rank: int = 2, modules: Iterable[str] = MODULES, **changes: Any) -> Artifact:
    tensors = factors(modules, rank, seed)
    if kind == REWARD:
        tensors[HEAD] = np.random.default_rng(seed + 1).normal(size=(1, HIDDEN)).astype(np.float32)
    whole = Artifact(
        kind=kind,
        model="toy",
        model_revision=None,
        base_fingerprint=base().fingerprint,
        rank=rank,
        alpha=4.0,
        targets=["q_proj", "v_proj"],
        layers=[0, 1, 2, 3],
        hidden_size=HIDDEN,
        report={"reward": "length"},
        tensors=tensors,
    )
    return dataclasses.replace(whole, **changes)


def samples(prompts: Iterable[Any] = PROMPTS, draws: int = 2, policy: str = "first", gain: float = 0.0) -> list[dict[str, Any]]:
    """Rows as evaluate writes them: the reward of draw d of prompt p is p + d / 10, and the gain beyond that the policy's."""
    return [
        {
            "prompt": prompt,
            "draw": draw,
            "base": f"base writes {place} {draw}",
            "policy": f"{policy} writes {place} {draw}",
            "base_reward": place + draw / 10,
            "policy_reward": place + draw / 10 + gain * place,
        }
        for place, prompt in enumerate(prompts)
        for draw in range(draws)
    ]


def evaluated(**changes: Any) -> dict[str, Any]:
    """A report of evaluate, less what no test asks for."""
    report = {"samples": 2, "accuracy": 0.75, "accuracy_low": 0.5, "accuracy_high": 1.0, "reward_gain": 0.5, "reward_gain_low": 0.25}
    report |= {"reward_gain_high": 0.75, "win_rate": 0.5, "win_rate_low": 0.25, "win_rate_high": 0.75, "mean_kl": 0.125}
    return {**report, **changes}


class Project:
    """A project in a folder: files as the stages write them, and commits of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def begun(cls, folder: Path, repository: Path | None = None) -> "Project":
        """A new one, not committed yet; the Git repository may begin above the folder."""
        self = cls(folder)
        folder.mkdir(parents=True)
        top = repository or folder
        git(top, "init", "--quiet", "--initial-branch=main")
        for key, value in (("user.name", "test"), ("user.email", "test@localhost"), ("commit.gpgsign", "false")):
            git(top, "config", key, value)
        self.dvc("init", "--quiet", *(["--subdir"] if repository else []))
        self.dvc("config", "core.analytics", "false")
        (folder / "dvc.yaml").write_text(PIPELINE)
        (folder / ".gitignore").write_text("/artifacts/\n")
        self.settings()
        self.record(base())
        self.rows()
        self.artifact(layout.REWARD, artifact(REWARD))
        self.artifact(layout.POLICY, artifact())
        self.samples(samples())
        for stage in ("validate", "reward", "grpo"):
            self.report(stage, {"rows": 4})
        self.report("evaluate", evaluated())
        return self

    def dvc(self, *arguments: str) -> None:
        done = subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def settings(self, **sections: Mapping[str, Any]) -> None:
        values = {name: {**SETTINGS[name], **sections.get(name, {})} for name in SETTINGS}
        outputs.write_bytes(self.folder / layout.PARAMS, params_yaml.render(values))

    def record(self, record: BaseRecord) -> None:
        outputs.write_json(self.folder / layout.BASE_RECORD, record.as_json())

    def rows(self, train: Iterable[Any] = ("trained on",), heldout: Iterable[Any] = PROMPTS, pairs: Iterable[Any] = ()) -> None:
        for path, rows in (
            (layout.TRAIN_PROMPTS, [{"prompt": prompt} for prompt in train]),
            (layout.HELDOUT_PROMPTS, [{"prompt": prompt} for prompt in heldout]),
            (layout.TRAIN_PAIRS, list(pairs)),
            (layout.HELDOUT_PAIRS, []),
        ):
            outputs.write_jsonl(self.folder / path, rows)

    def artifact(self, path: Path, whole: Artifact) -> None:
        artifacts.write(self.folder / path, whole)

    def samples(self, rows: Iterable[Mapping[str, Any]]) -> None:
        outputs.write_jsonl(self.folder / layout.SAMPLES, rows)

    def report(self, stage: str, report: Mapping[str, Any]) -> None:
        outputs.write_json(self.folder / layout.report(stage), report)

    def commit(self, *names: str) -> str:
        """Commits everything, outputs into DVC's cache, and tags it; returns the commit."""
        self.dvc("commit", "--quiet", "--force")
        git(self.folder, "add", "--all")
        git(self.folder, "commit", "--quiet", "--allow-empty", "--message", " ".join(names) or "commit")
        for name in names:
            git(self.folder, "tag", name)
        return git(self.folder, "rev-parse", "HEAD").strip()

    def experiment(self, name: str, commit: str, baseline: str) -> None:
        """Makes a commit an experiment, as DVC keeps it."""
        git(self.folder, "update-ref", f"refs/exps/{baseline[:2]}/{baseline[2:]}/{name}", commit)
