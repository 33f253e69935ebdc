"""The README.md of an exported folder: what it is, what it was made of and how it is loaded."""

from stages.files.artifacts import Artifact
from stages.files.base_record import APPLIED, BaseRecord

NAME = "README.md"


def policy(artifact: Artifact, base: BaseRecord, merged: float | None) -> bytes:
    """Of the policy; `merged` is the largest difference that merging made, None where the adapter is apart."""
    load = _loading("AutoModelForCausalLM", "", merged is not None, base)
    report = artifact.report
    trained = (
        f"Trained by group-relative policy optimization on the reward `{report.get('reward')}`: {report.get('prompts')} prompts, "
        f"{report.get('iterations')} iterations, {report.get('group')} completions each, beta {report.get('beta')}, "
        f"learning rate {report.get('learning_rate')}, seed {report.get('seed')}."
    )
    return _card("A policy", "text-generation", trained, load, artifact, base, merged, _prompting(base))


def reward(artifact: Artifact, base: BaseRecord, merged: float | None, pad: int | None) -> bytes:
    """Of the reward model; `pad` is the token that the merged classifier takes for padding."""
    load = _loading("AutoModelForSequenceClassification", ", num_labels=1", merged is not None, base)
    report = artifact.report
    trait = f" for `{report.get('trait_name')}`" if report.get("trait_name") else ""
    trained = (
        f"A Bradley-Terry reward model{trait}, trained on {report.get('trained_pairs')} pairs for {report.get('epochs')} epochs, "
        f"learning rate {report.get('learning_rate')}. Its one logit is the score: of two texts the better one is to have the higher."
    )
    padding = (
        "The score is read at the last token, which is the end token of the answer "
        f"({', '.join(map(str, base.end_tokens))}); what a chat template writes after it is to be cut. transformers reads it at the last "
        "token that is not padding: "
    )
    if merged is not None:
        padding += f"`pad_token_id` is {pad} here, which ends no answer; keep it so." if pad is not None else "score rows one by one."
    else:
        padding += "set `base.config.pad_token_id` to a token that ends no answer, or to None and score rows one by one."
    return _card("A reward model", "text-classification", trained, load, artifact, base, merged, padding)


def _card(what: str, task: str, trained: str, load: str, artifact: Artifact, base: BaseRecord, merged: float | None, notes: str) -> bytes:
    name = base.folder or base.model
    library = "transformers" if merged is not None else "peft"
    revision = f"\nrevision: {base.commit}" if base.commit else ""
    shape = f"LoRA of rank {artifact.rank}, alpha {artifact.alpha:g}, on {', '.join(artifact.targets)} of {len(artifact.layers)} layers"
    if merged is not None:
        shape += f", merged in float32 and stored in {base.precision}: the largest difference from the adapter unmerged was {merged:.3g}"
    lines = [
        f"---\nlibrary_name: {library}\npipeline_tag: {task}\nbase_model: {name}{revision}\n---",
        f"# {what} on {base.model}",
        trained,
        f"{shape}. The base has the fingerprint `{base.fingerprint}`" + (f", commit `{base.commit}`." if base.commit else "."),
        f"```python\n{load}\n```",
        notes,
    ]
    return ("\n\n".join(lines) + "\n").encode()


def _loading(auto: str, labels: str, merged: bool, base: BaseRecord) -> str:
    if merged:
        load = "\n".join(f'{what} = {kind}.from_pretrained(".")' for what, kind in (("model", auto), ("tokenizer", "AutoTokenizer")))
        return f"from transformers import {auto}, AutoTokenizer\n\n{load}"
    revision = f", revision={base.commit!r}" if base.commit else ""
    name = base.folder or base.model
    return (
        f"from peft import PeftModel\nfrom transformers import {auto}\n\n"
        f'base = {auto}.from_pretrained("{name}"{revision}{labels})\nmodel = PeftModel.from_pretrained(base, ".").eval()'
    )


def _prompting(base: BaseRecord) -> str:
    if base.chat_template == APPLIED:
        return "Prompts were rendered with the checkpoint's own chat template, generation marker included."
    return f"Prompts were given as raw text, without a chat template ({base.chat_template})."
