"""Whether an answer is right. A metric is a function (text, gold) -> bool; the list of them is in `metrics.py`."""
