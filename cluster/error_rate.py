"""Stops a job that fails wholesale: more of this run's rows have an error than the configuration allows.

Rows of earlier runs do not count, or a job could not be resumed. Nothing is judged by fewer rows than
`cluster.max_error_rate_after`.
"""

import re
from collections import Counter

from cluster.config import ClusterConfig
from cluster.errors import TooManyErrors
from cluster.reports import ShardReport


class ErrorRate:
    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.rows = self.errors = 0
        self.kinds = Counter[str]()  # sentence without its numbers -> rows
        self.examples: dict[str, str] = {}  # the same -> one whole sentence

    def note(self, report: ShardReport) -> None:
        """Raises TooManyErrors."""
        self.rows += report.decoded.rows
        self.errors += report.decoded.errors
        for sentence, rows in report.failures.sentences.items():
            kind = re.sub(r"\d+", "#", sentence)
            self.kinds[kind] += rows
            self.examples.setdefault(kind, sentence)
        limit = self.config.max_error_rate
        if self.rows >= self.config.max_error_rate_after and self.errors > limit * self.rows:
            ((kind, count),) = self.kinds.most_common(1)
            raise TooManyErrors(self.errors, self.rows, limit, count, self.examples[kind])
