"""HDFS with failing nodes and failing connections."""
