"""What is seen to before a sweep starts: its command line, that jobs would run what is there, and that every job's settings are right.

A job runs the last commit, so what is not committed would be left out of it without a word; and a wrong setting is told of
now, not after hours of other jobs.
"""

import difflib
import json
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from stages.core import layout
from stages.core.composition import named_files, overrides, tree
from stages.core.errors import SettingsError
from stages.core.progress import bar
from stages.core.settings.schema import show
from stages.core.settings.sections import NOT_OF_A_STAGE
from stages.sweeps import results
from stages.versions.git import git, git_bytes

PRIMARY = "multirun"
"""The file in conf/ that Hydra composes for a sweep."""
RUN_FROM = ("conf", "stages", "data", "dvc.yaml")
"""What a job takes from the commit; lock and reports it writes itself, so those may differ."""
PLUGINS = {"submitit": "hydra-submitit-launcher", "ray": "hydra-ray-launcher", "optuna": "hydra-optuna-sweeper"}
"""The distributions of the plugins that conf/hydra/ has presets for, by how Hydra calls their options."""

_HYDRAS = re.compile(rf"{tree.HYDRA}(?:[./]|$)")


class CommandLine(NamedTuple):
    """A sweep's command line as Hydra is to get it."""

    arguments: list[str]
    """Hydra's own options, then the overrides: the recorded ones first, those that were given after them."""
    overrides: list[str]
    """The latter alone."""
    keys: list[str]
    """What those that were given set, and what conf/ sweeps (hydra.sweeper.params); Hydra's own settings left out."""
    runs: bool
    """Whether jobs are to run, and not something to be shown."""


def read(arguments: Sequence[str], recorded: Sequence[str]) -> CommandLine:
    """Sorts the arguments, with the recorded overrides that they do not replace before them; raises SettingsError."""
    asked, unknown = get_args_parser().parse_known_args(list(arguments))
    if unknown:
        raise SettingsError(f"{unknown[0]}: neither an option of Hydra's nor KEY=VALUES; python -m stages.sweep --help tells of both")
    if other := [option for option in ("config_name", "config_path", "config_dir", "experimental_rerun") if getattr(asked, option)]:
        raise SettingsError(f"--{other[0].replace('_', '-')}: a sweep composes {layout.CONF}/{PRIMARY}.yaml; leave the option out")
    if asked.run:
        raise SettingsError("--run: a sweep always runs as a multirun; for a single job name one value per key, or none")
    if removed := [text for text in asked.overrides if text.startswith("~")]:
        raise SettingsError(f"{removed[0]}: nothing can be left out of the settings; name the keys to be set")
    keys = [overrides.key_of(text) for text in asked.overrides]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise SettingsError(f"{twice[0]} is given twice: leave one of them out; several values of one key stand behind commas")
    runs = not (asked.cfg or asked.info or asked.hydra_help or asked.shell_completion)
    own = [key for key in keys if not _HYDRAS.match(key)]
    own += [text.partition("=")[0] for text in _of_the_sweeper(asked.overrides)] if runs else []
    kept = [f"++{text}" if "." in overrides.key_of(text) else text for text in recorded if overrides.key_of(text) not in own]
    every = [_without_option(text) for text in [*kept, *asked.overrides]]
    flags = [argument for argument in arguments if argument not in [*asked.overrides, "-m", "--multirun"]]
    return CommandLine([*flags, *["--multirun"] * runs, *every], every, own, runs)


def require_committed() -> None:
    """Raises SettingsError where something that a job would run is not committed, or there is no commit at all."""
    if not git("rev-parse", "--quiet", "--verify", "HEAD", check=False):
        raise SettingsError(f"{layout.PIPELINE}: a sweep's jobs run the last commit, and there is none here; commit the project first")
    changed = git("status", "--porcelain", "--untracked-files=normal", "--", *RUN_FROM).splitlines()
    paths = [line[3:] for line in changed] or _data_changed()
    if paths:
        listed = ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
        raise SettingsError(
            f"{paths[0]}: a sweep's jobs run the last commit, and what differs from it would be left out of them ({listed}); "
            "commit it (data that DVC tracks with dvc add or dvc commit first), or take it back, and run the sweep again"
        )


def require_runnable(texts: Sequence[str]) -> None:
    """Raises SettingsError with everything that is wrong with any job's settings, each problem once.

    An interval that a sweeper of another kind searches is tried at both of its ends.
    """
    problems: dict[str, None] = {}
    read = []
    for text in [*_of_the_sweeper(texts), *map(as_recorded, texts)]:
        try:
            override = OverridesParser.create().parse_override(text)
            if not _is_hydras(override):
                problems |= dict.fromkeys(_not_swept(override))
                read.append(_listed(override))
        except (HydraException, ValueError) as error:
            raise SettingsError(f"{text}: expected KEY=VALUES in Hydra's grammar: {' '.join(str(error).split())}") from error
    jobs = BasicSweeper.split_arguments(read, None)[0]
    tracked = set(git("ls-files", layout.DATA.as_posix()).splitlines())
    with bar(len(jobs), "checking") as advance:
        for job in jobs:
            parsed = overrides.parse(job)
            try:
                values = tree.composed(layout.CONF, [override.text for override in parsed.overrides], parsed.problems)
                problems |= dict.fromkeys([*_metric_not_there(values["sweep"]["metric"]), *_data_not_there(values, tracked)])
            except SettingsError as error:
                problems |= dict.fromkeys(error.problems)
            advance()
    if problems:
        raise SettingsError(list(problems))


