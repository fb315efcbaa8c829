"""The float64 trace of one request through one stage: which operators, in which order, committed how, opened and judged how."""
