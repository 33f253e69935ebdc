"""Stages that compute nothing: the project with its real settings, composition and validation, where all else takes moments.

Its dvc.yaml is the real one without the modules below stages/ among the dependencies, which DVC takes seconds to write down.

Each of them notes that it ran in the file that LEASH_RUNS names. `grpo.seed=13` is refused; `grpo.seed=60` takes as many seconds.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import copy_project, git

STAGE = '''"""Stage {name}, which computes nothing."""
import json, os, sys, time
from pathlib import Path
import yaml
from stages.core import runner  # what arms a stage to die with its dvc
params = yaml.safe_load(Path("params.yaml").read_text())
with open(os.environ["LEASH_RUNS"], "a") as runs:
    runs.write("{name}\\n")
def write(path, text):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
time.sleep(0.2)
{body}
'''
BODIES = {
    "base": 'write("artifacts/base/base.json", json.dumps(params["base"]))',
    "reward": """text = json.dumps(params["reward"])
write("artifacts/reward/reward.json", text)
write("reports/reward.json", text)
write("reports/plots/reward.csv", "step,loss\\n0,0.69\\n")""",
    "grpo": """if params["grpo"]["seed"] == 13:
    sys.exit("grpo.seed: thirteen is refused")
time.sleep(60 if params["grpo"]["seed"] == 60 else 0)
text = Path("artifacts/reward/reward.json").read_text() + json.dumps(params["grpo"])
write("artifacts/grpo/policy.json", text)
write("reports/grpo.json", json.dumps({"mean_reward": params["grpo"]["beta"]}))
write("reports/plots/grpo.csv", "step,mean_kl\\n0,0.0\\n")""",
    "evaluate": """rank = json.loads(Path("reports/reward.json").read_text())["rank"]
gain = params["grpo"]["beta"] * 10 + rank
gain = None if params["evaluate"]["seed"] == 0 else gain
write("artifacts/evaluate/samples.jsonl", "")
interval = {"reward_gain_low": gain and gain - 1, "reward_gain_high": gain and gain + 1}
write("reports/evaluate.json", json.dumps({"reward_gain": gain, **interval}))""",
    "export": 'write("artifacts/export/policy.json", Path("artifacts/grpo/policy.json").read_text())',
}


def make(folder: Path, runs: Path) -> None:
    """Makes the folder such a project, run once and committed; `runs` is the file that stages note their runs in."""
    copy_project(folder)
    for name, body in BODIES.items():
        (folder / f"stages/{name}.py").write_text(STAGE.format(name=name, body=body))
    pipeline = folder / "dvc.yaml"
    pipeline.write_text(re.sub(r"(?m)^      - stages/\w+/.*\.py\n", "", pipeline.read_text()))
    done = run(folder, "dvc", "repro", "-q", LEASH_RUNS=str(runs))
    assert done.returncode == 0, done.stderr
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=stages that compute nothing")


def run(folder: Path, *module: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python module run in the folder."""
    return subprocess.run(
        [sys.executable, "-m", *module], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
