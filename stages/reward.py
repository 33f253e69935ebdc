"""Stage reward: train a Bradley-Terry reward model on the training pairs.

reads    artifacts/base, artifacts/validate/pairs.train.jsonl
writes   artifacts/reward/reward.safetensors + reward.json, reports/reward.json, reports/plots/reward.csv
refuses  pairs that are all too long; targets or layers that the model lacks; a warm-up that leaves no step
"""

from dataclasses import dataclass

from stages.core import layout, runner
from stages.core.runner import Document
from stages.core.settings.reward import Reward
from stages.core.settings.runtime import Runtime
from stages.files import artifacts, base_record, outputs, records, states
from stages.files.history import HistoryFile
from stages.learning import fitting, launch, ranks, reward_loop, reward_report, trained
from stages.learning.resume import Saving
from stages.model import adapters, checkpoint, device, passes
from stages.model.adapters import Adapters
from stages.model.rendering import Renderer
from stages.model.reward_model import RewardModel


@dataclass(frozen=True)
class Params:
    """The sections that this stage reads."""

    reward: Reward
    runtime: Runtime


def main(params: Params) -> Document:
    """Trains, or goes on where a run that was broken off had saved its state; writes the artifact and its report last and whole."""
    outputs.make_ready(layout.REWARD, layout.curve("reward"), layout.report("reward"))
    settings = params.reward
    pairs = records.load_pairs(layout.TRAIN_PAIRS, at_least=1)
    base = base_record.read_base()
    found = checkpoint.find(base)
    renderer = Renderer(found.tokenizer, base)
    fitted = fitting.fitting_pairs("reward", pairs, renderer, settings.max_sequence)
    longest = max(pair.longest for pair in fitted.pairs)
    fitting.require_positions("reward.max_sequence", "the longest side", longest, 0, base)
    reward_loop.planned_steps(len(fitted.pairs), settings)
    unknown = fitting.say_unknown(renderer)

    computing_on = device.prepare(params.runtime)
    processes = ranks.join(params.runtime)
    model = checkpoint.load_weights(found, computing_on, params.runtime.shard)
    forward = passes.choose(model, params.runtime)
    plan = adapters.plan(model, "reward", settings.rank, settings.alpha, settings.targets, settings.layers)
    reward_model = RewardModel.fresh(Adapters(forward), plan, settings.seed)
    with states.opened("reward", settings, [layout.TRAIN_PAIRS, layout.BASE_RECORD], processes.rank == 0) as folder:
        saving = Saving(folder, params.runtime.checkpoint_every, processes)
        run = reward_loop.fit(reward_model, plan, fitted, settings, HistoryFile("reward"), saving, processes)
        tensors = adapters.to_numpy(reward_model.trainable())
        report = reward_report.reward_report(run, base, plan, settings, pairs, fitted, tensors, unknown)
        with outputs.together():
            artifacts.write(layout.REWARD, trained.artifact(artifacts.REWARD, base, plan, report, tensors))
            outputs.write_csv(layout.curve("reward"), reward_loop.CURVE, run.steps)
            outputs.write_json(layout.report("reward"), report)
    return Document(layout.REWARD, report)


if __name__ == "__main__":
    runner.run("reward", Params, main, lambda params: launch.spread("reward", layout.REWARD, params.runtime))
