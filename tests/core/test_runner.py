"""Stages as a person runs them: each test writes a small one and runs it in a process of its own."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from stages.core import runner, stopping
from stages.core.errors import DataError

ROOT = Path(__file__).parents[2]

STAGE = '''
"""Stage sample: what it is for."""
import errno, os, sys, time
from dataclasses import dataclass
from pathlib import Path
from stages.core import runner
from stages.core.errors import DataError, SettingsError
from stages.core.settings.runtime import Runtime

@dataclass(frozen=True)
class Params:
    runtime: Runtime

def main(params):
    {body}
    return runner.Document(Path("artifacts/sample"), {{"threads": params.runtime.threads, "word": "größer"}})

if __name__ == "__main__":
    runner.run("sample", Params, main)
'''

PARAMS = (
    "runtime: {device: cpu, threads: 3, logits_chunk: 64, activation_checkpointing: false, checkpoint_every: 1, processes: 1, "
    "nodes: 1, rendezvous: null, shard: false}"
)


def environment(**more):
    kept = {key: value for key, value in os.environ.items() if key != "DVC_STAGE"}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **more}


COMMAND = [sys.executable, "-m", "stages.sample"]


@pytest.fixture
def project(tmp_path):
    """A folder with a copy of stages/, to which a test adds stages/sample.py, and the settings that this reads."""
    shutil.copytree(ROOT / "stages", tmp_path / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "params.yaml").write_text(PARAMS)
    return tmp_path


@pytest.fixture
def stage(project):
    """Runs a stage whose main has this body; returns the finished process."""

    def run(body="pass", *arguments, **options):
        (project / "stages/sample.py").write_text(STAGE.format(body=textwrap.indent(textwrap.dedent(body), "    ").strip()))
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment(), **options}
        return subprocess.run([*COMMAND, *arguments], cwd=project, encoding="utf-8", check=False, **options)

    return run


def test_a_stage_that_ends_well_prints_one_document_and_nothing_else(stage):
    done = stage("print('noise'); os.write(1, b'noise below python'); os.system('echo noise of a child'); sys.__stdout__.write('noise')")
    assert done.returncode == 0
    assert done.stdout == json.dumps(json.loads(done.stdout), indent=2, ensure_ascii=False) + "\n"
    assert json.loads(done.stdout) == {"path": "artifacts/sample", "report": {"threads": 3, "word": "größer"}}
    assert done.stderr.count("noise") == 4


@pytest.mark.parametrize(("error", "code"), [("SettingsError", 2), ("DataError", 1)])
def test_a_refusal_is_its_lines_on_stderr_and_its_code_with_nothing_on_stdout(stage, error, code):
    done = stage(f"print('noise')\nraise {error}(['grpo.beta is missing', 'data/pairs.jsonl:17: broken'])")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == "noise\ngrpo.beta is missing\ndata/pairs.jsonl:17: broken\n"


def test_arguments_are_refused(stage):
    done = stage("pass", "grpo.beta=1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("grpo.beta=1: python -m stages.sample takes no arguments: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_prints_what_the_stage_is_for(stage, flag):
    done = stage("raise AssertionError", flag)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Stage sample: what it is for.\n", "")


def test_params_that_cannot_be_read_are_refused_before_main(stage, tmp_path):
    (tmp_path / "params.yaml").write_text(PARAMS.replace("threads: 3, ", ""))
    done = stage("raise AssertionError")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("runtime.threads is missing: ")


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("raise OSError(errno.ENOSPC, 'No space left on device')", "sample: No space left on device: free some space and run it again\n"),
        ("open('/nowhere/file', 'w')", "/nowhere/file: No such file or directory: mend that and run it again\n"),
        ("raise PermissionError(errno.EACCES, 'Permission denied', 'a.json')", "a.json: Permission denied: mend that and run it again\n"),
    ],
)
def test_what_the_system_refuses_is_one_line_with_the_file(stage, body, line):
    done = stage(body)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("raise MemoryError", "sample: out of memory: lower what it holds at once\n"),
        (
            "class OutOfMemoryError(RuntimeError): pass\nraise OutOfMemoryError('CUDA out of memory.\\nTried 2 GiB')",
            "sample: out of memory (CUDA out of memory. Tried 2 GiB): lower what it holds at once\n",
        ),
        (
            "raise RuntimeError('[enforce fail] DefaultCPUAllocator: not enough memory')",
            "sample: out of memory ([enforce fail] DefaultCPUAllocator: not enough memory): lower what it holds at once\n",
        ),
    ],
)
def test_running_out_of_memory_is_one_line_with_what_to_lower(stage, body, line):
    done = stage(body)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)


def test_a_mistake_of_our_own_keeps_its_traceback(stage):
    done = stage("print({}['key'])")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" in done.stderr
    assert "KeyError" in done.stderr
    assert done.stderr.endswith("KeyError: 'key'\n")


@pytest.mark.parametrize(("body", "last"), [("print({}['key'])", "KeyError: 'key'"), ("raise OSError(5, 'x')", "OSError: [Errno 5] x")])
def test_a_mistake_of_our_own_under_dvc_ends_with_what_brings_the_outputs_back(stage, tmp_path, body, last):
    (tmp_path / "dvc.yaml").write_text("stages: {sample: {cmd: x, outs: [artifacts/sample]}}")
    (tmp_path / "dvc.lock").write_text("stages: {sample: {cmd: x, outs: [{path: artifacts/sample, md5: 0}]}}")
    done = stage(body, env=environment(DVC_STAGE="sample"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-2:] == [
        last,
        "dvc.yaml: DVC removed what sample had written before; to bring it back: dvc checkout artifacts/sample",
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_document_that_cannot_be_printed_is_told(stage):
    with Path("/dev/full").open("w") as full:
        done = stage(stdout=full)
    assert done.returncode == 1
    assert done.stderr == "sample: its document could not be written to stdout: No space left on device\n"


def test_a_refusal_outside_dvc_says_nothing_of_bringing_outputs_back(stage, tmp_path):
    (tmp_path / "dvc.yaml").write_text("stages: {sample: {cmd: x, outs: [a]}}")
    (tmp_path / "dvc.lock").write_text("stages: {sample: {cmd: x, outs: [{path: a}]}}")
    assert stage("raise DataError('x')").stderr == "x\n"
    assert stage("raise DataError('x')", env=environment(DVC_STAGE="sample")).stderr == (
        "x\ndvc.yaml: DVC removed what sample had written before; to bring it back: dvc checkout a\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "said", "code"), [(signal.SIGTERM, "stopped by SIGTERM", 143), (signal.SIGINT, "interrupted", 130)])
@pytest.mark.parametrize("early", [True, False])
def test_a_signal_ends_a_stage_in_one_line_at_any_moment(project, signum, said, code, early):
    """Also while torch is imported, which takes seconds."""
    waiting = "import torch, time\n" if early else ""
    main = "time.sleep(60)" if not early else "pass"
    first = "from stages.core import runner\n"
    source = STAGE.format(body=main).replace(first, f"{first}Path('begun').touch()\n{waiting}")
    (project / "stages/sample.py").write_text(source)
    started = subprocess.Popen(COMMAND, cwd=project, env=environment(), stderr=subprocess.PIPE, encoding="utf-8")
    while not (project / "begun").exists():
        time.sleep(0.01)
    time.sleep(0.1 if early else 1.0)
    started.send_signal(signum)
    _, stderr = started.communicate(timeout=60)
    assert (started.returncode, stderr) == (code, f"sample: {said}\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_streams_that_the_caller_closed_are_no_mistake(project, closed):
    """Libraries write to both without asking."""
    body = "print('a library speaks'); print('and warns', file=sys.stderr); Path('went').touch()"
    (project / "stages/sample.py").write_text(STAGE.format(body=body))
    done = subprocess.run(f"{shlex.join(COMMAND)} {closed}", shell=True, cwd=project, env=environment(), check=False)
    assert done.returncode == 0
    assert (project / "went").exists()


@pytest.mark.slow
def test_the_collector_rests_while_a_stage_imports_and_runs_again_in_its_work(project):
    first = "from stages.core import runner\n"
    check = "import gc\nassert not gc.isenabled()\n"
    body = "assert gc.isenabled() and gc.get_freeze_count() > 0"
    (project / "stages/sample.py").write_text(STAGE.format(body=body).replace(first, first + check))
    done = subprocess.run(COMMAND, cwd=project, env=environment(), capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr) == (0, "")
    # a process that only imports the module keeps its collector
    program = "import gc, stages.core.runner; assert gc.isenabled()"
    subprocess.run([sys.executable, "-c", program], cwd=project, env=environment(), check=True)


def test_a_process_that_only_calls_a_stage_keeps_its_signals():
    before = {signum: signal.getsignal(signum) for signum in stopping.SIGNALS}
    with pytest.raises(SystemExit):
        runner.finish("sample", lambda: "text")
    with pytest.raises(SystemExit):
        runner.finish("sample", lambda: (_ for _ in ()).throw(DataError("refused")))
    assert {signum: signal.getsignal(signum) for signum in stopping.SIGNALS} == before
