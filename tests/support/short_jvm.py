"""What makes a JVM of a minute or two cheap: it would not live to see its fully compiled code."""

SHORT_RUN = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=160m"}
"""With the first compiler alone a JVM has room for 48 MB of code, which Spark fills: it would go on sweeping and compiling anew."""