def _of_the_sweeper(texts: Sequence[str]) -> list[str]:
    """What hydra.sweeper.params sweeps, in conf/multirun.yaml or on the command line."""
    of_hydra = [text for text in texts if _HYDRAS.match(overrides.key_of(text)) and "=" in text]
    try:
        with initialize_config_dir(str(layout.CONF.resolve()), version_base="1.3"):
            config = compose(PRIMARY, overrides=of_hydra, return_hydra_config=True)
        return [f"{key}={value}" for key, value in (config.hydra.sweeper.get("params") or {}).items()]
    except (HydraException, OmegaConfBaseException, AttributeError) as error:  # the last for a mapping put where there was null
        raise explained(error) from error


def _data_not_there(values: Mapping[str, Mapping[str, Any]], tracked: Collection[str]) -> Iterator[str]:
    """A problem for each file of the data that is here and that neither Git nor DVC tracks, so that no job would have it."""
    named = [(f"data.{key}", values["data"][key]) for key in ("prompts", "pairs")]
    named += [("grpo.init_adapter", start)] if (start := values["grpo"]["init_adapter"]) else []
    for key, source in [*named, *((key, source) for key, source, _ in named_files.reward_sources(values))]:
        path = Path(source)
        known = any(name in tracked for name in (path.as_posix(), *(f"{part.as_posix()}.dvc" for part in (path, *path.parents))))
        if layout.DATA in path.parents and not known:
            yield f"{key}: {path} is tracked neither by Git nor by DVC, so that no job would have it; git add -f or dvc add it"


def explained(error: Exception) -> SettingsError:
    """Hydra's own refusal of a sweep in one line, with what to do."""
    text = re.sub(r" Config search path:.*", "", " ".join(str(error).split()))
    if error.__cause__ is not None and str(error.__cause__) not in text:
        text += f": {str(error.__cause__).splitlines()[0]}"
    plugin = next((PLUGINS[name] for name in re.findall(r"Could not (?:load|find) 'hydra/\w+/([a-z]+)", text) if name in PLUGINS), None)
    if plugin:
        text += f"; it comes with a plugin: pip install {plugin}"
    elif "INTERVAL_SWEEP" in text:
        text = f"an interval is searched and not run through; name values, or add hydra/sweeper=search (pip install {PLUGINS['optuna']})"
    return SettingsError(f"the sweep cannot be composed: {text}")


def _data_changed() -> list[str]:
    """Data that DVC tracks and that is not as its .dvc file in Git says."""
    tracked = git("ls-files", f"{layout.DATA}/*.dvc").splitlines()
    if not tracked:
        return []
    command = [sys.executable, "-m", "dvc", "status", "--json", *tracked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SettingsError(f"{tracked[0]}: dvc status fails, so what the jobs would run on is not known: {done.stderr.strip()[-300:]}")
    return [name.removesuffix(".dvc") for name in json.loads(done.stdout or "{}")]


def as_recorded(text: str) -> str:
    """An override of a job's, which Hydra has given it, as conf/overrides.yaml takes it."""
    return f"{text[1:].partition('=')[0]}=null" if text.startswith("~") else text


def _without_option(text: str) -> str:
    """`group=null` in Hydra's own words."""
    key, _, value = text.partition("=")
    return f"~{key}" if value == "null" and "." not in key else text


def _is_hydras(override: Override) -> bool:
    return _HYDRAS.match(override.key_or_group) is not None


def _not_swept(override: Override) -> Iterator[str]:
    section = override.key_or_group.partition(".")[0]
    if override.is_sweep_override() and section in NOT_OF_A_STAGE:
        yield (
            f"{override.key_or_group}: no stage depends on {section}, so its values would all make one experiment; "
            "give one value for all jobs"
        )


def _listed(override: Override) -> Override:
    """The override with plain choices: those that a glob matches, the two ends of an interval. Raises ValueError."""
    if "." not in override.key_or_group and override.is_sweep_override() and "null" in (override.get_value_string() or "").split(","):
        raise ValueError("null is no option beside others; sweep the others, and run it by itself")
    if not override.is_sweep_override():
        return override
    value = override.value()
    if isinstance(value, Glob):
        choices = value.filter(tree.options(layout.CONF, override.key_or_group))
        if not choices:
            raise ValueError(f"no file in {layout.CONF}/{override.key_or_group}/ matches")
    elif override.is_discrete_sweep():
        return override
    else:
        choices = [str(getattr(value, "start", None)), str(getattr(value, "end", None))]
    return OverridesParser.create().parse_override(f"{override.get_key_element()}={','.join(choices)}")


def _metric_not_there(metric: str) -> Iterator[str]:
    """A problem where the last commit has the report, and no such figure in it; a training reward's figures come and go."""
    name = metric.rpartition(".")[2]
    content = git_bytes("show", f"HEAD:./{layout.report(results.report_of(metric))}")
    figures = results.figures(json.loads(content)) if content is not None else []
    if figures and name not in figures and not name.startswith("training_"):
        near = difflib.get_close_matches(name, figures, n=3)
        there = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(figures)}"
        yield f"sweep.metric: {layout.report(results.report_of(metric))} has no figure {show(name)}; {there}"
