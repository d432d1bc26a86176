"""``make demo``: the flights of 2013 through Airflow, a local Spark and three Delta tables, checked against an independent query."""
