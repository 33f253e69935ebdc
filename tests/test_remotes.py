"""Remotes as two people use them: what one clone pushes to a folder, to S3 or over SSH, another has without computing it."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from stages.core import layout
from tests import servers, stubs
from tests.conftest import ROOT, git
from tests.versions.projects import Project, artifact, evaluated, samples

pytestmark = pytest.mark.slow


class Remote(NamedTuple):
    """What .dvc/config.local says of it, and what the environment of a command must say."""

    configuration: str
    environment: dict[str, str]

    @classmethod
    def added(cls, project: Path, url: str, environment: dict[str, str], **settings: str) -> "Remote":
        """One that DVC's own calls add, as the README has them; the project is left as it was."""
        dvc(project, environment, "remote", "add", "--local", "--default", "store", url)
        for name, value in settings.items():
            dvc(project, environment, "remote", "modify", "--local", "store", name, value)
        local = project / ".dvc/config.local"
        configuration = local.read_text()
        local.unlink()
        return cls(configuration, environment)


class Clone(NamedTuple):
    """A clone, the file that its stages note their runs in, and what the environment of its commands says."""

    folder: Path
    runs: Path
    environment: dict[str, str]

    @classmethod
    def made(cls, source: Path, folder: Path, remote: Remote | None = None) -> "Clone":
        """A new one, where Git knows who commits; the remote stands in its .dvc/config.local."""
        git(folder.parent, "clone", "--quiet", str(source), folder.name)
        for name, value in (("user.name", "test"), ("user.email", "test@localhost"), ("commit.gpgsign", "false")):
            git(folder, "config", name, value)
        runs = folder.parent / f"{folder.name} runs"
        # What DVC remembers of remotes goes by the clone's path, which another run of the tests may have used.
        site = str(folder.parent / f"{folder.name} site")
        self = cls(folder, runs, {"LEASH_RUNS": str(runs), "DVC_SITE_CACHE_DIR": site})
        if remote:
            self.attach(remote)
        return self

    def attach(self, remote: Remote) -> None:
        (self.folder / ".dvc/config.local").write_text(remote.configuration)
        self.environment.update(remote.environment)

    def fill(self, source: Path) -> None:
        """Gives it the outputs of the project that it is a clone of, in its cache and in their places."""
        shutil.copytree(source / ".dvc/cache", self.folder / ".dvc/cache")
        shutil.copytree(source / "artifacts", self.folder / "artifacts", dirs_exist_ok=True)

    def run(self, *module: str) -> subprocess.CompletedProcess[str]:
        return stubs.run(self.folder, *module, **self.environment)

    def dvc(self, *arguments: str) -> str:
        return dvc(self.folder, self.environment, *arguments)

    def ran(self) -> list[str]:
        return self.runs.read_text().split() if self.runs.is_file() else []

    def outputs(self) -> dict[str, bytes]:
        return contents(self.folder / "artifacts")


