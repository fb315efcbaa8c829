"""Strangers who dial, publish, upload and cancel, and what a neighbour notices.

`test_free_work`  what can be had without paying: requests cut off, rows that nobody ordered
`test_proposals`  proposals that nobody opens, and those of others meanwhile
"""
