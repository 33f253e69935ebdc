"""Stage evaluate: the reward model on held-out pairs, base against policy on held-out prompts.

reads    artifacts/base, artifacts/validate/{prompts,pairs}.heldout.jsonl, both artifacts with their curves, what the policy was
         trained on and started from
writes   reports/evaluate.json, artifacts/evaluate/samples.jsonl, artifacts/evaluate/report.html, which opens in any browser
refuses  artifacts of another kind or another base; prompts that run beyond the model's positions
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from stages.core import layout, libraries, runner
from stages.core.progress import say
from stages.core.runner import Document
from stages.core.settings.evaluate import Evaluate
from stages.core.settings.runtime import Runtime
from stages.files import artifacts, base_record, outputs, records
from stages.files.artifacts import Artifact
from stages.files.base_record import BaseRecord
from stages.files.curves import read as read_curve
from stages.learning import comparison, fitting, launch, ranks, reward_source, start
from stages.model import checkpoint, device, passes
from stages.model.adapters import Adapters
from stages.model.rendering import Renderer
from stages.model.reward_model import RewardModel
from stages.pages import evaluation
from stages.pages.evaluation import Measured

POLICY_NAME, START_NAME = "policy", "start"
OWN_REWARD = reward_source.MODEL + layout.REWARD.as_posix()


@dataclass(frozen=True)
class Params:
    """The sections that this stage reads."""

    evaluate: Evaluate
    runtime: Runtime


def main(params: Params) -> Document:
    """Samples and scores, and writes the report last and whole."""
    settings = params.evaluate
    prompts, pairs = records.load_prompts(layout.HELDOUT_PROMPTS), records.load_pairs(layout.HELDOUT_PAIRS)
    base = base_record.read_base()
    own = reward_source.open_model(layout.REWARD, base)
    policy = artifacts.read(layout.POLICY, artifacts.ADAPTER)
    artifacts.require_base(layout.POLICY, policy, base)
    trained_on = reward_source.reopen(policy.report.get("reward_parts"), base)
    begun = start.reopen(policy.report, base)
    training = None if trained_on.name == OWN_REWARD else trained_on

    curves = {stage: read_curve(stage, artifact.report.get("steps")) for stage, artifact in (("reward", own), ("grpo", policy))}

    found = checkpoint.find(base)
    renderer = Renderer(found.tokenizer, base)
    fitted = fitting.fitting_prompts("evaluate", prompts, renderer, settings.max_sequence, "evaluate on")
    fitted_pairs = fitting.fitting_pairs("evaluate", pairs, renderer, settings.max_sequence, "evaluate on")
    longest, longest_side = max(map(len, fitted.ids), default=0), max((pair.longest for pair in fitted_pairs.pairs), default=0)
    fitting.require_positions("evaluate.max_new_tokens", "the longest prompt", longest, settings.max_new_tokens, base)
    fitting.require_positions("evaluate.max_sequence", "the longest side", longest_side, 0, base)
    for what, rows in (("prompts", prompts), ("pairs", pairs)):
        if not rows:
            say(f"no {what} are held out (data.heldout_fraction), so what would be measured on them is null")
    fitting.say_unknown(renderer)

    computing_on = device.prepare(params.runtime)
    ranks.join(params.runtime)
    model = checkpoint.load_weights(found, computing_on, params.runtime.shard)
    adapted = Adapters(passes.choose(model, params.runtime))
    adapted.add_trained(POLICY_NAME, policy.rank, policy.alpha, policy.tensors)
    if begun:
        adapted.add_trained(START_NAME, begun.rank, begun.alpha, begun.tensors)
    reward_model = RewardModel.trained(adapted, own)
    there = {layout.REWARD.as_posix(): reward_model}
    training_scorer = training.attach(adapted, prompts, renderer, "training_reward", there) if training else None
    scores = comparison.score_pairs(reward_model, fitted_pairs.pairs) if fitted_pairs.pairs else None
    scorer = reward_source.model_scorer(adapted, reward_model)
    compared = comparison.compare(
        adapted, POLICY_NAME, scorer, training_scorer, fitted, base.end_tokens, settings, START_NAME if begun else None
    )

    report = {
        "heldout_pairs": len(pairs),
        "evaluated_pairs": len(fitted_pairs.pairs),
        "skipped_long_pairs": fitted_pairs.skipped_long,
        "equal_tokens_pairs": fitted_pairs.figures["equal_tokens"],
        **comparison.pair_figures(scores, settings),
        "heldout_prompts": len(prompts),
        "evaluated_prompts": len(fitted.ids),
        "skipped_long_prompts": fitted.skipped_long,
        **dataclasses.asdict(settings),
        "kl_temperature": settings.temperature or 1.0,
        "training_reward": trained_on.name,
        **comparison.prompt_figures(compared, settings, list(training_scorer.parts) if training_scorer else None, begun is not None),
    }
    samples = comparison.sample_rows(compared, [prompts[index].prompt for index in fitted.indexes], renderer)
    margins = [] if scores is None else list(map(float, scores[0] - scores[1]))
    page = evaluation.render(Measured(report, own.report, policy.report, curves, margins, samples, provenance(base, own, policy)))
    with outputs.together():
        outputs.write_jsonl(layout.SAMPLES, samples)
        outputs.write_bytes(layout.EVALUATION_PAGE, page)
        outputs.write_json(layout.report("evaluate"), report)
    return Document(layout.SAMPLES, report)


def provenance(base: BaseRecord, reward: Artifact, policy: Artifact) -> dict[str, Any]:
    """Where the figures come from: base, data, artifacts and libraries."""
    return {
        "base": base.model,
        "base commit": base.commit,
        "base fingerprint": base.fingerprint,
        "base precision": base.precision,
        "chat template": base.chat_template,
        "training prompts sha256": policy.report.get("prompts_sha256"),
        "training pairs sha256": reward.report.get("pairs_sha256"),
        "held-out prompts sha256": outputs.file_digest(layout.HELDOUT_PROMPTS),
        "held-out pairs sha256": outputs.file_digest(layout.HELDOUT_PAIRS),
        "reward model sha256": outputs.file_digest(layout.REWARD),
        "policy sha256": outputs.file_digest(layout.POLICY),
        **libraries.versions(),
    }


if __name__ == "__main__":
    runner.run("evaluate", Params, main, lambda params: launch.spread("evaluate", layout.SAMPLES, params.runtime, shares=False))
