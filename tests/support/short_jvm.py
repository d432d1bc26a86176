"""What makes a JVM of a minute or two cheap: it would not live to see its fully compiled code."""

SHORT_RUN = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
