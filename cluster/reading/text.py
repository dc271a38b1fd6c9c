"""Text that may not be text: bytes that are not UTF-8, and lone surrogates.

Arrow carries such bytes in string columns unharmed as long as nobody asks for Python strings, which fails for the
whole column. So text is taken as bytes here and decoded value by value.
"""

import datetime
import re
from typing import Any

import pyarrow as pa

BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
UNSHOWN = "\ufffd"  # stands for a whole value that Python has no form for
LONE = re.compile("[\ud800-\udfff]")  # a surrogate in a Python string is always a lone one


def mend(text: str) -> str:
    """The same text with U+FFFD for every lone surrogate."""
    return LONE.sub("\ufffd", text)


def mend_all(value: Any) -> Any:
    """The same for every string in a parsed JSON value, keys too."""
    if isinstance(value, str):
        return mend(value)
    if isinstance(value, list):
        return [mend_all(item) for item in value]
    if isinstance(value, dict):
        return {mend(key): mend_all(item) for key, item in value.items()}
    return value


def is_text(type: pa.DataType) -> bool:
    """Whether values of this type are read as text: strings, bytes, and what wraps them."""
    if isinstance(type, pa.BaseExtensionType):
        return is_text(type.storage_type)
    if pa.types.is_dictionary(type):
        return is_text(type.value_type)
    return type in (*BYTES, *BYTES.values())


def plain_values(column: pa.ChunkedArray) -> list[tuple[Any, bool]]:
    """Each value as Python has it, and whether text in it had to be mended with U+FFFD. A value that Python has no form
    for (a date beyond its calendar) becomes U+FFFD whole.
    """
    if pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type):
        return [_list_view(value) for value in column]  # Arrow's cast of views loses items (seen in pyarrow 26)
    target = _bytes_inside(column.type)
    cast = column if target == column.type else column.cast(target)
    try:
        return [_decoded(value) for value in cast.to_pylist()]
    except (ValueError, OverflowError):  # one value fails the whole column: look at each
        return [_alone(value) for value in cast]


def _alone(scalar: pa.Scalar) -> tuple[Any, bool]:
    try:
        return _decoded(scalar.as_py())
    except (ValueError, OverflowError):
        return UNSHOWN, True


def _list_view(scalar: pa.Scalar) -> tuple[Any, bool]:
    if not scalar.is_valid:
        return None, False
    items = plain_values(pa.chunked_array([scalar.values]))
    return [item for item, _ in items], any(bad for _, bad in items)


def _decoded(value: Any) -> tuple[Any, bool]:
    if isinstance(value, bytes):
        try:
            return value.decode(), False
        except UnicodeDecodeError:
            return value.decode(errors="replace"), True
    if isinstance(value, list | tuple):  # a tuple is an entry of a map
        items = [_decoded(item) for item in value]
        return type(value)(item for item, _ in items), any(bad for _, bad in items)
    if isinstance(value, dict):
        members = {key: _decoded(item) for key, item in value.items()}
        return {key: item for key, (item, _) in members.items()}, any(bad for _, bad in members.values())
    if (
        isinstance(value, datetime.timedelta) and type(value) is not datetime.timedelta
    ):  # pandas' own, once it is loaded
        exact: datetime.timedelta = value.to_pytimedelta()  # type: ignore[attr-defined]
        return (exact, False) if exact == value else (UNSHOWN, True)
    return value, False


def _bytes_inside(type: pa.DataType) -> pa.DataType:
    """The type with bytes for text, wherever Arrow can cast to it."""
    if isinstance(type, pa.BaseExtensionType):
        return _bytes_inside(type.storage_type) if is_text(type) else type
    if pa.types.is_dictionary(type):
        return _bytes_inside(type.value_type)
    if pa.types.is_list(type):
        return pa.list_(_bytes_inside(type.value_type))
    if pa.types.is_large_list(type):
        return pa.large_list(_bytes_inside(type.value_type))
    if pa.types.is_fixed_size_list(type):
        return pa.list_(_bytes_inside(type.value_type), type.list_size)
    if pa.types.is_struct(type):
        return pa.struct([pa.field(field.name, _bytes_inside(field.type), field.nullable) for field in type])
    if pa.types.is_map(type):
        return pa.map_(_bytes_inside(type.key_type), _bytes_inside(type.item_type))
    if (pa.types.is_timestamp(type) or pa.types.is_time(type)) and type.unit == "ns":
        return pa.string()  # Python's own types end at microseconds
    return BYTES.get(type, type)
