"""JSON Schema (2020-12) of every message kind, from the classes themselves. Pure.

A producer or reader in any other language works from schemas/json alone, so the classes' prose
travels along. `python -m schemas.export` writes that folder again; only its last lines, which run
as a command and never on import, touch files.

What is written outside of Headway (requests, cancels, policies, profiles) is described as it is
accepted: a field with a default may be left out. All else is described as it is written: every
field is there, and a reader must let fields pass that it does not know.
"""

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal, cast, get_args, get_type_hints

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from schemas.codec import BusMessage
from schemas.decisions import Decision
from schemas.embeddings import EmbeddingRequest
from schemas.facts import Fact
from schemas.ledger import Entry
from schemas.policy_form import form_schema
from schemas.requests import Cancel, InferenceRequest

DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Added to each ledger line by the codec; no field of the class.
CHAIN_SCHEMA = {
    "description": "A digest over the line and the chain of the line before it; the last field.",
    "pattern": "^[0-9a-f]{16}$",
    "type": "string",
}

_WRITTEN_OUTSIDE = {
    "policy.v1",
    "profile.v1",
    "batch-job.v1",
    "batch-items.v1",
    "batch-control.v1",
}

Group = Literal["request", "fact", "decision", "entry", "bus"]


@dataclass(frozen=True, slots=True)
class MessageKind:
    """One kind and version of message.

    Attributes:
        name: as in the message's field `kind`. group: which of the unions has it.
        written_outside: producers or operators write it, not Headway.
    """

    name: str
    cls: type[Any]
    group: Group
    written_outside: bool

    def adapter(self) -> TypeAdapter[Any]:
        """Return what reads and writes a message of this kind, standing alone."""
        return TypeAdapter(self.cls)

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of this kind."""
        schema = self.adapter().json_schema(
            mode="validation" if self.written_outside else "serialization",
            schema_generator=_Generator,
        )
        schema["title"] = self.name
        if self.group == "entry":
            schema["properties"]["chain"] = CHAIN_SCHEMA
            schema["required"].append("chain")
        return {"$schema": DIALECT, **schema}

    def json_text(self) -> str:
        """Return the contents of this kind's file in schemas/json."""
        return json.dumps(self.json_schema(), indent=2, ensure_ascii=False) + "\n"


class _Generator(GenerateJsonSchema):
    """Pydantic's generator, with the docstrings' prose and without titles made from names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        del schema
        return False

    def field_is_required(self, field: Any, total: bool) -> bool:  # noqa: FBT001 - pydantic's form
        # What is left out where it has its default need not be there.
        written = self.mode == "serialization" and "serialization_exclude_if" not in field
        return written or super().field_is_required(field, total)

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        # A message that Headway wrote has every field: its reader need not know the defaults.
        result = super().default_schema(schema)
        if self.mode == "serialization":
            result.pop("default", None)
        return result

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        cls = schema["cls"]
        names = [field.name for field in fields(cls)]
        summary, notes = _prose(cls, names)
        result = super().dataclass_schema(schema)
        result["description"] = summary
        for name, note in notes.items():
            result["properties"][name]["description"] = note
        if "kind" in names:
            # The class has a default for it, but the wire does not: it tells the kinds apart.
            result["properties"]["kind"].pop("default", None)
            required = [name for name in result.get("required", ()) if name != "kind"]
            result["required"] = ["kind", *required]
        return result


def _prose(cls: type[Any], names: list[str]) -> tuple[str, dict[str, str]]:
    """Return the class's description, and what its docstring says of single fields."""
    text = re.sub(r"\bNone\b", "null", inspect.cleandoc(str(cls.__doc__)))
    summary, _, section = text.partition("\n\nAttributes:\n")
    some_name = "(?:" + "|".join(names) + ")"
    # "seq: …" or "layers, kv_heads: …", at the start of a line or behind a full stop.
    parts = re.split(rf"(?:^|(?<=\. ))({some_name}(?:, {some_name})*): ", " ".join(section.split()))
    notes: dict[str, str] = {}
    for listed, note in zip(parts[1::2], parts[2::2], strict=True):
        notes |= dict.fromkeys(listed.split(", "), note.strip())
    return summary, notes


def _registry() -> Mapping[str, MessageKind]:
    groups: dict[Group, tuple[type[Any], ...]] = {
        "request": (InferenceRequest, EmbeddingRequest, Cancel),
        "fact": get_args(Fact),
        "decision": get_args(Decision),
        "entry": (Entry,),
        "bus": get_args(BusMessage),
    }
    kinds: dict[str, MessageKind] = {}
    for group, classes in groups.items():
        for cls in classes:
            (name,) = cast("tuple[str]", get_args(get_type_hints(cls)["kind"]))
            outside = group == "request" or name in _WRITTEN_OUTSIDE
            kinds[name] = MessageKind(name, cls, group, outside)
    return MappingProxyType(kinds)


# Every message kind by its name.
SCHEMAS = _registry()


def files() -> dict[str, str]:
    """Return the contents of schemas/json by file name: every kind, and the form of a policy."""
    form = {"$schema": DIALECT, **form_schema()}
    texts = {f"{kind.name}.json": kind.json_text() for kind in SCHEMAS.values()}
    texts["policy-file.json"] = json.dumps(form, indent=2, ensure_ascii=False) + "\n"
    return texts


if __name__ == "__main__":  # pragma: no cover - a test runs it as a process of its own
    from argparse import ArgumentParser
    from pathlib import Path

    parser = ArgumentParser(description="Write the JSON Schema of every message kind.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).with_name("json"))
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for file_name, text in files().items():
        (folder / file_name).write_text(text, encoding="utf-8")
