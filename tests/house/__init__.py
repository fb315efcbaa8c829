"""Does the house stay in order? `python -m tests.house` prints what can be counted.

`tree`        the product's files, rooms, definitions and lines
`reach`       which definitions the five programs reach
`ways`        the ways through the code that `docs/architecture.md` lists
`test_rules`  what must hold, and what may only get better
`__main__`    the countable rows: item, reach, ours, reached
"""
