"""`.ldiff`: a Comparison in an HDF5 file, by the rules of a trace. Opens without the traces and without torch.

Columns are `/sites/<column>`, `/pairs/<column>` and `/placed/<column>`, texts one blob with offsets, and what is small is
one JSON text in `/comparison/json`. No attributes on datasets, no compound and no variable-length
types: with them a hundred thousand sites would take a second to open. The file gets its name when it
is whole, so a reader never meets half of one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

from layerdiff.errors import ComparisonError, TraceError
from layerdiff.judge.tables import PAIRS, PLACED, SITES, Columns
from layerdiff.saved.as_json import strict
from layerdiff.saved.check_tables import check_tables
from layerdiff.saved.comparison import Comparison
from layerdiff.saved.description import Description, described, description_of
from layerdiff.saved.stored_columns import read_columns
from layerdiff.saved.stored_texts import StoredTexts, encode
from layerdiff.trace.check import format_name, open_file, read_column
from layerdiff.trace.schema import FORMAT as TRACE_FORMAT

FORMAT: Final = "layerdiff.comparison"
VERSION: Final = (2, 3)
_BYTES: Final = np.dtype("u1")
_COLUMNS: Final[dict[str, np.dtype[Any]]] = {
    "text/offset": np.dtype("<u8"),
    "text/bytes": _BYTES,
    **{f"sites/{name}": dtype for name, dtype in SITES.items()},
    **{f"pairs/{name}": dtype for name, dtype in PAIRS.items()},
}
_PLACED: Final = {f"placed/{name}": dtype for name, dtype in PLACED.items()}
"""Since version 2.1; files before it hold none, and read as an empty table."""
_MAKE_ONE: Final = "`layerdiff diff REFERENCE TARGET -o RUN.ldiff` makes one."


def save(comparison: Comparison, path: Path) -> Path:
    """Write `comparison` to `path` and return it; an older file of that name is replaced whole.

    Raises:
        ComparisonError: the file cannot be written; says why. Nothing is left behind.
    """
    scratch = path.with_name(f".{path.name[:100]}.{os.getpid()}.tmp")
    try:
        with h5py.File(scratch, "w", locking=False) as file:
            _write(comparison, file)
        os.replace(scratch, path)
    except (OSError, RuntimeError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise ComparisonError(
            f"Cannot save the comparison to {path}: {reason}. Choose a folder that you can write to, with room."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
    return path


def _write(comparison: Comparison, file: h5py.File) -> None:
    file.attrs["format"] = np.bytes_(FORMAT)  # of fixed length: HDF5 never returns from some damage to the heap of other strings
    file.attrs["version"] = np.array(VERSION, "<i4")
    offsets, data = encode(comparison.texts)
    description = json.dumps(strict(described(comparison)), allow_nan=False).encode()
    datasets: dict[str, Any] = {
        "text/offset": offsets,
        "text/bytes": data,
        "comparison/json": np.frombuffer(description, _BYTES),
        **{f"sites/{name}": np.asarray(comparison.sites[name], dtype) for name, dtype in SITES.items()},
        **{f"pairs/{name}": np.asarray(comparison.pairs[name], dtype) for name, dtype in PAIRS.items()},
        **{f"placed/{name}": np.asarray(comparison.placed[name], dtype) for name, dtype in PLACED.items()},
    }
    for name, column in datasets.items():
        file.create_dataset(name, data=column, track_times=False)


def open_comparison(path: str | Path) -> Comparison:
    """Read a comparison that `save` wrote.

    Every column is loaded and checked; texts are decoded as they are looked at.

    Raises:
        ComparisonError: there is no such file, it is something else, of another version, cut short, or its index is wrong; says which.
    """
    path = Path(path)
    try:
        file = _open(path)
    except OSError as error:
        raise ComparisonError(f"{path} cannot be read: {error.strerror or error}.") from error
    with file:
        before_placed = _check_version(file, path) < 1
        try:
            description = _read_description(file, path)
            columns = read_columns(file, _COLUMNS if before_placed else _COLUMNS | _PLACED)
            if before_placed:
                columns |= {name: np.empty(0, dtype) for name, dtype in _PLACED.items()}
            texts = StoredTexts(columns["text/offset"], columns["text/bytes"], str(path))
            sites, pairs = _table(columns, "sites", SITES, path), _table(columns, "pairs", PAIRS, path)
            placed = _table(columns, "placed", PLACED, path)
            files = (0 if description.reference is None else len(description.reference.files), len(description.target.files))
            check_tables(
                sites,
                pairs,
                placed,
                texts,
                files=files,
                origin_rows=_rows(description),
                path=str(path),
            )
        except TraceError as error:
            raise ComparisonError(
                f"The saved comparison cannot be used. {error} `layerdiff diff REFERENCE TARGET -o {path.name}` makes it anew."
            ) from error
    return Comparison(
        reference=description.reference,
        target=description.target,
        profile=description.profile,
        texts=texts,
        sites=sites,
        pairs=pairs,
        notices=description.notices,
        origins=description.origins,
        alignment=description.alignment,
        found=description.found,
        placed=placed,
        again=description.again,
        baseline=description.baseline,
        checkpoints=description.checkpoints,
    )


def _rows(description: Description) -> list[int]:
    """Every row of the sites that the description names."""
    again = () if description.again is None else description.again.origins
    return [origin.row for origin in (*description.origins, *again)] + [found.row for found in description.found]


def _open(path: Path) -> h5py.File:
    if not path.exists():
        raise ComparisonError(f"{path} does not exist. `layerdiff diff REFERENCE TARGET -o {path.name}` makes it.")
    if not path.is_file():
        raise ComparisonError(f"{path} is not a saved comparison: it is no file. {_MAKE_ONE}")
    with path.open("rb"):
        pass  # permission is said by the system, and not by HDF5
    if not h5py.is_hdf5(path):
        raise ComparisonError(
            f"{path} is not a saved comparison: it is no HDF5 file. `layerdiff diff REFERENCE TARGET -o RUN.ldiff` makes one."
        )
    try:
        return open_file(path, what="saved comparison")
    except TraceError as error:
        raise ComparisonError(str(error)) from error


def _check_version(file: h5py.File, path: Path) -> int:
    """The minor version. Raises ComparisonError where the file is of another format, or another major version."""
    try:
        name = format_name(file)
        version = [int(number) for number in np.atleast_1d(file.attrs.get("version", [0, 0]))]
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise ComparisonError(f"{path} is not a saved comparison: its format cannot be read ({error}).") from error
    if isinstance(name, str) and name == TRACE_FORMAT:
        raise ComparisonError(f"{path} is a trace, and a comparison needs two: layerdiff REFERENCE TARGET; or `layerdiff inspect`.")
    if not isinstance(name, str) or name != FORMAT:
        raise ComparisonError(
            f"{path} is an HDF5 file, and not a saved comparison. `layerdiff diff REFERENCE TARGET -o RUN.ldiff` makes one."
        )
    if version[:1] != [VERSION[0]]:
        raise ComparisonError(
            f"{path} was written in version {'.'.join(map(str, version))} of its format; this layerdiff reads version {VERSION[0]}. "
            f"Open it with the layerdiff that wrote it, or compare the traces again."
        )
    return version[1] if len(version) > 1 else 0


def _read_description(file: h5py.File, path: Path) -> Description:
    raw = read_column(file, "comparison/json", _BYTES).tobytes()
    try:
        return description_of(json.loads(raw))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ComparisonError(
            f"{path} is damaged: its description (comparison/json) is not as it must be ({type(error).__name__}: {error})."
        ) from error


def _table(columns: Columns, table: str, schema: Iterable[str], path: Path) -> Columns:
    found = {name: columns[f"{table}/{name}"] for name in schema}
    if len({column.size for column in found.values()}) > 1:
        raise ComparisonError(f"{path} is damaged: the columns of {table} have different lengths.")
    return found
