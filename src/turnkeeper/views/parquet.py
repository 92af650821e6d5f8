"""Writes the tables of a store as Parquet files, session by session: what is held is one row group of each table."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from turnkeeper.errors import ConfigError
from turnkeeper.views.tables import TABLES, Column, ColumnType, Row

GROUP_ROWS = 10_000
"""The most rows of a row group."""
GROUP_VALUES = 4 << 20
"""The most token ids and characters that the rows of a group hold, give or take those of one session."""


class ParquetFiles:
    """The Parquet files of all tables in a folder. They are there under their names once all of them are whole."""

    def __init__(self, folder: Path) -> None:
        """Begin the files.

        Raises:
            ConfigError: pyarrow is not installed, or the folder cannot be written.
        """
        if find_spec("pyarrow") is None:
            raise ConfigError("--parquet needs pyarrow", hint="pip install 'turnkeeper[export]'")
        self.paths = {name: folder / f"{name}.parquet" for name in TABLES}
        self._tables: dict[str, _Table] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, columns in TABLES.items():
                self._tables[name] = _Table(_name_part(self.paths[name]), columns)
        except OSError as error:
            self._discard()
            raise ConfigError(f"--parquet {folder}: {error}", hint="name a folder that this user may write") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Give the files their names; where the block failed, remove what was written."""
        if kind is not None:
            self._discard()
            return
        for table in self._tables.values():
            table.close()
        for path in self.paths.values():
            os.replace(_name_part(path), path)

    def add(self, rows: Mapping[str, Sequence[Row]]) -> None:
        """Add rows to each table.

        Raises:
            OSError: the disk is full.
        """
        for name, table in self._tables.items():
            table.add(rows[name])

    def _discard(self) -> None:
        for table in self._tables.values():
            table.discard()
        for path in self.paths.values():
            with suppress(OSError):
                _name_part(path).unlink(missing_ok=True)


class _Table:
    """One file, and the rows of its next row group."""

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self._arrow: Any = import_module("pyarrow")  # Any: it has no types of its own
        self._columns = columns
        types = _build_types(self._arrow)
        self._schema = self._arrow.schema([(column.name, types[column.type]) for column in columns])
        self._writer = import_module("pyarrow.parquet").ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[Row] = []
        self._values = 0

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._rows.append(row)
            self._values += sum(len(value) for value in row.values() if hasattr(value, "__len__"))
            if len(self._rows) >= GROUP_ROWS or self._values >= GROUP_VALUES:
                self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def discard(self) -> None:
        with suppress(OSError):  # the disk may be full
            self._writer.close()

    def _flush(self) -> None:
        if not self._rows:
            return
        arrays = [self._build(column, field.type) for column, field in zip(self._columns, self._schema, strict=True)]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))
        self._rows, self._values = [], 0

    def _build(self, column: Column, kind: Any) -> Any:
        return self._arrow.array([_convert(row[column.name], column.type) for row in self._rows], kind)


def _build_types(arrow: Any) -> Mapping[ColumnType, Any]:
    number, text = arrow.int32(), arrow.string()
    return {
        ColumnType.TEXT: text,
        ColumnType.INT: number,
        ColumnType.LONG: arrow.int64(),
        ColumnType.TIME: arrow.timestamp("us", tz="UTC"),
        ColumnType.JSON: text,
        ColumnType.IDS: arrow.list_(number),
        ColumnType.FLOATS: arrow.list_(arrow.float32()),
        ColumnType.VERSIONS: arrow.list_(arrow.struct([("version", text), ("start", number), ("stop", number)])),
    }


def _convert(value: Any, kind: ColumnType) -> Any:
    """Convert a value to what Arrow takes: times as microseconds, texts without lone surrogates, which no UTF-8 has."""
    if value is None:
        return None
    if kind is ColumnType.TIME:
        return round(value * 1e6)
    return value.encode("utf-8", "replace").decode() if kind is ColumnType.TEXT else value


def _name_part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")
