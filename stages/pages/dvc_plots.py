"""The page that `dvc plots show` fills, with the plotting library inside; DVC's own fetches it from a server.

usage    python -m stages.pages.dvc_plots FILE, which `make setup` runs
"""

import sys
from pathlib import Path

import vl_convert

from stages.core.atomic import write_bytes

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{{refresh_tag}}
<title>DVC plots</title>
<script>{script}</script>
<style>body {{ font-family: system-ui, sans-serif; }} body > div {{ display: inline-block; vertical-align: top; margin: 1rem; }}</style>
</head>
<body>
{{plot_divs}}
</body>
</html>
"""
"""DVC puts its plots where `plot_divs` stands; where its scripts would, it finds nothing to put them."""


def template() -> str:
    """The page, before DVC fills it."""
    return PAGE.format(
        script=vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version="5.21").replace("</script", "<\\/script")
    )


if __name__ == "__main__":
    write_bytes(Path(sys.argv[1]), template().encode())
