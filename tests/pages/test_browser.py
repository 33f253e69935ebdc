"""The pages in headless Chromium, opened from the file system with the network off."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from stages.pages import dvc_plots, evaluation
from tests.pages import measured

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium")
PHONE = {"viewport": {"width": 390, "height": 800}, "is_mobile": True, "has_touch": True}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Any]:
    """Opens a page from its file, and fails where the browser says anything or asks for anything else."""
    said: list[str] = []
    asked: list[str] = []
    contexts = []

    def opening(file: Path | None = None, **options: Any) -> Page:
        if file is None:
            file = tmp_path / "report.html"
            file.write_bytes(evaluation.render(measured.measured()))
        contexts.append(context := browser.new_context(offline=True, **options))
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        return page

    yield opening
    for context in contexts:
        context.close()
    assert said == []
    assert all(url.startswith("file:") and url.endswith("report.html") for url in asked)


def prompts(page: Page) -> list[str]:
    """The prompt and draw of each row that is shown, in order."""
    rows = page.locator("#table tbody tr:visible td:first-child .faint")
    return [text.removeprefix("prompt ").replace(", draw ", ".") for text in rows.all_inner_texts()]


def test_it_opens_offline_without_a_word_and_shows_every_draw(opened: Any):
    page = opened()
    assert page.title().startswith("Evaluation: The policy got better")
    assert prompts(page) == ["3.0", "2.0", "3.1", "1.0", "2.1", "1.1"]
    assert page.locator("svg").count() == 13
    # a text of the data that is markup is text
    assert page.locator("td", has_text="<script>alert").count() == 2


def test_a_press_on_a_head_sorts_and_another_turns_it_round(opened: Any):
    page = opened()
    gain = page.get_by_role("button", name="gain", exact=True)
    gain.click()
    assert prompts(page) == ["3.0", "2.0", "1.0", "1.1", "2.1", "3.1"]
    assert page.locator("th[data-key=gain]").get_attribute("aria-sort") == "descending"
    gain.click()
    assert prompts(page) == ["3.1", "2.1", "1.1", "1.0", "2.0", "3.0"]
    assert page.locator("th[aria-sort]").count() == 1
    page.get_by_role("button", name="prompt", exact=True).click()
    assert prompts(page) == ["1.0", "1.1", "2.0", "2.1", "3.0", "3.1"]


def test_the_search_keeps_the_rows_that_hold_every_word(opened: Any):
    page = opened()
    page.get_by_label("search").fill("THIRD policy")
    assert prompts(page) == ["3.0", "3.1"]
    assert page.locator("#found").inner_text() == "2 of 6"
    page.get_by_label("search").fill("third nowhere")
    assert prompts(page) == []
    page.get_by_label("search").fill("")
    assert page.locator("#found").inner_text() == "6 of 6"


def test_the_keyboard_alone_searches_and_sorts(opened: Any):
    page = opened()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "search":
            break
    page.keyboard.type("calm")
    assert prompts(page) == ["1.0", "1.1"]
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "prompt"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert prompts(page) == ["1.1", "1.0"]


def pixels(page: Page, file: Path) -> Any:
    page.screenshot(path=file)
    return np.asarray(Image.open(file).convert("RGB"), dtype=float)


def test_it_is_light_or_dark_as_the_reader_likes_it_and_its_curves_are_seen_in_both(opened: Any, tmp_path: Path):
    for scheme, paper, ink in (("light", (253, 253, 252), (28, 30, 33)), ("dark", (23, 24, 26), (228, 229, 231))):
        page = opened(color_scheme=scheme)
        shot = pixels(page, tmp_path / f"{scheme}.png")
        near = {name: (np.abs(shot - colour).max(axis=2) < 12).mean() for name, colour in (("paper", paper), ("ink", ink))}
        assert near["paper"] > 0.6
        assert near["ink"] > 0.001
        chart = page.locator(".chart").nth(1)
        chart.scroll_into_view_if_needed()
        chart.screenshot(path=tmp_path / "chart.png")
        drawn = np.asarray(Image.open(tmp_path / "chart.png").convert("RGB"), dtype=float)
        blue = drawn[..., 2] - drawn[..., 0] > 60
        assert 100 < blue.sum() < blue.size / 4
        assert blue.any(axis=0).mean() > 0.5  # a line from one side to the other


def test_on_a_phone_nothing_is_wider_than_the_screen(opened: Any):
    page = opened(**PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    row = page.locator("#table tbody tr").first
    boxes = [cell.bounding_box() for cell in row.locator("td").all()]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes)
    assert len({round(box["y"]) for box in boxes}) == 5  # cells stand under each other
    assert page.get_by_role("button", name="gain", exact=True).is_visible()


def test_dvcs_own_plots_open_offline_with_the_library_in_their_page(browser: Browser, tmp_path: Path):
    for command in (["git", "init", "-q"], ["dvc", "init", "-q"]):
        subprocess.run(command, cwd=tmp_path, check=True)
    (tmp_path / ".dvc/tmp").mkdir(exist_ok=True)
    (tmp_path / ".dvc/tmp/plots.html").write_text(dvc_plots.template())
    (tmp_path / "curve.csv").write_text("step,loss\n1,0.5\n2,0.25\n3,0.2\n")
    (tmp_path / "dvc.yaml").write_text("plots:\n  - losses:\n      x: step\n      y: {curve.csv: loss}\n")
    subprocess.run(["dvc", "config", "--local", "plots.html_template", "tmp/plots.html"], cwd=tmp_path, check=True)
    subprocess.run(["dvc", "plots", "show"], cwd=tmp_path, check=True, capture_output=True)
    context = browser.new_context(offline=True)
    page = context.new_page()
    asked, errors = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "dvc_plots/index.html").as_uri())
    page.wait_for_selector(".vega-embed canvas, .vega-embed svg")
    assert "losses" in page.content()
    assert [url for url in asked if not url.startswith("file:")] == errors == []
    context.close()


def test_where_nothing_is_held_out_it_opens_too(opened: Any, tmp_path: Path):
    nulls = dict.fromkeys([key for key in measured.evaluated() if key not in ("evaluated_prompts", "max_new_tokens", "training_reward")])
    file = tmp_path / "empty" / "report.html"
    file.parent.mkdir()
    empty = measured.measured(evaluated=measured.evaluated(**nulls, evaluated_prompts=0), samples=[], margins=[])
    file.write_bytes(evaluation.render(empty))
    page = opened(file)
    assert page.locator("#table").count() == 0
