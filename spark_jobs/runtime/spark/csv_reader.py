"""Reads the header lines of CSV files as Spark's CSV source does, without reading the files."""

import re
from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.publication.delta_jvm import java_class
from spark_jobs.runtime.spark.plan import Leaf
from spark_jobs.runtime.spark.session import FileBeginnings, spark_failures

_BEGINNING_BYTES = 1 << 16
_HEADER_BYTES_MAX = 1 << 24
_LINE_END = re.compile(r"\r\n|\n|\r")
Header = tuple[str | None, ...]


class CsvReader:
    """Reads headers with the options of one stream.

    Args:
        session: The session.
        leaf: The stream of CSV files.
    """

    def __init__(self, session: SparkSession, leaf: Leaf) -> None:
        self._session, self._beginnings = session, FileBeginnings(session)
        found = leaf.relation.sourceInfo()
        options = java_class(session, "org.apache.spark.sql.catalyst.csv.CSVOptions")(
            leaf.relation.caseInsensitiveOptions(),
            True,
            str(session.conf.get("spark.sql.session.timeZone")),
            str(session.conf.get("spark.sql.columnNameOfCorruptRecord")),
        )
        others = {
            str(options.columnNameOfCorruptRecord()),
            *(str(name) for name in found.partitionColumns().mkString("\n").split("\n")),
        }
        self.columns = [name for name in leaf.schema.names if name not in others]
        """The stream's columns that are in the files, in the order of the files."""
        self._charset, self._multi_line = str(options.charset()), bool(options.multiLine())
        self._comment = str(options.comment()) if options.isCommentSet() else None
        separator = options.lineSeparator()
        self._separator = str(separator.get()) if separator.isDefined() else None
        self._parser: Any = java_class(session, "com.univocity.parsers.csv.CsvParser")(options.asParserSettings())
        self._parsed: dict[str, Header | None] = {}

    def header(self, url: str) -> Header | None:
        """Returns the names in the first line of a file, or None if it has none or cannot be read. Spark reports the reason then."""
        size_bytes = _BEGINNING_BYTES
        while True:
            try:
                data = self._beginnings.read(url, size_bytes)
                text = data.decode(self._charset, errors="ignore").removeprefix("\ufeff")
            except (OSError, LookupError):
                return None
            except spark_failures():
                return None
            is_whole = len(data) < size_bytes
            found = text if self._multi_line else first_line(text, self._comment, self._separator, is_whole=is_whole)
            if found is not None or is_whole or size_bytes >= _HEADER_BYTES_MAX:
                break
            size_bytes *= 16
        if found is None:
            return None
        if found not in self._parsed:  # most files have the same header
            self._parsed[found] = self._parse(found)
        return self._parsed[found]

    def _parse(self, text: str) -> Header | None:
        self._parser.beginParsing(java_class(self._session, "java.io.StringReader")(text))
        record = self._parser.parseNext()
        self._parser.stopParsing()
        return None if record is None else tuple(record)


def first_line(text: str, comment: str | None, separator: str | None, *, is_whole: bool) -> str | None:
    """Returns the first line that is neither blank nor a comment, or None.

    Args:
        text: Beginning of a file.
        comment: Prefix of comments.
        separator: End of a line, if it is not a usual one.
        is_whole: True if the text is the whole file, whose last line may have no end.
    """
    *lines, last = text.split(separator) if separator else _LINE_END.split(text)
    candidates = [*lines, last] if is_whole else lines
    return next((line for line in candidates if line.strip() and not (comment and line.strip().startswith(comment))), None)
