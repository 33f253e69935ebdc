"""The page: whole, escaped, and in need of nothing beside it."""

import re
from html.parser import HTMLParser

from stages.versions import comparison_html, completions
from stages.versions.rows import Row, RowChange
from tests.versions.pages import HTML, MARKUP, comparison, interval, same
from tests.versions.projects import MODULES, PROMPTS, samples

VOID = {"meta", "br"}


class Reader(HTMLParser):
    """What a browser would see: the text, the tags, and whether every tag that opens is closed in its turn."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page.decode())
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def test_it_says_all_that_the_text_says_and_every_draw():
    page = Reader(comparison_html.render(comparison()))
    for name in ("grpo.beta", "0.04", "changes numbers by rounding alone", "evaluate.reward_gain", "0.5 [0.25, 0.75]", "+0.5"):
        assert name in page.text
    for module in MODULES:
        assert f"base_model.model.{module}.lora_A.weight" in page.text
    for place, prompt in enumerate(PROMPTS):
        assert prompt in page.text
        for draw in range(2):
            for text in (f"{MARKUP} writes {place} {draw}", f"{HTML} writes {place} {draw}", f"base writes {place} {draw}"):
                assert text in page.text
    assert "user: hello" in page.text


def test_what_is_in_a_text_is_escaped():
    content = comparison_html.render(comparison())
    assert b"<script" not in content
    assert b"&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &lt;b&gt;" in content
    assert "script" not in Reader(content).tags


def test_what_is_no_character_of_a_page_or_turns_its_text_is_written_out():
    turned = [{**row, "policy": "a\x1b[31m\x00\u202eb\nc"} for row in samples(["p"], draws=1)]
    content = comparison_html.render(comparison(heldout=completions.compare(turned, turned, "x", interval))).decode()
    assert not set("\x00\x1b\u202e") & set(content)
    assert "a\\x1b[31m\\x00\\u202eb\nc" in content


def test_it_needs_no_network_and_no_script():
    content = comparison_html.render(comparison(rows=[], heldout=None))
    assert not re.search(rb"https?:|//|url\(|@import|src=|href=", content)
    page = Reader(content)
    assert not page.tags & {"script", "link", "img", "iframe"}
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_it_is_readable_in_the_dark_and_on_a_phone():
    content = comparison_html.render(comparison()).decode()
    assert "prefers-color-scheme: dark" in content
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in content
    assert content.count("<table>") == content.count('<div class="wide"><table>')


def test_the_bases_completion_stands_once_where_both_sides_have_the_same():
    same_base = completions.compare(samples(["p"], draws=1), samples(["p"], draws=1, policy="second"), "x", interval)
    assert comparison_html.render(comparison(heldout=same_base)).count(b"base writes 0 0") == 1
    other = [{**row, "base": "another base"} for row in samples(["p"], draws=1)]
    both = comparison_html.render(comparison(heldout=completions.compare(samples(["p"], draws=1), other, "x", interval)))
    assert (both.count(b"base writes 0 0"), both.count(b"another base")) == (1, 1)


def test_new_completions_have_no_base():
    rows = [{"prompt": "p", "draw": 0, "policy": "new words", "policy_reward": 1.0}]
    fresh = completions.compare(rows, rows, "B's reward model", interval)
    page = Reader(comparison_html.render(comparison(heldout=None, fresh=[fresh])))
    assert page.text.count("new words") == 2
    assert "Fresh completions" in page.text


def test_beyond_a_thousand_rows_there_is_a_count():
    many = [Row("train", {"prompt": f"row {number}."}) for number in range(1003)]
    page = Reader(comparison_html.render(comparison(rows=[RowChange("prompts", many, [], [])])))
    assert ("row 999." in page.text, "row 1000." in page.text) == (True, False)
    assert "... and 3 more; --json has all" in page.text


def test_equal_versions_and_missing_parts_make_a_page_too():
    assert "Nothing differs" in Reader(comparison_html.render(same())).text
    bare = comparison(settings=None, base=None, metrics=[], artifacts=[], rows=[], heldout=None, unavailable=["<gone>"])
    assert "<gone>" in Reader(comparison_html.render(bare)).text


def test_a_lone_surrogate_does_not_break_the_page():
    rows = [{"prompt": "\ud800", "draw": 0, "policy": "x", "policy_reward": 1.0}]
    comparison_html.render(comparison(fresh=[completions.compare(rows, rows, "x", interval)]))
