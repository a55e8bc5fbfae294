"""An OpenAPI document as one page of HTML: paths with the fields of requests and all answers, and schemas. No script, nothing to fetch.

Everything from the document is escaped.
"""

import json
from collections.abc import Iterable
from html import escape
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24; background: #fff; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { background: #f4f6f8; padding: .7rem; overflow-x: auto; border-radius: 4px; }
h2 { margin-top: 2.5rem; border-top: 1px solid #d5dae0; padding-top: 1rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0; }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #e6eaee; }
th { font-weight: 600; }
.verb { background: #1b1f24; color: #fff; border-radius: 3px; padding: .1rem .4rem; margin-right: .4rem; }
@media (prefers-color-scheme: dark) {
  body { color: #dfe3e8; background: #14171a; } pre { background: #1e2328; } h2 { border-color: #343b43; } th, td { border-color: #2a3037; }
  .verb { background: #dfe3e8; color: #14171a; } a { color: #7ab7ff; }
}
"""


def page(document: dict[str, Any], source: str = "/openapi.json") -> bytes:
    """The page, in UTF-8. source: where the document itself is served."""
    info, schemas = document["info"], document["components"]["schemas"]
    title = escape(f"{info['title']} {info['version']}")
    paths = [(path, verb, operation) for path, verbs in document["paths"].items() for verb, operation in verbs.items()]
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>',
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1><p>{_text(info['description'])}</p>",
        f'<p><a href="{escape(source)}">{escape(source)}</a></p>',
        _table(
            (),
            (
                (f'<a href="#{_anchor(verb + path)}">{verb.upper()} <code>{escape(path)}</code></a>', escape(it["summary"]))
                for path, verb, it in paths
            ),
        ),
        *(_operation(path, verb, operation, schemas) for path, verb, operation in paths),
        '<h2 id="schemas">Schemas</h2>',
        *(f'<h3 id="{_anchor(name)}">{escape(name)}</h3>{_pre(schema)}' for name, schema in sorted(schemas.items())),
        "</body></html>",
    ]
    return "\n".join(parts).encode()


def _operation(path: str, verb: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    parts = [
        f'<h2 id="{_anchor(verb + path)}"><code class="verb">{verb.upper()}</code><code>{escape(path)}</code></h2>',
        f"<p>{escape(operation['summary'])}</p>",
    ]
    if "parameters" in operation:
        rows = ((f"<code>{escape(it['name'])}</code>", _type(it["schema"]), _text(it.get("description", ""))) for it in operation["parameters"])
        parts.append("<h3>Parameters</h3>" + _table(("parameter", "type", ""), rows))
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        body = schemas[_name(next(each for each in schema.get("anyOf", [schema]) if "$ref" in each))]  # one that may be left out may be null
        rows = (
            (f"<code>{escape(name)}</code>", _type(each), "yes" if name in body.get("required", ()) else "")
            for name, each in body["properties"].items()
        )
        parts.append("<h3>Request</h3>" + _table(("field", "type", "required"), rows))
    rows_of_answers = []
    for status, response in operation["responses"].items():
        forms = [f"{escape(media)}: {_type(it.get('x-event', it['schema']))}" for media, it in response["content"].items()]
        rows_of_answers.append((f"<code>{escape(status)}</code>", _text(response["description"]), "<br>".join(forms)))
    return "".join([*parts, "<h3>Answers</h3>", _table(("status", "", "body"), rows_of_answers)])


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = _name(schema)
        return f'<a href="#{_anchor(name)}">{escape(name)}</a>'
    if "allOf" in schema:
        return _type(schema["allOf"][0])
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"] if each != {"type": "null"})
    if schema.get("type") == "array":
        return "list of " + _type(schema.get("items", {}))
    if "enum" in schema:
        return escape(", ".join(json.dumps(value) for value in schema["enum"]))
    bounds = [f"{sign} {schema[name]}" for name, sign in (("minimum", "&ge;"), ("maximum", "&le;")) if name in schema]
    return " ".join([escape(str(schema.get("type", "any"))), *bounds])


def _name(schema: dict[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _anchor(text: str) -> str:
    return escape(text.strip("/").replace("/", "-"), quote=True)


def _text(text: str) -> str:
    """Text in which code stands between backticks."""
    pieces = escape(text).split("`")
    return "".join(piece if i % 2 == 0 else f"<code>{piece}</code>" for i, piece in enumerate(pieces))


def _pre(schema: Any) -> str:
    return f"<pre>{escape(json.dumps(schema, indent=2, ensure_ascii=False))}</pre>"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Cells are HTML."""
    first = f"<tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr>" if head else ""
    return f"<table>{first}{''.join('<tr>' + ''.join(f'<td>{cell}</td>' for cell in row) + '</tr>' for row in rows)}</table>"
