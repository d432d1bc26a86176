"""``python -m spark_jobs`` is ``spark-jobs``."""

from spark_jobs.cli import main

if __name__ == "__main__":
    main()
