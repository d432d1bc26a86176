"""Masks secrets in the log of a JVM that another program has started, such as ``spark-submit``.

The output of that JVM does not pass through this process, which therefore cannot filter it.
"""

import re
from collections.abc import Iterable
from typing import Any

from spark_jobs.protocol.masking import HIDDEN, hidden_forms
from spark_jobs.publication.delta_jvm import java_class, java_list

_LAYOUT = "org.apache.logging.log4j.core.layout.PatternLayout"
_APPENDER = "org.apache.logging.log4j.core.appender.AbstractAppender"
_PLACES_EXCEPTIONS = re.compile(r"%(?:[-.\d]*)(?:ex|throwable|xEx|xThrowable|rEx|rThrowable)\b")


def mask_log(jvm: Any, secrets: Iterable[str]) -> None:
    """Makes each Log4j appender with a pattern layout write a mask in place of secrets, also in exceptions.

    The layouts are set by reflection. Log4j itself can only replace the whole configuration, including the cluster's part of it.

    Args:
        jvm: A session, or the class ``SparkContext``, with a JVM.
        secrets: The texts to mask.
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
    """Returns a Java regular expression that matches a text literally, and has no character with a meaning in a Log4j pattern."""
    units = text.encode("utf-16-be", errors="replace")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))
