"""YAML configurations checked by frozen pydantic schemas: includes, overrides, errors, templates.

    config = load(TrainConfig, "mine.yaml", ["batch.atoms=256"])

A file may start from others: `include: base.yaml` (or a list), relative to the file; later values
win, sections are merged. Errors name the dotted path, what is allowed, and the nearest valid key.
"""

import difflib
import re
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from janus_jax.errors import ConfigError


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted((key, _hashable(item)) for key, item in value.items()))
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


UNION_MEMBER = re.compile(r"^(str|int|float|bool|(tuple|list|dict|literal|constrained|function).*)$")


class Section(BaseModel):
    """Base of all sections: immutable, unknown keys and numbers that are not finite refused, docstrings kept."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    def __hash__(self) -> int:
        """Mappings hash as their items, so that every configuration is hashable."""
        return hash((type(self), *map(_hashable, self.__dict__.values())))


def load[C: BaseModel](schema: type[C], path: str | Path | None = None, overrides: Sequence[str] = ()) -> C:
    """The configuration in a YAML file (defaults if None), changed by `dotted.key=value` strings.

    Raises:
        ConfigError: file missing or not YAML, includes in a circle, an override without "=", an
            unknown key, a bad value.
    """
    return validate(schema, override({} if path is None else read(path), overrides))


def override(values: dict[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """`values` with `dotted.key=value` strings put in."""
    values = merged({}, values)
    for text in texts:
        _override(values, text)
    return values


def validate[C: BaseModel](schema: type[C], values: dict[str, Any]) -> C:
    """The configuration with these values; errors as in `load`."""
    try:
        return schema.model_validate(_filled(schema, values))
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(schema, error.errors()))) from None


def read(path: str | Path) -> dict[str, Any]:
    """The values in a YAML file and what it includes, not yet checked."""
    return _read(Path(path), ())


def _read(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in above:
        raise ConfigError(f"{path}: includes go in a circle: {' -> '.join(p.name for p in (*above, path))}.")
    try:
        values = yaml.load(path.read_text(), _Loader) or {}
    except FileNotFoundError:
        by = f" (included by {above[-1]})" if above else ""
        raise ConfigError(f"{path}: no such configuration file{by}.") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping of keys, got {type(values).__name__}.")
    included = values.pop("include", [])
    if not isinstance(included, str | list) or not all(isinstance(name, str) for name in included):
        raise ConfigError(f"{path}: include: expected a file name or a list of them, got {included!r}.")
    result: dict[str, Any] = {}
    for name in [included] if isinstance(included, str) else included:
        result = merged(result, _read(path.parent / name, (*above, path.resolve())))
    return merged(result, values)


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes`; sections are merged, values and lists replaced."""
    result = dict(base)
    for key, value in changes.items():
        below = result.get(key)
        below = below if isinstance(below, dict) else {}
        result[key] = merged(below, value) if isinstance(value, dict) else value
    return result


def _override(values: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"Override {text!r} is not of the form dotted.key=value.")
    *path, last = key.split(".")
    for part in path:
        if values.get(part) is None:
            values[part] = {}
        values = values[part]
        if not isinstance(values, dict):
            raise ConfigError(f"Override {text!r}: {part} is a value, not a section.")
    try:
        values[last] = yaml.load(value, _Loader)
    except yaml.YAMLError:
        if value[:1] in "[{":
            raise ConfigError(f"Override {text!r}: the value is not a YAML list or mapping.") from None
        values[last] = value  # such as data.train=*.xyz, which YAML takes for an alias


class _Loader(yaml.SafeLoader):
    """YAML 1.1 with repairs: 1e-3 is a number, and no key may be given twice."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    """A mapping; a key given twice is an error, not the last one."""
    keys = [key.value for key, _ in node.value]
    twice = [key for key in keys if keys.count(key) > 1]
    if twice:
        raise yaml.YAMLError(f"line {node.start_mark.line + 1}: {twice[0]!r} is given twice")
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), "-+0123456789")


def _filled(schema: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    """Sections left empty in YAML are null there; they mean their defaults."""
    result = {}
    for key, value in values.items():
        section = section_of(schema.model_fields[key].annotation) if key in schema.model_fields else None
        if section is not None and value is None:
            value = {}
        result[key] = _filled(section, value) if section is not None and isinstance(value, dict) else value
    return result


def _explain(schema: type[BaseModel], problems: Sequence[Any]) -> list[str]:
    """One line for each key with problems; the members of a union are tried one by one, and each has its say."""
    messages: dict[str, list[str]] = {}
    given: dict[str, str] = {}
    for problem in problems:
        path = _written(schema, [str(part) for part in problem["loc"]])
        dotted = ".".join(path) or "configuration"
        if problem["type"] == "extra_forbidden":
            names = list(_fields(schema, path[:-1]))
            near = difflib.get_close_matches(path[-1], names, n=1)
            hint = f"did you mean {'.'.join([*path[:-1], near[0]])}? " if near else ""
            messages[dotted] = [f"unknown key; {hint}allowed: {', '.join(names)}"]
        else:
            text = problem["msg"].removeprefix("Value error, ")
            messages.setdefault(dotted, []).append(text)
            if problem["type"] != "value_error":
                given[dotted] = f" (given: {problem['input']!r})"
    return [f"{key}: {'; or: '.join(dict.fromkeys(texts))}{given.get(key, '')}." for key, texts in messages.items()]


def _written(schema: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The part of pydantic's path that the user wrote: without the names of union members."""
    section: type[BaseModel] | None = schema
    for depth, part in enumerate(path):
        if section is None:
            return [
                *path[:depth],
                *(rest for rest in path[depth:] if not re.search(r"[\[\-]|^(str|int|float|bool)$", rest)),
            ]
        if part not in section.model_fields:
            return list(path[: depth + 1])
        section = section_of(section.model_fields[part].annotation)
    return list(path)


def _fields(schema: type[BaseModel], path: Sequence[str]) -> dict[str, Any]:
    """Fields of the section at `path`."""
    for part in path:
        field = schema.model_fields.get(part)
        section = None if field is None else section_of(field.annotation)
        if section is None:
            return {}
        schema = section
    return schema.model_fields


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section class in an annotation, which may be optional; None for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := section_of(part)) is not None), None)


def dump(config: BaseModel) -> str:
    """YAML of a configuration, every default written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def template(config: BaseModel) -> str:
    """YAML of a configuration with a comment for every key: the docstrings of the schema."""
    return "\n".join(_template_lines(config, 0)) + "\n"


def _template_lines(config: BaseModel, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        text = " ".join((field.description or "").split())
        if isinstance(value, BaseModel):
            text = text or " ".join((type(value).__doc__ or "").split("\n\n")[0].split())
            yield f"{indent}{name}:  # {text}" if text else f"{indent}{name}:"
            yield from _template_lines(value, depth + 1)
            continue
        plain = type(config).model_validate(config).model_dump(mode="json")[name]
        shown = yaml.safe_dump(plain, default_flow_style=True, allow_unicode=True, width=1000).removesuffix("...\n")
        allowed = typing.get_args(field.annotation) if typing.get_origin(field.annotation) is typing.Literal else ()
        options = f"one of {', '.join(map(str, allowed))}" if len(allowed) > 1 else ""
        comment = "; ".join(part for part in (text.rstrip("."), options) if part)
        yield f"{indent}{name}: {shown.strip()}" + (f"  # {comment}" if comment else "")
