"""The storage port: access to documents, and the guarantees about their durability.

The words of this package:

- *Files*: a directory with documents, wherever it is. :class:`~spark_jobs.storage.files.Files` is the port, and the modules ``local``,
  ``hdfs`` and ``object_store`` implement it. Files are *mounted* if this host has a path for them; else they are in a store.
- *Store*: an object store, or HDFS.
- *Kind* of object store: S3, Azure Data Lake Storage or Google Cloud Storage. Each kind has one class, which says all that differs from the
  other kinds. The classes are in ``s3_settings``, ``azure_settings`` and ``google_settings``. ``object_store_kinds`` finds the class for a
  URL.
- *Settings*: the address and the credentials of one object store, which are an instance of such a class. ``settings_by_bucket`` finds the
  settings for a URL.
- *Bucket*: the part of a URL that has settings of its own, such as ``s3://bucket`` or ``abfss://container@account.dfs.core.windows.net``.
- *Client*: the program that sends the requests. This package has obstore for object stores, which ``object_store_client`` opens, and
  hdfs-native for HDFS. Spark and delta-rs have their own.
"""
