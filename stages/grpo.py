"""Stage grpo: step the policy adapters toward the completions that beat their own group.

reads    artifacts/base, artifacts/validate/prompts.train.jsonl, the reward source, the adapter to start from
writes   artifacts/grpo/policy.safetensors + policy.json, reports/grpo.json, reports/plots/grpo.csv
refuses  a reward or a start of another kind, base or shape; prompts that are all too long or run beyond the model's positions
"""

from dataclasses import dataclass

from stages.core import layout, runner
from stages.core.runner import Document
from stages.core.settings.grpo import Grpo
from stages.core.settings.runtime import Runtime
from stages.files import artifacts, base_record, outputs, records, states
from stages.files.history import HistoryFile
from stages.learning import fitting, grpo_loop, grpo_report, launch, ranks, reward_source, rounds, start, trained
from stages.learning.resume import Saving
from stages.model import adapters, checkpoint, device, passes
from stages.model.adapters import Adapters
from stages.model.rendering import Renderer


@dataclass(frozen=True)
class Params:
    """The sections that this stage reads."""

    grpo: Grpo
    runtime: Runtime


def main(params: Params) -> Document:
    """Trains, or goes on where a run that was broken off had saved its state; writes the artifact and its report last and whole."""
    outputs.make_ready(layout.POLICY, layout.curve("grpo"), layout.report("grpo"))
    settings = params.grpo
    prompts = records.load_prompts(layout.TRAIN_PROMPTS, at_least=1)
    base = base_record.read_base()
    source = reward_source.open_source(settings.reward, base)
    begun = start.open_start(settings.init_adapter, settings.rank, settings.alpha, base)
    found = checkpoint.find(base)
    renderer = Renderer(found.tokenizer, base)
    fitted = fitting.fitting_prompts("grpo", prompts, renderer, settings.max_sequence)
    longest = max(map(len, fitted.ids))
    fitting.require_positions("grpo.max_new_tokens", "the longest prompt", longest, settings.max_new_tokens, base)
    grpo_loop.planned_steps(len(fitted.ids), settings)
    unknown = fitting.say_unknown(renderer)

    computing_on = device.prepare(params.runtime)
    processes = ranks.join(params.runtime)
    model = checkpoint.load_weights(found, computing_on, params.runtime.shard)
    forward = passes.choose(model, params.runtime)
    plan = adapters.plan(model, "grpo", settings.rank, settings.alpha, settings.targets, settings.layers)
    if begun:
        start.require_fits(begun, plan)
    adapted = Adapters(forward)
    scorer = source.attach(adapted, prompts, renderer)
    inputs = [layout.TRAIN_PROMPTS, layout.BASE_RECORD, *source.files, *start.files(settings.init_adapter)]
    with states.opened("grpo", settings, inputs, processes.rank == 0) as folder:
        saving = Saving(folder, params.runtime.checkpoint_every, processes)
        history, factors = HistoryFile("grpo"), begun.tensors if begun else None
        run = grpo_loop.fit(adapted, plan, scorer, fitted, base.end_tokens, settings, history, saving, processes, factors)
        tensors = adapters.to_numpy(adapted.factors(rounds.ADAPTER_NAME))
        report = grpo_report.grpo_report(run, source, base, plan, settings, prompts, fitted, tensors, unknown)
        with outputs.together():
            artifacts.write(layout.POLICY, trained.artifact(artifacts.ADAPTER, base, plan, report, tensors))
            outputs.write_csv(layout.curve("grpo"), grpo_loop.columns(settings), run.steps)
            outputs.write_json(layout.report("grpo"), report)
    return Document(layout.POLICY, report)


if __name__ == "__main__":
    runner.run("grpo", Params, main, lambda params: launch.spread("grpo", layout.POLICY, params.runtime))
