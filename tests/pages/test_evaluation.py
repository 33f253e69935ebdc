"""The page of an evaluation: all of it is there, escaped, in the order of what changed most, and in need of nothing."""

import re
from html.parser import HTMLParser

from stages.pages import evaluation, frame
from tests.pages import measured
from tests.pages.measured import HTML, PROMPTS


class Reader(HTMLParser):
    """What a browser would see: the text, the tags with their attributes, and whether every tag is closed in its turn."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.rows: list[dict[str, str | None]] = []
        self.text = ""
        self.feed(page.decode())
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attributes)
        if "data-gain" in found:
            self.rows.append(found)
        if tag not in ("meta", "br", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.text += data


def page(**changes) -> Reader:
    return Reader(evaluation.render(measured.measured(**changes)))


def test_both_completions_of_every_draw_of_every_prompt_are_there_with_their_rewards():
    found = page()
    for number, prompt in enumerate(PROMPTS):
        assert found.text.count(prompt) == 2
        for draw in range(2):
            assert f"base says {number} {draw}" in found.text
            assert f"policy says {number} {draw}" in found.text
    assert len(found.rows) == 6


def test_the_largest_gains_and_losses_stand_first():
    rows = page().rows
    assert [float(row["data-gain"]) for row in rows] == [3.0, 2.0, -1.5, 1.0, -1.0, -0.5]
    assert [row["data-number"] for row in rows[:3]] == ["3.000000", "2.000000", "3.000001"]
    assert all(float(row["data-policy"]) == float(row["data-base"]) + float(row["data-gain"]) for row in rows)


def test_verdict_warnings_figures_settings_and_provenance_are_told():
    found = page(evaluated=measured.evaluated(mean_kl=2.0, training_reward_gain=0.25))
    for words in ("The policy got better", "the KL to the base has blown up", "0.9 [0.81, 0.99]", "beta", "0.04", "f" * 64, "2.13.0"):
        assert words in found.text
    assert "gain by the reward that was trained on" in found.text
    assert "gain by the reward that was trained on" not in page().text


def test_every_curve_and_both_charts_of_the_pairs_are_drawn():
    found = page()
    assert found.tags.count("svg") == 7 + 4 + 2
    parts = [{**row, "part_answer": 0.5, "part_short": None} for row in measured.curve(3, "mean_reward", "reward_spread")]
    assert "mean reward, answer alone" in page(curves={"grpo": parts, "reward": measured.curve(2, "loss")}).text


def test_what_is_in_a_text_is_escaped_and_the_one_script_is_ours():
    content = evaluation.render(measured.measured())
    assert content.count(b"<script>") == 1
    assert b"&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &lt;b&gt;" in content
    assert HTML in page().text


def test_the_rewards_that_were_trained_on_stand_beside():
    rows = measured.samples(
        draws=1,
        training_base_reward=0.125,
        training_policy_reward=None,
        training_base_parts={"answer": 1.0},
        training_policy_parts={"answer": None},
    )
    found = page(samples=rows).text
    assert "0.25; trained on 0.125; answer 1" in found
    assert "trained on -; answer -" in found


def test_a_conversation_is_a_line_for_each_turn_and_equal_prompts_are_apart():
    turns = [{"role": "system", "content": "be calm"}, {"role": "user", "content": "hello"}]
    found = page(samples=measured.samples([turns, "same", "same"], draws=2))
    assert "system: be calm\nuser: hello" in found.text
    assert {row["data-number"].split(".")[0] for row in found.rows} == {"1", "2", "3"}


def test_where_nothing_is_held_out_the_page_says_so():
    nulls = dict.fromkeys([key for key in measured.evaluated() if key not in ("evaluated_prompts", "max_new_tokens", "training_reward")])
    found = page(evaluated=measured.evaluated(**nulls, evaluated_prompts=0), samples=[], margins=[])
    assert "No prompt was held out" in found.text
    assert "No pair was held out" in found.text
    assert found.rows == []


def test_nothing_is_fetched_and_only_the_pages_own_script_may_run():
    content = evaluation.render(measured.measured()).decode()
    assert not re.search(r"(?:src|href)=|@import|url\(", content.replace("xmlns", ""))
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" in content
    assert "prefers-color-scheme: dark" in content
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in content
    assert frame.STYLE.read_text().strip() in content


def test_the_same_evaluation_gives_the_same_bytes():
    assert evaluation.render(measured.measured()) == evaluation.render(measured.measured())


def test_a_lone_surrogate_and_control_characters_do_not_break_the_page():
    found = page(samples=measured.samples(["\ud800 a\x1b[31m\x00\u202eb"]))
    assert not set("\x00\x1b\u202e") & set(found.text)
