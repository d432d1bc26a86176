"""Java classes that this package has as source. Spark's own compiler, Janino, makes classes of them when a driver needs them.

It takes about a second. So no host needs a JDK, and the package has no binary. A jar of the application may have the class instead.
"""

import atexit
import shutil
from importlib.resources import files as package_files
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

from spark_jobs.publication.delta_jvm import java_class, java_message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class JavaSourceError(Exception):
    """The compiler's message for a class that cannot be compiled. The caller handles it, and it is never shown alone."""


def load_java(spark: "SparkSession", name: str, package: str, *, for_executors: bool = False) -> None:
    """Compiles a class of this package, unless the application has it. Idempotent.

    Args:
        spark: A session of the application.
        name: Name of the class.
        package: The Python package with its source, ``<class>.java``.
        for_executors: True if executors load the class, too. They get it with their next task.

    Raises:
        JavaSourceError: It cannot be compiled with the jars that the application has.
    """
    from py4j.protocol import Py4JError, Py4JJavaError

    utils = java_class(spark, "org.apache.spark.util.Utils")
    try:
        utils.classForName(name, False, False)
    except Py4JJavaError:
        pass
    else:
        return
    source = f"{name.rpartition('.')[2]}.java"
    directory = Path(mkdtemp(prefix="spark-jobs-java-"))
    try:
        loader = java_class(spark, "java.lang.Thread").currentThread().getContextClassLoader()
        jar = directory / f"{name}.jar"
        names = _compile(java_class(spark, "org.codehaus.janino.SimpleCompiler")(), loader, package, source, jar)
        if for_executors:
            context: Any = spark.sparkContext._jsc
            context.addJar(str(jar))
        loader.addURL(java_class(spark, "java.io.File")(str(jar)).toURI().toURL())
        for each in names:  # read now, so that this process does not need the file again
            utils.classForName(each, True, False)
    except Py4JError as error:
        raise JavaSourceError(java_message(error)) from error
    finally:
        if for_executors:
            atexit.register(shutil.rmtree, directory, ignore_errors=True)  # an executor may start at any time
        else:
            shutil.rmtree(directory)


def _compile(compiler: Any, loader: Any, package: str, source: str, jar: Path) -> list[str]:
    """Compiles a source into a jar. Returns the names of its classes."""
    compiler.setParentClassLoader(loader)
    compiler.cook(source, package_files(package).joinpath(source).read_text())
    compiled = {str(entry.getKey()): bytes(entry.getValue()) for entry in compiler.getBytecodes().entrySet().toArray()}
    with ZipFile(jar, "w") as made:
        for name, code in compiled.items():
            made.writestr(f"{name.replace('.', '/')}.class", code)
    return list(compiled)
