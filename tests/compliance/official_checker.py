"""The verdict of mlperf-logging's compliance checker in this process: thousands of logs would be minutes of imports."""

import functools
import logging
from pathlib import Path

import yaml
from mlperf_logging.compliance_checker import mlp_compliance


@functools.cache
def _rules(text: str) -> object:
    return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506  as mlp_compliance does


class _Yaml:
    """What mlp_compliance asks of yaml, with each file read once (the checker changes no rule that it read)."""

    BaseLoader = yaml.BaseLoader

    @staticmethod
    def load(stream, Loader) -> object:
        assert Loader is yaml.BaseLoader
        return _rules(stream.read())


def passes(path: Path, ruleset: str = "4.0.0", config: str | None = None) -> bool:
    """Whether the official checker passes the log at `path`. A traceback of it is a rejection."""
    mlp_compliance.enqueued_configs.clear()
    original, mlp_compliance.yaml = mlp_compliance.yaml, _Yaml
    logging.disable(logging.CRITICAL)
    try:
        checker = mlp_compliance.make_checker("training", ruleset, False, False)
        valid, *_ = mlp_compliance.main(str(path), config or f"training_{ruleset}/common.yaml", checker)
    except Exception:  # noqa: BLE001  whatever ends it, ends it with a status other than 0
        return False
    finally:
        logging.disable(logging.NOTSET)
        mlp_compliance.yaml = original
    return bool(valid)
