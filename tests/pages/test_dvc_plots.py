"""The page that `dvc plots show` fills."""

import re

from stages.pages import dvc_plots


def test_the_page_holds_its_library_and_the_places_that_dvc_fills():
    page = dvc_plots.template()
    assert page.count("{plot_divs}") == page.count("{refresh_tag}") == 1
    assert "{scripts}" not in page
    assert "window.vegaEmbed=" in page
    assert len(page) < 2_000_000
    assert not re.search(r"<script[^>]+src=", page)
    assert page.count("</script") == 1
