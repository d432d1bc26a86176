"""Words, documents, errors and step names that every other part shares. Nothing here touches files, Spark or Airflow."""
