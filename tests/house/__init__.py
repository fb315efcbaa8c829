"""Does the house stay in order? `python -m tests.house` prints what can be counted.

`tree`               the product's files, rooms, definitions and lines
`reach`              which definitions the five programs reach
`ways`               the ways through the code that `docs/architecture.md` lists
`construction`       which attributes are set after construction
`test_construction`  an object has all its attributes once it is made
`test_maps`          each room's map names what lies in it
`test_ways`          the ways lead through files that are there
`test_rules`         what else must hold
`__main__`           the countable rows: item, reach, ours, reached
"""
