"""What all pages share: their frame and style, that every text in them is escaped, and that a browser fetches nothing for them."""

import base64
import hashlib
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from stages.core import wording

HERE = Path(__file__).parent
STYLE = HERE / "frame.css"


def render(template: Path, style: Path | None = None, script: Path | None = None, **shown: Any) -> bytes:
    """The page, in UTF-8: a template that extends `frame.html.jinja`, with a style and a script of its own where it has them.

    The page's own policy has a browser run that one script, and fetch nothing.
    """
    code = script.read_text("utf-8") if script else ""
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    allowed = f"'sha256-{digest}'" if code else "'none'"
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, HERE]),
        autoescape=True,
        finalize=_seen,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    css = "".join(path.read_text("utf-8") for path in (STYLE, style) if path)
    page = environment.get_template(template.name).render(
        policy=Markup(policy), style=Markup(css), script=Markup(code), wording=wording, **shown
    )
    return page.encode("utf-8", "replace")


def _seen(value: Any) -> Any:
    return wording.seen(value) if type(value) is str else value
