"""An evaluation made by hand, with what a text may hold that a browser would take for more."""

from typing import Any

from stages.pages.evaluation import Measured

HTML = "<script>alert('x')</script> & <b>"
PROMPTS = ["what is calm?", HTML, "third"]


def samples(prompts: list[Any] | None = None, draws: int = 2, **more: Any) -> list[dict[str, Any]]:
    """Rows of samples.jsonl: the gain grows with the prompt's number, and every second draw loses by half as much."""
    rows = []
    for number, prompt in enumerate(PROMPTS if prompts is None else prompts):
        for draw in range(draws):
            gain = (number + 1.0) * (-0.5 if draw % 2 else 1)
            texts = {"base": f"base says {number} {draw}", "policy": f"policy says {number} {draw}"}
            rows.append({"prompt": prompt, "draw": draw, **texts, "base_reward": 0.25, "policy_reward": 0.25 + gain, **more})
    return rows


def evaluated(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "evaluated_prompts": 3,
        "max_new_tokens": 24,
        "training_reward": "length",
        "reward_length_correlation": 0.1,
        "base_mean_reward": 0.25,
        "policy_mean_reward": 0.75,
    }
    for key, value in {"accuracy": 0.9, "mean_score_margin": 2.0, "reward_gain": 0.5, "win_rate": 0.6, "mean_kl": 0.01}.items():
        found |= {key: value, f"{key}_low": value * 0.9, f"{key}_high": value * 1.1}
    for side in ("base", "policy"):
        found |= {f"{side}_mean_completion_tokens": 5.0, f"{side}_truncated": 0.0, f"{side}_empty": 0.0}
    return found | changes


def grpo(**changes: Any) -> dict[str, Any]:
    last = {"flat_groups": 0.0, **{key: changes.pop(key) for key in ("flat_groups",) if key in changes}}
    return {"warning": None, "refused_groups": 0, "beta": 0.04, "history": [last], **changes}


def reward(**changes: Any) -> dict[str, Any]:
    return {"skipped_long": 0, "epochs": 3, **changes}


def curve(steps: int, *columns: str) -> list[dict[str, float | None]]:
    return [{"step": step + 1.0, **{column: (step + 1) / (place + 2) for place, column in enumerate(columns)}} for step in range(steps)]


def measured(**changes: Any) -> Measured:
    """Everything there is to show."""
    of_grpo = ("mean_reward", "reward_spread", "mean_kl", "mean_completion_tokens", "truncated", "entropy", "loss", "grad_norm")
    whole = Measured(
        evaluated(),
        reward(),
        grpo(),
        {"grpo": curve(9, *of_grpo), "reward": curve(7, "loss", "accuracy", "mean_score_margin", "grad_norm")},
        [0.5, -0.25, 2.0, 1.0, 0.0],
        samples(),
        {"base fingerprint": "f" * 64, "torch": "2.13.0"},
    )
    return whole._replace(**changes)
