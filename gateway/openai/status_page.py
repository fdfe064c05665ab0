"""GET /: one plain page for a person who wants to know whether this server works."""

import html
from collections.abc import Sequence

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

import octavo
from gateway.core.generation import ModelEntry, ServingState
from gateway.openai.load import Load
from gateway.openai.service import Service

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="5">
<meta name="viewport" content="width=device-width">
<title>Octavo</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 44em; margin: 3em auto; padding: 0 1em; color: #222 }}
th {{ text-align: left; padding-right: 2em; font-weight: normal; color: #666; vertical-align: top }}
td {{ font-variant-numeric: tabular-nums }}
code {{ background: #f4f4f4; padding: 0 .3em }}
</style>
<h1>Octavo {version}</h1>
<table>
{rows}
</table>
<p>The API is at <code>/v1</code>: <a href="/v1/models">models</a>, <code>POST /v1/chat/completions</code>,
<code>POST /v1/completions</code>. For machines: <a href="/health">health</a>, <a href="/metrics">metrics</a>,
<a href="/load">load</a>.</p>
</html>
"""


def router(service: Service) -> APIRouter:
    """The page."""
    routes = APIRouter()

    @routes.get("/")
    async def status_page() -> Response:
        generator = service.generator
        return HTMLResponse(page(generator.models(), generator.serving_state, load=service.load))

    return routes


def page(models: Sequence[ModelEntry], state: ServingState, *, load: Load) -> str:
    """The page as HTML; it reloads itself and needs nothing from elsewhere."""
    rows = [(f"Model {model.name}", _about(model)) for model in models]
    rows += [
        ("Ready", "yes" if state.is_ready else f"no: {state.reason}"),
        ("HTTP requests", f"{load.num_running} running, {load.num_waiting} waiting, {load.num_finished} finished"),
        ("Prompt tokens", f"{load.num_prompt_tokens:,}, {_share(load)} of them from the prefix cache"),
        ("Generated tokens", f"{load.num_completion_tokens:,}"),
        ("KV cache", f"{state.num_blocks:,} blocks of {state.block_size} tokens"),
    ]
    cells = [f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows]
    return _PAGE.format(version=octavo.__version__, rows="\n".join(cells))


def _about(model: ModelEntry) -> str:
    also = f"; also called {', '.join(model.aliases)}" if model.aliases else ""
    return f"up to {model.max_model_len:,} tokens{also}"


def _share(load: Load) -> str:
    return f"{load.num_cached_tokens / load.num_prompt_tokens:.0%}" if load.num_prompt_tokens else "none"
