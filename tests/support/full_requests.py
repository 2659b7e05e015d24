"""Requests with any number of entries in a repeated field, for tests of limits."""

from __future__ import annotations

from typing import Any

from google.protobuf.message_factory import GetMessageClass


def repeated_fields(message: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of each repeated field in a message, except those in the messages of a batch."""
    found = []
    for field in message.fields:
        if field.is_repeated:
            found.append((*path, field))
        kind = field.message_type
        if kind is not None and kind.name != "Message" and not kind.GetOptions().map_entry and len(path) < 6:
            found += repeated_fields(kind, (*path, field))
    return found


def filled(kind: type[Any], path: tuple[Any, ...], count: int) -> Any:
    """A request with `count` entries in one repeated field, and one in each enclosing field."""
    request = message = kind()
    for field in path[:-1]:
        within = getattr(message, field.name)
        message = within.add() if field.is_repeated else within
    field = path[-1]
    entries = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entries.update({str(i): "" for i in range(count)})
    elif field.message_type is not None:
        empty = field.message_type._concrete_class()
        entries.extend([empty] * count)
    else:
        entries.extend([""] * count if field.type == field.TYPE_STRING else [1] * count)
    message.SetInParent()
    return request


def plausible(kind: Any, depth: int = 0) -> Any:
    """A message of this type with every field set, repeated ones once; names are `hostile`."""
    message = GetMessageClass(kind)()
    chosen: set[str] = set()  # one field of each oneof
    for field in kind.fields:
        oneof = field.containing_oneof
        if depth > 6 or (oneof is not None and len(oneof.fields) > 1 and oneof.name in chosen):
            continue
        if oneof is not None:
            chosen.add(oneof.name)
        _set(message, field, depth)
    return message


def at_the_limit(kind: Any, path: tuple[Any, ...], count: int) -> Any:
    """A plausible request with `count` entries in one repeated field."""
    request = message = plausible(kind)
    for field in path[:-1]:
        within = getattr(message, field.name)
        if not field.is_repeated and field.containing_oneof is not None:
            within.SetInParent()
        message = within[0] if field.is_repeated else within
    field = path[-1]
    entries = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entries.update({f"key-{i}": "value" for i in range(count - len(entries))})
    elif field.message_type is not None:
        entry = plausible(field.message_type)
        del entries[:]
        entries.extend([entry] * count)
    else:
        value = "hostile" if field.type == field.TYPE_STRING else 1
        del entries[:]
        entries.extend([value] * count)
    return request


def _set(message: Any, field: Any, depth: int) -> None:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        getattr(message, field.name)["name"] = "value"
    elif kind is not None:
        value = plausible(kind, depth + 1)
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            getattr(message, field.name).CopyFrom(value)
    elif field.is_repeated:
        getattr(message, field.name).append("hostile" if field.type == field.TYPE_STRING else 1)
    elif field.type == field.TYPE_STRING:
        setattr(message, field.name, "hostile")
    elif field.type == field.TYPE_BYTES:
        setattr(message, field.name, b"body" * 64)
    elif field.type == field.TYPE_BOOL:
        setattr(message, field.name, False)
    else:
        setattr(message, field.name, 1)