def dvc(folder: Path, environment: dict[str, str], *arguments: str) -> str:
    """What a call of DVC prints that ends well."""
    done = stubs.run(folder, "dvc", *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def first(stub_project: Path, tmp_path: Path) -> Clone:
    """A clone with the outputs of the project's run."""
    clone = Clone.made(stub_project, tmp_path / "first")
    clone.fill(stub_project)
    return clone


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with two versions that can be compared, `first` and `second`; to be cloned."""
    project = Project.begun(tmp_path_factory.mktemp("history") / "project")
    project.commit("first")
    project.artifact(layout.POLICY, artifact(seed=1))
    project.samples(samples(policy="second", gain=0.5))
    project.report("evaluate", evaluated(reward_gain=0.75))
    project.commit("second")
    return project.folder


@pytest.fixture(scope="module", params=["folder", "s3", "ssh"])
def remote(request: pytest.FixtureRequest, stub_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    """Each kind of remote, empty, with its server running."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "folder":
        yield Remote.added(stub_project, str(folder / "store"), {})
    elif request.param == "s3":
        with servers.s3(folder, "leash") as server:
            yield Remote.added(stub_project, "s3://leash/project", server.environment, endpointurl=server.url)
    else:
        try:
            with servers.ssh(folder) as server:
                url = f"ssh://{server.user}@127.0.0.1:{server.port}{folder}/store"
                yield Remote.added(stub_project, url, {}, keyfile=str(server.key))
        except servers.UnavailableError as error:
            pytest.skip(str(error))


def shelf(folder: Path) -> Remote:
    """A remote that is a folder."""
    return Remote(f"[core]\n    remote = store\n['remote \"store\"']\n    url = {folder / 'store'}\n", {})


def test_a_clone_that_pulls_reruns_nothing(first: Clone, remote: Remote, tmp_path: Path):
    first.attach(remote)
    assert re.search(r"^\d+ files pushed", first.dvc("push"), re.MULTILINE)

    second = Clone.made(first.folder, tmp_path / "second", remote)
    assert second.outputs() == {}
    second.dvc("pull")
    second.dvc("status", "--quiet")
    assert second.dvc("repro").splitlines()[-1] == "Data and pipelines are up to date."
    assert second.ran() == []
    assert second.outputs() == first.outputs() != {}
    assert second.dvc("status", "--cloud") == "Cache and remote 'store' are in sync.\n"
    assert git(second.folder, "status", "--porcelain") == ""


def test_a_clone_without_outputs_compares_versions_from_the_remote(history: Path, remote: Remote, tmp_path: Path):
    first = Clone.made(history, tmp_path / "first", remote)
    first.fill(history)
    first.dvc("push", "--quiet", "--all-commits")
    second = Clone.made(history, tmp_path / "second", remote)
    assert comparison(second.folder, second.environment) == comparison(history, {})
    assert contents(second.folder / "artifacts") == {}


def comparison(folder: Path, environment: dict[str, str]) -> dict:
    done = stubs.run(folder, "stages.compare", "first", "second", "--json", PYTHONPATH=str(ROOT), **environment)
    assert done.returncode == 0, done.stderr
    assert "neither in the cache nor in a remote" not in done.stdout
    return json.loads(done.stdout)


def test_versions_from_before_a_committed_remote_are_left_out_of_a_push_in_silence_and_a_local_one_has_them_all(
    history: Path, tmp_path: Path
):
    clone = Clone.made(history, tmp_path / "clone")
    clone.fill(history)
    clone.dvc("remote", "add", "--default", "store", str(tmp_path / "store"))
    git(clone.folder, "commit", "--quiet", "--all", "--message=a remote")
    done = clone.run("dvc", "push", "--all-commits")
    assert (done.returncode, done.stderr) == (0, "")
    pushed, kept = contents(tmp_path / "store/files"), contents(clone.folder / ".dvc/cache/files")
    assert pushed.items() < kept.items()
    clone.attach(shelf(tmp_path))
    clone.dvc("push", "--all-commits")
    assert contents(tmp_path / "store/files") == kept


def test_an_experiment_of_a_sweep_goes_from_clone_to_clone(stub_project: Path, first: Clone, tmp_path: Path):
    git(tmp_path, "clone", "--quiet", "--bare", str(stub_project), "bare.git")
    git(first.folder, "remote", "set-url", "origin", str(tmp_path / "bare.git"))
    first.attach(shelf(tmp_path))
    done = first.run("stages.sweep", "grpo.beta=0.2")
    assert done.returncode == 0, done.stderr
    (name,) = set(re.findall(r"sweep-\w+", done.stdout))
    first.dvc("exp", "push", "origin", name)
    first.dvc("exp", "apply", name)

    second = Clone.made(tmp_path / "bare.git", tmp_path / "second", shelf(tmp_path))
    second.dvc("exp", "pull", "origin", name)
    assert second.dvc("exp", "list", "--name-only").split() == [name]
    second.dvc("exp", "apply", name)
    second.dvc("status", "--quiet")
    assert second.outputs() == first.outputs()
    assert '"beta": 0.2' in second.outputs()["grpo/policy.json"].decode()
    assert json.loads((second.folder / "reports/evaluate.json").read_bytes())["reward_gain"] == 10.0  # 0.2 · 10 + rank 8


# A model that a tag registers


def got(clone: Clone, source: str, *arguments: str) -> dict:
    """The settings of the reward model that `dvc artifacts get` brings, which is what such a stage writes."""
    target = clone.folder / "got"
    shutil.rmtree(target, ignore_errors=True)
    clone.dvc("artifacts", "get", source, "reward-model", "-o", "got", *arguments)
    assert [path.name for path in target.iterdir()] == ["reward.json"]
    return json.loads((target / "reward.json").read_bytes())


def test_a_model_registered_by_a_tag_is_had_as_it_was_here_in_another_clone_and_without_one(first: Clone, tmp_path: Path):
    git(first.folder, "tag", "reward-model@v0.1.0")
    done = first.run("dvc", "artifacts", "get", ".", "reward-model", "--rev", "v0.1.0", "-o", "got")
    assert done.returncode != 0  # only a tag that is annotated registers anything
    assert "Unable to find artifact 'reward-model @ v0.1.0'" in done.stderr
    git(first.folder, "tag", "--force", "--annotate", "reward-model@v0.1.0", "--message=rank 8")
    assert first.run("stages.compose", "reward.rank=4").returncode == 0
    first.dvc("repro", "--quiet", "reward")
    git(first.folder, "commit", "--quiet", "--all", "--message=rank 4")
    assert got(first, ".", "--rev", "v0.1.0")["rank"] == 8
    git(first.folder, "tag", "--annotate", "reward-model@v0.2.0", "--message=rank 4")
    assert got(first, ".")["rank"] == 4  # the highest version
    assert json.loads((first.folder / "artifacts/reward/reward.json").read_bytes())["rank"] == 4

    first.attach(shelf(tmp_path))
    first.dvc("push", "--quiet", "--all-tags")
    second = Clone.made(first.folder, tmp_path / "second", shelf(tmp_path))
    assert got(second, ".", "--rev", "v0.1.0")["rank"] == 8
    assert second.outputs() == {}
    # from a repository that says nothing of the remote
    git(tmp_path, "clone", "--quiet", "--bare", str(first.folder), "bare.git")
    assert got(second, str(tmp_path / "bare.git"), "--rev", "v0.1.0", "--config", ".dvc/config.local")["rank"] == 8
