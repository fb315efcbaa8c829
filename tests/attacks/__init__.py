"""Attacks by strangers, alone and together: who could gain what, and what it costs now.

`crafted_rows.json`  rows that the layers of a tiny model cancel, by family
`test_crafted_rows`  rows chosen so that honest rounding looks like a lie convict nobody
"""
