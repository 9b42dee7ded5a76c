"""The same jobs through Spark's own Kafka connector and through ours, against the same brokers.

    python -m tests.differential

compares rows, schemas, offsets, checkpoints and refusals of both.  Each difference is a defect, or has an entry in
docs/spark-migration.md, which the job names.  `jobs.py` contains the jobs, `harness.py` what they share.

Spark's connector must have the version of Spark.  So the command installs PYSPARK_VERSION into a folder of its own,
`.dev/differential`, and lets Spark load the connector into it.  `./dev test` runs the jobs only if that folder exists.
"""
