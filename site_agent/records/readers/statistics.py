"""Files of statistics packages, by what ReadStat reads: SPSS, Stata and SAS.

Numbers come as codes and never as their labels, and what the file itself declares to be missing is missing.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from shared.errors import DataFileRefusal, DictionaryRefusal, require
from site_agent.records.readers.base import FormatReader

if TYPE_CHECKING:
    import pandas as pd

    from site_agent.records.source import TableSource

__all__ = ["READERS"]

DOUBLE = 2.0**53
"""These packages keep numbers as doubles: a whole number from here on may be another one's neighbour."""


class _ReadStat(FormatReader):
    """Attributes: call: name of the function of pyreadstat."""

    call: ClassVar[str]
    needs = ("pyreadstat",)

    def columns(self, source: TableSource) -> tuple[str, ...]:
        return tuple(self._about(source).column_names)

    def count(self, source: TableSource) -> int:
        rows = self._about(source).number_rows
        return len(self._read(source)[0]) if rows is None or rows < 0 else int(rows)

    def packed(self, source: TableSource) -> int:
        """Most rows per byte of the file; a row takes one byte at least, before compression."""
        return 1

    def _about(self, source: TableSource) -> Any:
        """Metadata of the file, checked before memory is allocated for the rows that it claims.

        Raises: DataFileRefusal (more rows than its bytes can hold).
        """
        about = self._read(source, metadataonly=True)[1]
        named = all(isinstance(name, str) for name in about.column_names)
        if not named or (about.number_rows or 0) > self.packed(source) * source.path.stat().st_size:
            raise self.unreadable(source, ValueError())
        return about

    def table(self, source: TableSource, places: Sequence[int]) -> pd.DataFrame:
        every = self.columns(source)
        names = [every[place] for place in places]
        table, about = self._read(source, usecols=names)
        if about.number_rows is not None and 0 <= about.number_rows != len(table):
            raise self.unreadable(source, ValueError())
        out = table[names].reset_index(drop=True)
        for name in names:
            if out[name].dtype.kind == "f" and (long := int((out[name].abs() >= DOUBLE).sum())):
                raise DictionaryRefusal(
                    f"column {name!r} must hold no number of more than 15 digits: the file keeps no more of one",
                    given=f"{long} rows that do",
                    next_step="Store it as text where the extract is made.",
                )
            if out[name].dtype.kind == "M":  # dates are no numbers
                out[name] = out[name].astype(object).where(out[name].notna(), None)
        return out

    def _read(self, source: TableSource, **how: Any) -> tuple[Any, Any]:
        require(*self.needs, part="site")
        import pyreadstat

        damaged = (pyreadstat.ReadstatError, pyreadstat.PyreadstatError)
        if source.encoding != "utf-8":  # else what the file says of itself
            how["encoding"] = source.encoding
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                found: tuple[Any, Any] = getattr(pyreadstat, self.call)(str(source.path), **how)
            if any("duplicated" in str(one.message) for one in said):  # it would be read under a name of the library's
                raise DataFileRefusal(
                    f"each column of {source.path.name} must have a name of its own",
                    given="a name that several have",
                    next_step="Rename one of them where the extract is made.",
                )
            return found
        except UnicodeError as error:
            raise self.unreadable(source, error) from None
        except OverflowError:  # of the library's dates
            raise DataFileRefusal(
                f"each date of {source.path.name} must lie in the years 1 to 9999",
                given="one that does not",
                next_step="Correct it, or leave it blank, where the extract is made.",
            ) from None
        except (*damaged, ValueError, TypeError, LookupError, OSError) as error:
            if "encoding" in str(error):
                raise DataFileRefusal(
                    f"the text of {source.path.name} must be in the encoding that it says, or that is named",
                    given="bytes that are not",
                    next_step="Name its encoding: site-agent data add … --encoding cp1252.",
                ) from None
            raise self.unreadable(source, error) from None


class _Spss(_ReadStat):
    whole, call = ("a whole SPSS file", "a truncated or damaged one"), "read_sav"
    PACKED = 1100
    """Largest ratio of uncompressed to compressed bytes under deflate."""

    def packed(self, source: TableSource) -> int:
        with source.path.open("rb") as file:
            return self.PACKED if file.read(4) == b"$FL3" else 1


class _Stata(_ReadStat):
    whole, call = ("a whole Stata file", "a truncated or damaged one"), "read_dta"
    COLUMNS = 120_000
    """Most columns of Stata itself. Memory is allocated for as many as the header claims, before anything is read."""

    def _read(self, source: TableSource, **how: Any) -> tuple[Any, Any]:
        with source.path.open("rb") as file:
            claimed = re.search(rb"<byteorder>(MSF|LSF)</byteorder><K>(.{2,4})</K>", file.read(256), re.DOTALL)
        if claimed and int.from_bytes(claimed[2], "big" if claimed[1] == b"MSF" else "little") > self.COLUMNS:
            raise self.unreadable(source, ValueError())
        return super()._read(source, **how)


class _Sas(_ReadStat):
    whole, call = ("a whole SAS data set", "a truncated or damaged one"), "read_sas7bdat"


class _Transport(_ReadStat):
    whole, call = ("a whole SAS transport file", "a truncated or damaged one"), "read_xport"
    RECORD = 80

    def _read(self, source: TableSource, **how: Any) -> tuple[Any, Any]:
        if source.path.stat().st_size % self.RECORD:  # it says nowhere how many rows it has
            raise self.unreadable(source, ValueError())
        return super()._read(source, **how)


READERS: Mapping[str, FormatReader] = {"spss": _Spss(), "stata": _Stata(), "sas": _Sas(), "xport": _Transport()}
