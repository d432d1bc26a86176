"""Takes secrets out of what a JVM logs that somebody else has started, such as ``spark-submit``: its output is not ours to filter."""

import re
from collections.abc import Iterable
from typing import Any

from spark_jobs.protocol.masking import HIDDEN, hidden_forms
from spark_jobs.publication.delta_jvm import java_class, java_list

_LAYOUT = "org.apache.logging.log4j.core.layout.PatternLayout"
_APPENDER = "org.apache.logging.log4j.core.appender.AbstractAppender"
_PLACES_EXCEPTIONS = re.compile(r"%(?:[-.\d]*)(?:ex|throwable|xEx|xThrowable|rEx|rThrowable)\b")


def mask_log(jvm: Any, secrets: Iterable[str]) -> None:
    """Lets each appender of Log4j that writes by a pattern write a mask in the place of secrets, also in exceptions.

    Log4j gives an appender another layout only by another configuration, which would be that of the cluster no more.

    Args:
        jvm: A session, or the class ``SparkContext``, with a JVM.
        secrets: What must not be written down.
    """
    forms = hidden_forms(secrets)
    if not forms:
        return
    hidden = "|".join(map(_as_regex, forms))
    configuration = java_class(jvm, "org.apache.logging.log4j.LogManager").getContext(False).getConfiguration()
    layout_of = java_class(jvm, "java.lang.Class").forName(_APPENDER).getDeclaredField("layout")
    layout_of.setAccessible(True)
    for appender in java_list(jvm, configuration.getAppenders().values()):
        layout = appender.getLayout()
        if layout is None or str(layout.getClass().getName()) != _LAYOUT:
            continue
        pattern = str(layout.getConversionPattern())
        whole = pattern if _PLACES_EXCEPTIONS.search(pattern) else f"{pattern}%xEx"
        builder = java_class(jvm, _LAYOUT).newBuilder().withConfiguration(configuration).withCharset(layout.getCharset())
        layout_of.set(appender, builder.withPattern(f"%replace{{{whole}}}{{{hidden}}}{{{HIDDEN}}}").build())


def _as_regex(text: str) -> str:
    """Returns a text as a regular expression of Java's in which no sign has a meaning, to Log4j's patterns either."""
    units = text.encode("utf-16-be", errors="replace")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))
